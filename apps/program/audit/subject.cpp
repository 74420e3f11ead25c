#include "subject.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/reference/random_weights.hpp>

#include <algorithm>

namespace longstraw::audit {
namespace {

constexpr std::uint64_t weights_seed = 20;

/// The reference computes every product by plain loops in double, a whole sequence a response: at
/// this size the group of an audit takes it about a minute.
constexpr index parameters_max = index{1} << 21;
constexpr std::uint64_t config_bytes_max = std::uint64_t{16} << 20;

struct configuration {
  const char* architecture;
  const char* variant;  ///< behind the name
  const char* text;     ///< config.json
};

// Small, but with all that an architecture has: grouped heads, partial rotary, several layers of
// each kind. In the odd one no size is a power of two, and three heads do not divide over two ranks.
constexpr configuration configurations[] = {
    {"qwen3_5_text", "", R"({
      "model_type": "qwen3_5_text", "vocab_size": 160, "hidden_size": 48, "intermediate_size": 96,
      "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
      "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
      "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-6,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                          "partial_rotary_factor": 0.25}})"},
    {"qwen3_5_text", ", tied, odd sizes", R"({
      "model_type": "qwen3_5_text", "vocab_size": 131, "hidden_size": 42, "intermediate_size": 75,
      "num_hidden_layers": 4, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 20,
      "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
      "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 10,
      "linear_value_head_dim": 14, "linear_conv_kernel_dim": 3, "rms_norm_eps": 1e-4,
      "tie_word_embeddings": true,
      "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                          "partial_rotary_factor": 0.3}})"},
    {"qwen3", "", R"({
      "model_type": "qwen3", "vocab_size": 160, "hidden_size": 48, "intermediate_size": 96,
      "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 12,
      "rms_norm_eps": 1e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}})"},
    {"llama", "", R"({
      "model_type": "llama", "vocab_size": 160, "hidden_size": 48, "intermediate_size": 100,
      "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 14,
      "attention_bias": true, "mlp_bias": true, "rms_norm_eps": 1e-5,
      "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}})"},
};

}  // namespace

std::string subject::about() const {
  return fmt::format("{} layers, {} parameters", config.layer_count(), layout.parameter_count());
}

bool subject::hybrid() const {
  return std::find(config.layers.begin(), config.layers.end(),
                   models::layer_kind::gated_delta_net) != config.layers.end();
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const configuration& c : configurations)
    if (names.empty() || names.back() != c.architecture) names.emplace_back(c.architecture);
  return names;
}

std::vector<subject> built_in_subjects(const std::string& architecture) {
  std::vector<subject> all;
  for (const configuration& c : configurations) {
    if (architecture != c.architecture) continue;
    subject s;
    s.name = architecture + c.variant;
    s.config_text = c.text;
    s.config = models::parse_config(c.text, s.name);
    s.layout = models::layout_of(s.config);
    s.weights.resize(static_cast<std::size_t>(s.layout.total()));
    models::reference::fill_random(s.weights, s.config, s.layout, weights_seed);
    all.push_back(std::move(s));
  }
  return all;
}

subject checkpoint_subject(const std::filesystem::path& folder) {
  const models::checkpoint files(folder);
  if (files.layout().parameter_count() > parameters_max)
    fail(errc::bad_input,
         "{} has {} parameters; audit computes every claim in plain double precision as well and "
         "takes at most {}: give a smaller checkpoint of the same architecture",
         folder.string(), files.layout().parameter_count(), parameters_max);
  subject s;
  s.name = folder.string();
  s.config_text = models::read_text(folder / "config.json", config_bytes_max);
  s.config = files.config();
  s.layout = files.layout();
  const models::parameter_store store(files.layout(), models::parameter_use::forward,
                                      *memory::budget::make(0));
  files.read_weights(store);
  s.weights.assign(store.weights().begin(), store.weights().end());
  return s;
}

}  // namespace longstraw::audit
