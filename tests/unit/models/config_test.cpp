#include "support/files.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/config.hpp>

#include <nlohmann/json.hpp>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;
using nlohmann::json;

json llama() { return json::parse(preset_config("llama-tiny")); }
json qwen3() { return json::parse(preset_config("qwen3-tiny")); }
json hybrid() { return json::parse(preset_config("tiny")); }

model_config parse(const json& c) { return parse_config(c.dump(), "config.json"); }

std::string refusal(const json& c) {
  const auto sentence = failure_of([&] { parse(c); });
  CHECK_THAT(sentence, ContainsSubstring("config.json"));
  return sentence;
}

/// `base` with one field set.
json with(json base, const char* field, json value) {
  base[field] = std::move(value);
  return base;
}
json without(json base, const char* field) {
  base.erase(field);
  return base;
}

}  // namespace

TEST_CASE("the golden configs are read", "[unit][golden]") {
  const model_config tiny = read_config(golden("qwen35-tiny") / "model");
  CHECK(tiny.arch == architecture::qwen3_5);
  CHECK(tiny.layers ==
        std::vector<layer_kind>{layer_kind::gated_delta_net, layer_kind::gated_delta_net,
                                layer_kind::gated_delta_net, layer_kind::full_attention});
  CHECK(tiny.rotary.width == 8);
  CHECK(tiny.rotary.theta == 10000.0);
  CHECK(tiny.norm == kernels::norm_weight::one_plus);
  CHECK(tiny.attention_gate);
  CHECK(tiny.qk_norm);
  CHECK(tiny.delta_value_heads == 4);
  CHECK(tiny.notices.empty());

  const model_config eight = read_config(golden("qwen35-8l") / "model");
  CHECK(eight.tied_embeddings);
  CHECK(eight.rms_norm_eps == 1e-4f);
  CHECK(eight.rotary.width == 6);

  const model_config nested = read_config(golden("qwen35-multimodal-prefix") / "model");
  CHECK(nested.model_type == "qwen3_5");
  CHECK(nested.tensor_prefix == "model.language_model.");
  CHECK(nested.hidden_size == 64);

  const model_config dense = read_config(golden("qwen3-dense-tiny") / "model");
  CHECK(dense.qk_norm);
  CHECK_FALSE(dense.attention_gate);
  CHECK(dense.rotary.width == 24);
  CHECK(dense.norm == kernels::norm_weight::plain);

  const model_config plain = read_config(golden("llama-tiny") / "model");
  CHECK(plain.rotary.kind == kernels::rotary_spec::scaling::llama3);
  CHECK(plain.rotary.original_positions == 64);
  CHECK(plain.end_of_sequence == std::vector<token_id>{2});
}

TEST_CASE("older spellings of the rotary settings mean the same", "[unit]") {
  json old = without(llama(), "rope_parameters");
  old["rope_theta"] = 5e5;
  CHECK(parse(old).rotary.theta == 5e5);
  for (const char* spelling : {"type", "rope_type"}) {
    old["rope_scaling"] = {{spelling, "llama3"},
                           {"factor", 8.0},
                           {"low_freq_factor", 1.0},
                           {"high_freq_factor", 4.0},
                           {"original_max_position_embeddings", 8192}};
    const model_config c = parse(old);
    CHECK(c.rotary.kind == kernels::rotary_spec::scaling::llama3);
    CHECK(c.rotary.factor == 8.0);
    CHECK(c.rotary.theta == 5e5);
  }
  old["rope_scaling"] = nullptr;
  CHECK(parse(old).rotary.kind == kernels::rotary_spec::scaling::none);
  old["partial_rotary_factor"] = 0.5;
  CHECK(parse(old).rotary.width == 8);
}

TEST_CASE("an absent partial_rotary_factor is a quarter for qwen3_5, with a notice", "[unit]") {
  json c = hybrid();
  c["rope_parameters"].erase("partial_rotary_factor");
  const model_config read = parse(c);
  CHECK(read.rotary.width == 8);
  REQUIRE(read.notices.size() == 1);
  CHECK_THAT(read.notices[0], ContainsSubstring("0.25"));
  CHECK(parse(qwen3()).rotary.width == 32);
  CHECK(parse(qwen3()).notices.empty());
}

