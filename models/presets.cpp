// The sizes of `new-model`: complete config.json texts, readable by transformers too.

#include <longstraw/models/checkpoint.hpp>

#include <nlohmann/json.hpp>

namespace longstraw::models {
namespace {

using json = nlohmann::ordered_json;

// 256 byte values, an end-of-sequence id and one to spare: text needs no tokenizer.
constexpr index byte_vocabulary = 258;
constexpr index byte_end = 256;

json common(const char* class_name, const char* type, index vocabulary, index hidden, index inner,
            index layers, index heads, index kv_heads, index head_dim) {
  return {{"architectures", {class_name}},
          {"model_type", type},
          {"dtype", "float32"},
          {"vocab_size", vocabulary},
          {"hidden_size", hidden},
          {"intermediate_size", inner},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"head_dim", head_dim},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"rms_norm_eps", 1e-6},
          {"initializer_range", 0.02},
          {"max_position_embeddings", index{1} << 24},
          {"tie_word_embeddings", false},
          {"use_cache", true},
          {"bos_token_id", nullptr},
          {"pad_token_id", nullptr},
          {"eos_token_id", vocabulary == byte_vocabulary ? json(byte_end) : json(nullptr)}};
}

/// Three gated delta net layers, then one of full attention, and so on.
json hybrid(index vocabulary, index hidden, index inner, index layers, index heads, index kv_heads,
            index head_dim, index key_heads, index value_heads, index delta_dim) {
  json c = common("Qwen3_5ForCausalLM", "qwen3_5_text", vocabulary, hidden, inner, layers, heads,
                  kv_heads, head_dim);
  json types = json::array();
  for (index l = 0; l < layers; ++l)
    types.push_back((l + 1) % 4 == 0 ? "full_attention" : "linear_attention");
  c["layer_types"] = types;
  c["linear_num_key_heads"] = key_heads;
  c["linear_num_value_heads"] = value_heads;
  c["linear_key_head_dim"] = delta_dim;
  c["linear_value_head_dim"] = delta_dim;
  c["linear_conv_kernel_dim"] = 4;
  // Frequencies of the turned quarter of a head; split over three position rows that are equal for
  // text.
  const index frequencies = head_dim / 8;
  const index each = frequencies / 3;
  c["rope_parameters"] = {{"rope_type", "default"},
                          {"rope_theta", 1e7},
                          {"partial_rotary_factor", 0.25},
                          {"mrope_interleaved", true},
                          {"mrope_section", {frequencies - 2 * each, each, each}}};
  return c;
}

json dense_qwen3() {
  json c = common("Qwen3ForCausalLM", "qwen3", byte_vocabulary, 64, 128, 4, 4, 2, 32);
  c["use_sliding_window"] = false;
  c["sliding_window"] = nullptr;
  c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  return c;
}

json dense_llama() {
  json c = common("LlamaForCausalLM", "llama", byte_vocabulary, 64, 128, 4, 4, 2, 16);
  c["mlp_bias"] = false;
  c["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  return c;
}

struct preset {
  const char* name;
  json (*make)();
};
constexpr preset presets[] = {
    {"tiny", [] { return hybrid(byte_vocabulary, 64, 128, 4, 4, 2, 32, 2, 4, 16); }},
    {"small", [] { return hybrid(byte_vocabulary, 256, 768, 8, 4, 2, 64, 4, 8, 32); }},
    {"medium", [] { return hybrid(byte_vocabulary, 512, 1536, 12, 8, 2, 64, 4, 8, 64); }},
    {"bench-s", [] { return hybrid(1024, 256, 768, 8, 4, 2, 64, 4, 8, 32); }},
    {"bench-m", [] { return hybrid(8192, 768, 2048, 12, 12, 2, 64, 6, 12, 64); }},
    {"qwen3-tiny", dense_qwen3},
    {"llama-tiny", dense_llama},
};

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const preset& p : presets) names.emplace_back(p.name);
  return names;
}

std::string preset_config(std::string_view size) {
  std::string choices;
  for (const preset& p : presets) {
    if (size == p.name) return p.make().dump(2) + "\n";
    choices += fmt::format("{}{}", choices.empty() ? "" : ", ", p.name);
  }
  fail(errc::bad_input, "there is no model size \"{}\"; expected one of {}", size, choices);
}

}  // namespace longstraw::models
