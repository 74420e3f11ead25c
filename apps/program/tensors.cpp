#include "tensors.hpp"

#include <algorithm>

namespace longstraw::program {

using messages::response_result;

void write_gradients(const std::filesystem::path& file, const models::parameter_store& parameters) {
  std::vector<models::tensor_source> tensors;
  for (const models::parameter& p : parameters.layout().all())
    tensors.push_back(models::from_floats(p.name, p.shape, parameters.gradients(p)));
  models::write_safetensors(file, tensors);
}

padded_rows::padded_rows(std::span<const response_result> results,
                         std::vector<float> response_result::*field)
    : rows_(static_cast<index>(results.size())) {
  for (const response_result& r : results)
    longest_ = std::max(longest_, static_cast<index>((r.*field).size()));
  values_.resize(static_cast<std::size_t>(rows_ * longest_));
  auto row = values_.begin();
  for (const response_result& r : results) {
    std::copy((r.*field).begin(), (r.*field).end(), row);
    row += static_cast<std::ptrdiff_t>(longest_);
  }
}

models::tensor_source padded_rows::source(std::string name) const {
  return models::from_floats(std::move(name), {rows_, longest_}, values_);
}

void write_logprobs(const std::filesystem::path& file, std::span<const response_result> results) {
  const padded_rows logps(results, &response_result::logps),
      entropies(results, &response_result::entropies);
  const models::tensor_source tensors[] = {logps.source("logps"), entropies.source("entropies")};
  models::write_safetensors(file, tensors);
}

}  // namespace longstraw::program