TEST_CASE("rotary settings that are not supported are refused by name", "[unit][negative]") {
  for (const char* type : {"yarn", "linear", "dynamic", "longrope"}) {
    json c = llama();
    c["rope_parameters"]["rope_type"] = type;
    CHECK_THAT(refusal(c),
               ContainsSubstring(std::string("\"rope_parameters.rope_type\" is \"") + type));
  }
  json c = llama();
  c["rope_parameters"].erase("rope_theta");
  CHECK_THAT(refusal(c), ContainsSubstring("rope_theta"));
  CHECK_THAT(refusal(without(llama(), "rope_parameters")), ContainsSubstring("rope_theta"));
  c = llama();
  c["rope_parameters"]["rope_theta"] = -1.0;
  CHECK_THAT(refusal(c), ContainsSubstring("-1.0"));
  c = hybrid();
  c["rope_parameters"]["partial_rotary_factor"] = 0.1;
  CHECK_THAT(refusal(c), ContainsSubstring("turns 3 components"));
  c["rope_parameters"]["partial_rotary_factor"] = 1.5;
  CHECK_THAT(refusal(c), ContainsSubstring("1.5"));
  c = llama();
  c["rope_parameters"] = {{"rope_type", "llama3"},   {"rope_theta", 1e4},
                          {"factor", 8.0},           {"low_freq_factor", 4.0},
                          {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  CHECK_THAT(refusal(c), ContainsSubstring("high_freq_factor"));
  c["rope_parameters"]["high_freq_factor"] = 8.0;
  c["rope_parameters"].erase("original_max_position_embeddings");
  CHECK_THAT(refusal(c), ContainsSubstring("original_max_position_embeddings"));
}

TEST_CASE("absent layer types follow the published interval", "[unit]") {
  json c = without(hybrid(), "layer_types");
  CHECK(parse(c).layers == parse(hybrid()).layers);
  c["full_attention_interval"] = 2;
  CHECK(parse(c).layers[1] == layer_kind::full_attention);
  CHECK(parse(c).layers[2] == layer_kind::gated_delta_net);
}

TEST_CASE("absent sizes are derived where the architecture says how", "[unit]") {
  CHECK(parse(without(llama(), "head_dim")).head_dim == 16);
  CHECK(parse(without(llama(), "num_key_value_heads")).kv_heads == 4);
  CHECK(parse(without(qwen3(), "head_dim")).notices.size() == 1);
  CHECK_THAT(refusal(without(qwen3(), "num_key_value_heads")), ContainsSubstring("missing"));
  CHECK_THAT(refusal(with(without(llama(), "head_dim"), "hidden_size", 66)),
             ContainsSubstring("head_dim"));
}

TEST_CASE("end-of-sequence ids of both files are merged", "[unit]") {
  temporary_folder folder;
  write_file(folder / "config.json", with(llama(), "eos_token_id", json{7, 9}).dump());
  CHECK(read_config(folder.path()).end_of_sequence == std::vector<token_id>{7, 9});
  write_file(folder / "generation_config.json", R"({"eos_token_id": [9, 11]})");
  CHECK(read_config(folder.path()).end_of_sequence == std::vector<token_id>{7, 9, 11});
  write_file(folder / "generation_config.json", R"({"eos_token_id": 258})");
  CHECK_THAT(failure_of([&] { read_config(folder.path()); }),
             ContainsSubstring("generation_config.json: \"eos_token_id\" holds 258"));
  CHECK(parse(with(llama(), "eos_token_id", nullptr)).end_of_sequence.empty());
  CHECK_THAT(refusal(with(llama(), "eos_token_id", "end")), ContainsSubstring("\"end\""));
}

TEST_CASE("what is no checkpoint folder is refused", "[unit][negative]") {
  temporary_folder folder;
  CHECK_THAT(failure_of([&] { read_config(folder / "none"); }), ContainsSubstring("not a folder"));
  CHECK_THAT(failure_of([&] { read_config(folder.path()); }),
             ContainsSubstring("config.json is missing"));
  write_file(folder / "config.json", "{\n  \"a\": tru\n}");
  CHECK_THAT(failure_of([&] { read_config(folder.path()); }), ContainsSubstring("line 2"));
  CHECK_THAT(failure_of([&] { parse_config(std::string(100'000, '{'), "config.json"); }),
             ContainsSubstring("deeper than"));
  CHECK_THAT(
      failure_of([&] { parse_config("{\"a\":" + std::string(100'000, '['), "config.json"); }),
      ContainsSubstring("deeper than"));
}

TEST_CASE("architectures and features that are not supported are refused", "[unit][negative]") {
  CHECK_THAT(refusal(with(llama(), "model_type", "mamba")), ContainsSubstring("\"mamba\""));
  CHECK_THAT(refusal(without(llama(), "model_type")), ContainsSubstring("model_type"));
  CHECK_THAT(refusal(with(llama(), "hidden_act", "gelu")), ContainsSubstring("\"gelu\""));
  CHECK_THAT(refusal(with(qwen3(), "use_sliding_window", true)),
             ContainsSubstring("not supported"));
  CHECK_THAT(refusal(with(qwen3(), "layer_types",
                          json::array({"full_attention", "sliding_attention", "full_attention",
                                       "full_attention"}))),
             ContainsSubstring("\"sliding_attention\", which is not supported"));
  CHECK_THAT(refusal(with(hybrid(), "layer_types", json::array({"full_attention"}))),
             ContainsSubstring("num_hidden_layers = 4"));
  CHECK_THAT(refusal(with(hybrid(), "attn_output_gate", false)),
             ContainsSubstring("attn_output_gate"));
  CHECK_THAT(refusal(with(hybrid(), "model_type", "qwen3_5")), ContainsSubstring("text_config"));
}

TEST_CASE("impossible sizes are refused, field by field", "[unit][negative]") {
  for (const char* field : {"hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers",
                            "num_attention_heads", "num_key_value_heads", "head_dim",
                            "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                            "linear_value_head_dim", "linear_conv_kernel_dim"}) {
    const std::string named = std::string("\"") + field + "\" is ";
    for (const json& value : {json(0), json(-4), json(1.5), json("64"), json::array(),
                              json(std::int64_t{1} << 40), json(~std::uint64_t{0})})
      CHECK_THAT(refusal(with(hybrid(), field, value)), ContainsSubstring(named));
  }
  // Beyond what the kernels' tiles hold.
  CHECK_THAT(refusal(with(hybrid(), "head_dim", 1025)), ContainsSubstring("1 to 1024"));
  CHECK_THAT(refusal(with(with(without(llama(), "head_dim"), "hidden_size", 8192),
                          "num_attention_heads", 4)),
             ContainsSubstring("\"num_attention_heads\" is 4"));
  CHECK_THAT(refusal(with(with(llama(), "num_attention_heads", 516), "num_key_value_heads", 4)),
             ContainsSubstring("at least 5"));
  CHECK_THAT(refusal(with(hybrid(), "linear_key_head_dim", 513)), ContainsSubstring("1 to 512"));
  CHECK_THAT(refusal(with(hybrid(), "linear_conv_kernel_dim", 9)), ContainsSubstring("1 to 8"));
  CHECK_THAT(
      refusal(with(with(with(hybrid(), "linear_num_value_heads", 1000), "linear_key_head_dim", 512),
                   "linear_value_head_dim", 512)),
      ContainsSubstring("at most "));
  CHECK_THAT(refusal(with(hybrid(), "num_key_value_heads", 3)), ContainsSubstring("divisor"));
  CHECK_THAT(refusal(with(hybrid(), "linear_num_value_heads", 3)), ContainsSubstring("multiple"));
  CHECK_THAT(refusal(with(llama(), "rms_norm_eps", 0.0)), ContainsSubstring("rms_norm_eps"));
  CHECK_THAT(refusal(with(llama(), "rms_norm_eps", "small")), ContainsSubstring("\"small\""));
  CHECK_THAT(refusal(with(llama(), "tie_word_embeddings", 1)), ContainsSubstring("true or false"));
  CHECK_THAT(refusal(with(with(llama(), "hidden_size", 1 << 20), "intermediate_size", 1 << 20)),
             ContainsSubstring("2^40"));
}

}  // namespace longstraw::models
