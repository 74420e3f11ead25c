#pragma once
// config.json of a Hugging Face checkpoint, reduced to what the layer programs need and checked field by field.

#include <longstraw/kernels/rms_norm.hpp>
#include <longstraw/kernels/rotary.hpp>
#include <longstraw/memory/view.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace longstraw::models {

enum class architecture {
  qwen3_5,  ///< qwen3_5_text, or the language tower of qwen3_5: gated delta net and gated attention layers
  qwen3,  ///< dense decoder with q/k norm
  llama,  ///< dense decoder, optional biases
};

enum class layer_kind { full_attention, gated_delta_net };

struct model_config {
  architecture arch = architecture::llama;
  std::string model_type;  ///< as written in the file
  index hidden_size = 0;
  index intermediate_size = 0;
  index vocabulary = 0;
  index query_heads = 0;
  index kv_heads = 0;
  index head_dim = 0;
  std::vector<layer_kind> layers;

  index delta_key_heads = 0;
  index delta_value_heads = 0;
  index delta_key_dim = 0;
  index delta_value_dim = 0;
  index conv_kernel = 0;

  float rms_norm_eps = 1e-6f;
  kernels::norm_weight norm = kernels::norm_weight::plain;  ///< of all but the gated norm
  bool attention_gate = false;  ///< q_proj holds a gate beside each query head
  bool qk_norm = false;
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tied_embeddings = false;
  kernels::rotary_spec rotary;

  /// Any of these ends a response. From config.json or generation_config.json; may be empty.
  std::vector<token_id> end_of_sequence;

  /// Name on disk of "model." parameters: "model." or "model.language_model.".
  std::string tensor_prefix = "model.";
  /// What the reader assumed or left aside; each is logged once as a notice.
  std::vector<std::string> notices;

  index layer_count() const { return static_cast<index>(layers.size()); }
};

/// What "model_type" may be: models of any other are refused.
std::vector<std::string> supported_model_types();

/// Reads and checks folder/config.json (and generation_config.json if there). errc::bad_input names file, field, value
/// and what was expected.
model_config read_config(const std::filesystem::path& folder);

/// The same from text; `file` is used in sentences only.
model_config parse_config(const std::string& text, const std::string& file);

}  // namespace longstraw::models
