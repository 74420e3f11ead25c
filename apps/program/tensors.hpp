#pragma once
// Result tensors of a step as safetensors files.

#include <longstraw/messages/job.hpp>
#include <longstraw/models/safetensors.hpp>

#include <filesystem>
#include <span>
#include <vector>

namespace longstraw::program {

/// Gradients of all parameters under their names on disk, float32, before clipping.
void write_gradients(const std::filesystem::path& file, const models::parameter_store& parameters);

/// Rows of different lengths as one tensor [rows, longest], zero padded.
class padded_rows {
 public:
  padded_rows(std::span<const messages::response_result> results,
              std::vector<float> messages::response_result::*field);
  models::tensor_source source(std::string name) const;

 private:
  index rows_ = 0, longest_ = 0;
  std::vector<float> values_;
};

/// `logps` and `entropies`, [responses, longest].
void write_logprobs(const std::filesystem::path& file,
                    std::span<const messages::response_result> results);

}  // namespace longstraw::program
