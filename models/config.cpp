#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/causal_conv.hpp>
#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/models/config.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>
#include <longstraw/models/rotary_config.hpp>

#include <algorithm>
#include <optional>

namespace longstraw::models {
namespace {

using nlohmann::json;

// Bounds far beyond any real model, so that no product of sizes overflows before the parameter
// count is checked, and a row of any kernel fits the scratch memory of a thread.
constexpr index width_max = index{1} << 20;
constexpr index heads_max = 1024;
constexpr index layers_max = index{1} << 14;
constexpr index vocabulary_max = index{1} << 30;
constexpr index parameters_max = index{1} << 40;
constexpr std::uint64_t config_bytes_max = std::uint64_t{16} << 20;

struct known_type {
  const char* name;
  architecture arch;
  bool nested;  ///< language settings in text_config, weights under model.language_model.
};
constexpr known_type known_types[] = {
    {"qwen3_5_text", architecture::qwen3_5, false},
    {"qwen3_5", architecture::qwen3_5, true},
    {"qwen3", architecture::qwen3, false},
    {"llama", architecture::llama, false},
};

const known_type& type_of(const json_fields& fields) {
  const std::string choices = fmt::format("one of {}", fmt::join(supported_model_types(), ", "));
  if (!fields.has("model_type")) fields.reject("model_type", choices);
  const std::string name = fields.text("model_type");
  for (const known_type& t : known_types)
    if (name == t.name) return t;
  fields.reject("model_type", choices);
}

void read_heads(model_config& c, const json_fields& f) {
  c.query_heads = f.integer("num_attention_heads", 1, heads_max);
  c.kv_heads = c.arch == architecture::llama
                   ? f.integer("num_key_value_heads", 1, heads_max, c.query_heads)
                   : f.integer("num_key_value_heads", 1, heads_max);
  if (c.query_heads % c.kv_heads != 0)
    f.reject("num_key_value_heads",
             fmt::format("a divisor of num_attention_heads = {}", c.query_heads));
  // The query heads of a key head are attended together.
  if (c.query_heads / c.kv_heads > kernels::attention_group_max)
    f.reject("num_key_value_heads",
             fmt::format("at least {} for num_attention_heads = {}",
                         kernels::blocks_of(c.query_heads, kernels::attention_group_max),
                         c.query_heads));
  if (f.has("head_dim")) {
    c.head_dim = f.integer("head_dim", 1, kernels::attention_head_dim_max);
  } else {
    if (c.hidden_size % c.query_heads != 0)
      f.reject("head_dim", fmt::format("a number, since hidden_size = {} does not divide by "
                                       "num_attention_heads = {}",
                                       c.hidden_size, c.query_heads));
    c.head_dim = c.hidden_size / c.query_heads;
    if (c.head_dim > kernels::attention_head_dim_max)
      f.reject("num_attention_heads",
               fmt::format("at least {}, since hidden_size is {} and a head has at most {} values",
                           kernels::blocks_of(c.hidden_size, kernels::attention_head_dim_max),
                           c.hidden_size, kernels::attention_head_dim_max));
    if (c.arch != architecture::llama)
      c.notices.push_back(
          fmt::format("head_dim is absent: {} = hidden_size / num_attention_heads", c.head_dim));
  }
}

// The published rule when layer_types is absent: every n-th layer is a full attention layer.
void derive_layers(model_config& c, const json_fields& f, index count) {
  if (c.arch != architecture::qwen3_5) {
    c.layers.assign(static_cast<std::size_t>(count), layer_kind::full_attention);
    return;
  }
  const index interval = f.integer("full_attention_interval", 1, layers_max, 4);
  for (index l = 0; l < count; ++l)
    c.layers.push_back((l + 1) % interval == 0 ? layer_kind::full_attention
                                               : layer_kind::gated_delta_net);
  c.notices.push_back(
      fmt::format("layer_types is absent: every {}th layer is full attention", interval));
}

void read_layers(model_config& c, const json_fields& f) {
  const index count = f.integer("num_hidden_layers", 1, layers_max);
  if (c.arch == architecture::qwen3 && f.boolean("use_sliding_window", false))
    f.reject("use_sliding_window", "false: sliding window attention is not supported");
  const json* types = f.find("layer_types");
  if (!types) return derive_layers(c, f, count);
  if (!types->is_array() || types->size() != static_cast<std::size_t>(count))
    f.reject("layer_types", fmt::format("an array of num_hidden_layers = {} texts", count));
  for (const json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : shown(type);
    if (name == "full_attention") {
      c.layers.push_back(layer_kind::full_attention);
    } else if (name == "linear_attention" && c.arch == architecture::qwen3_5) {
      c.layers.push_back(layer_kind::gated_delta_net);
    } else {
      fail(errc::bad_input,
           "{}: \"layer_types\" holds {}, which is not supported for {}; expected {}", f.file(),
           in_quotes(name), c.model_type,
           c.arch == architecture::qwen3_5 ? "full_attention or linear_attention"
                                           : "full_attention");
    }
  }
}

void read_delta_net(model_config& c, const json_fields& f) {
  if (std::find(c.layers.begin(), c.layers.end(), layer_kind::gated_delta_net) == c.layers.end())
    return;
  c.delta_key_heads = f.integer("linear_num_key_heads", 1, heads_max);
  c.delta_value_heads = f.integer("linear_num_value_heads", 1, heads_max);
  using dims = kernels::gated_delta_dims;
  c.delta_key_dim = f.integer("linear_key_head_dim", 1, dims::head_dim_max);
  c.delta_value_dim = f.integer("linear_value_head_dim", 1, dims::head_dim_max);
  c.conv_kernel = f.integer("linear_conv_kernel_dim", 1, kernels::causal_conv_kernel_max);
  if (c.delta_value_heads % c.delta_key_heads != 0)
    f.reject("linear_num_value_heads",
             fmt::format("a multiple of linear_num_key_heads = {}", c.delta_key_heads));
  const dims one_head{1, 1, c.delta_key_dim, c.delta_value_dim};
  const index most =
      c.delta_key_heads * (dims::key_head_state_floats_max / one_head.key_head_state_floats());
  if (c.delta_value_heads > most)
    f.reject("linear_num_value_heads",
             fmt::format("at most {}, for {} key heads and states of {} x {}", most,
                         c.delta_key_heads, c.delta_key_dim, c.delta_value_dim));
}

void read_switches(model_config& c, const json_fields& f) {
  const std::string activation = f.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") f.reject("hidden_act", "\"silu\"");
  c.attention_bias = f.boolean("attention_bias", false);
  c.mlp_bias = c.arch == architecture::llama && f.boolean("mlp_bias", false);
  c.attention_gate = c.arch == architecture::qwen3_5;
  if (c.attention_gate && !f.boolean("attn_output_gate", true))
    f.reject("attn_output_gate", "true: attention without its gate is not supported");
  c.qk_norm = c.arch != architecture::llama;
  c.norm = c.arch == architecture::qwen3_5 ? kernels::norm_weight::one_plus
                                           : kernels::norm_weight::plain;
  if (!f.has("rms_norm_eps")) c.notices.push_back("rms_norm_eps is absent: 1e-6");
  c.rms_norm_eps = static_cast<float>(f.number("rms_norm_eps", 1e-30, 1.0, 1e-6));
  if (f.number("attention_dropout", 0.0, 1.0, 0.0) != 0.0)
    c.notices.push_back("attention_dropout is left aside: training runs without dropout");
}

/// Adds the ids of "eos_token_id": a number, a list or null.
void add_end_of_sequence(model_config& c, const json_fields& f) {
  const json* v = f.find("eos_token_id");
  if (!v) return;
  const auto add = [&](const json& one) {
    const bool is_id = one.is_number_integer() &&
                       (!one.is_number_unsigned() || one.get<std::uint64_t>() < (1ull << 62));
    if (!is_id || one.get<index>() < 0 || one.get<index>() >= c.vocabulary)
      fail(errc::bad_input, "{}: \"eos_token_id\" holds {}; expected ids from 0 to {}", f.file(),
           shown(one), c.vocabulary - 1);
    const auto id = static_cast<token_id>(one.get<index>());
    auto& ids = c.end_of_sequence;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (v->is_array())
    for (const json& one : *v) add(one);
  else
    add(*v);
}

/// Refuses sizes that no machine holds, before a layout is made of them.
void check_size(const model_config& c, const std::string& file) {
  // Each product is below 2^60: widths have 24 bits, heads times their width at most 32.
  const double hidden = static_cast<double>(c.hidden_size);
  const double attention =
      static_cast<double>(c.head_dim) * static_cast<double>(c.query_heads * 3 + c.kv_heads * 2);
  const double delta = 2.0 * static_cast<double>(c.delta_key_heads * c.delta_key_dim) +
                       3.0 * static_cast<double>(c.delta_value_heads * c.delta_value_dim);
  double total = 2.0 * hidden * static_cast<double>(c.vocabulary);
  for (const layer_kind kind : c.layers)
    total += hidden * (3.0 * static_cast<double>(c.intermediate_size) +
                       (kind == layer_kind::full_attention ? attention : delta));
  if (total > static_cast<double>(parameters_max))
    fail(errc::bad_input, "{} describes a model of {:.3g} parameters; expected at most 2^40", file,
         total);
}

}  // namespace

std::vector<std::string> supported_model_types() {
  std::vector<std::string> names;
  for (const known_type& t : known_types) names.emplace_back(t.name);
  return names;
}

model_config parse_config(const std::string& text, const std::string& file) {
  const json document = parse_json(text, file);
  const json_fields top(document, file);
  const known_type& type = type_of(top);
  const json_fields f = type.nested ? top.object("text_config") : top;

  model_config c;
  c.arch = type.arch;
  c.model_type = type.name;
  c.tensor_prefix = type.nested ? "model.language_model." : "model.";
  c.hidden_size = f.integer("hidden_size", 1, width_max);
  c.intermediate_size = f.integer("intermediate_size", 1, width_max);
  c.vocabulary = f.integer("vocab_size", 1, vocabulary_max);
  read_heads(c, f);
  read_layers(c, f);
  read_delta_net(c, f);
  read_switches(c, f);
  c.rotary = read_rotary(f, c);
  // The outer switch decides for a model with a vision tower, as the class that owns the head reads
  // it.
  c.tied_embeddings = top.boolean("tie_word_embeddings", f.boolean("tie_word_embeddings", false));
  check_size(c, file);
  add_end_of_sequence(c, f);
  if (type.nested) add_end_of_sequence(c, top);
  return c;
}

model_config read_config(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  const fs::path file = folder / "config.json";
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    fail(errc::bad_input, "{} is not a folder; expected a checkpoint folder with config.json",
         folder.string());
  if (!fs::exists(file, ignored))
    fail(errc::bad_input, "{} is missing; expected a checkpoint folder with config.json",
         file.string());
  model_config c = parse_config(read_text(file, config_bytes_max), file.string());

  const fs::path generation = folder / "generation_config.json";
  if (fs::exists(generation, ignored)) {
    const json document = parse_json(read_text(generation, config_bytes_max), generation.string());
    add_end_of_sequence(c, json_fields(document, generation.string()));
  }
  return c;
}

}  // namespace longstraw::models
