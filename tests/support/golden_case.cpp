#include "golden_case.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/safetensors.hpp>

#include <algorithm>
#include <fstream>

namespace longstraw::testing {
namespace {
using models::safetensors_file;

template <class T>
std::map<std::string, std::vector<T>> read_all(const std::filesystem::path& path) {
  const safetensors_file file(path);
  std::map<std::string, std::vector<T>> all;
  for (const auto& [name, info] : file.tensors()) {
    auto& values = all[name];
    values.resize(static_cast<std::size_t>(info.count()));
    if constexpr (std::is_same_v<T, double>)
      file.read_doubles(name, values);
    else
      file.read_floats(name, values);
  }
  return all;
}

std::vector<std::int64_t> integers(const safetensors_file& file, const std::string& name) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(file.tensors().at(name).count()));
  file.read_integers(name, values);
  return values;
}

std::vector<float> floats(const safetensors_file& file, const std::string& name) {
  std::vector<float> values(static_cast<std::size_t>(file.tensors().at(name).count()));
  file.read_floats(name, values);
  return values;
}

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  return nlohmann::json::parse(in);
}

void read_batch(golden_case& c, const std::filesystem::path& path) {
  const safetensors_file file(path);
  const auto prompt = integers(file, "prompt_ids"), lens = integers(file, "response_lens"),
             ids = integers(file, "response_ids");
  const auto old_logps = floats(file, "old_logps"), ref_logps = floats(file, "ref_logps"),
             advantages = floats(file, "advantages");
  c.step.prompt.assign(prompt.begin(), prompt.end());
  c.advantages.assign(advantages.begin(), advantages.end());
  c.longest = static_cast<index>(ids.size() / lens.size());
  for (std::size_t g = 0; g < lens.size(); ++g) {
    const auto begin = static_cast<std::ptrdiff_t>(g) * c.longest, end = begin + lens[g];
    c.step.responses.emplace_back(ids.begin() + begin, ids.begin() + end);
    c.old_logps.emplace_back(old_logps.begin() + begin, old_logps.begin() + end);
    c.ref_logps.emplace_back(ref_logps.begin() + begin, ref_logps.begin() + end);
  }
}
}  // namespace

std::string golden_case::expected_name(const std::string& on_disk) const {
  const std::string& prefix = config.tensor_prefix;
  return on_disk.starts_with(prefix) ? "model." + on_disk.substr(prefix.size()) : on_disk;
}

std::optional<double> golden_case::bound(const std::string& kind, const std::string& tensor) const {
  const auto& value = about.at("tolerance").at(kind).at(tensor);
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

double golden_case::state_bound(const std::string& kind, const std::string& tensor) const {
  std::vector<double> worst;
  double here = 0;
  const auto& errors = about.at("float32_error");
  for (const auto& [name, one] : errors.at("conventional").at(kind).items()) {
    const auto& other = errors.at("alternative").at(kind).at(name);
    worst.push_back(std::max(one.is_null() ? 0.0 : one.get<double>(),
                             other.is_null() ? 0.0 : other.get<double>()));
    if (name == tensor) here = worst.back();
  }
  std::nth_element(worst.begin(), worst.begin() + static_cast<std::ptrdiff_t>(worst.size() / 2),
                   worst.end());
  return 4 * std::max(here, worst[worst.size() / 2]);
}

std::vector<double> golden_case::expected_row(const std::string& tensor,
                                              std::size_t response) const {
  const auto row = expected.at(tensor).begin() + static_cast<std::ptrdiff_t>(response) * longest;
  return {row, row + static_cast<std::ptrdiff_t>(step.responses[response].size())};
}

golden_case load_golden(const std::string& name) {
  const std::filesystem::path all(LONGSTRAW_GOLDEN_DIR);
  if (!std::filesystem::exists(all / name))
    SKIP("there are no golden files here; set LONGSTRAW_GOLDEN_DIR to their folder");

  golden_case c;
  const models::checkpoint files(all / name / "model");
  c.config = files.config();
  c.parameters = std::make_shared<models::parameter_store>(
      files.layout(), models::parameter_use::train, *memory::budget::make(0));
  files.read_weights(*c.parameters);

  c.about = read_json(all / name / "case.json");
  auto folder = all / name;
  if (c.about.contains("expected_from")) {
    folder = all / c.about.at("expected_from").get<std::string>();
    c.about = read_json(folder / "case.json");
  }
  read_batch(c, folder / "batch.safetensors");
  c.expected = read_all<double>(folder / "expected.safetensors");
  c.grads_frozen = read_all<float>(folder / "grads_frozen.safetensors");
  c.grads_full = read_all<float>(folder / "grads_full.safetensors");
  c.state = read_all<float>(folder / "state.safetensors");
  c.d_state = read_all<float>(folder / "dstate.safetensors");
  const auto greedy = integers(safetensors_file(folder / "greedy.safetensors"), "ids");
  c.greedy.assign(greedy.begin(), greedy.end());

  for (const auto& loss : c.about.at("losses")) {
    if (loss.at("name") != "grpo") continue;
    c.loss.beta = loss.at("beta");
    c.loss.epsilon_low = loss.at("epsilon_low");
    c.loss.epsilon_high = loss.at("epsilon_high");
  }
  return c;
}

}  // namespace longstraw::testing
