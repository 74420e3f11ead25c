#include "support/files.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/parameters.hpp>

#include <nlohmann/json.hpp>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;

model_config config_of(const char* preset, bool biased = false, bool tied = false) {
  auto c = nlohmann::json::parse(preset_config(preset));
  c["attention_bias"] = c["mlp_bias"] = biased;
  c["tie_word_embeddings"] = tied;
  return parse_config(c.dump(), "config.json");
}

}  // namespace

TEST_CASE("tensors follow each other, each on a cache line or behind the one it is stacked on",
          "[unit]") {
  for (const std::string& name : preset_names()) {
    const parameter_layout layout = layout_of(parse_config(preset_config(name), name));
    index at = 0, count = 0;
    for (const parameter& p : layout.all()) {
      REQUIRE((p.offset == at || p.offset == (at + 15) / 16 * 16));
      at = p.offset + p.count;
      count += p.count;
    }
    CHECK(layout.total() == at);
    CHECK(layout.parameter_count() == count);
    CHECK(layout.all().back().name == "lm_head.weight");
    CHECK(layout.all().front().name == "model.embed_tokens.weight");
  }
  CHECK(layout_of(config_of("tiny", false, true)).find("lm_head.weight") == nullptr);
}

TEST_CASE("the matrices of every layer begin on a cache line whatever vectors lie before them",
          "[unit]") {
  nlohmann::json c = nlohmann::json::parse(preset_config("tiny"));
  c["linear_num_value_heads"] = 6;  // A_log and dt_bias of 6 floats
  c["linear_num_key_heads"] = 3;
  const parameter_layout layout = layout_of(parse_config(c.dump(), "config.json"));
  for (const parameter& p : layout.all())
    if (p.name.ends_with("in_proj_qkv.weight") || p.name.ends_with("q_proj.weight") ||
        p.name.ends_with("gate_proj.weight") || p.name.ends_with("down_proj.weight"))
      CHECK(p.offset % 16 == 0);
}

TEST_CASE("projections of one input are one matrix", "[unit]") {
  const auto budget = memory::budget::make(0);
  const parameter_store store(layout_of(config_of("llama-tiny", true)), parameter_use::train,
                              *budget);
  const std::string at = "model.layers.1.self_attn.";
  const matrix_parameter qkv = stacked(store, at + "q_proj.weight", at + "v_proj.weight");
  CHECK(qkv.w.rows == 64 + 32 + 32);
  CHECK(qkv.w.cols == 64);
  CHECK(qkv.d(store.gradients()).rows == qkv.w.rows);
  CHECK(qkv.w.row(64) == store.weights(store.layout().at(at + "k_proj.weight")).data());
  CHECK(qkv.d(store.gradients()).row(96) ==
        store.gradients(store.layout().at(at + "v_proj.weight")).data());
  const matrix_parameter bias = stacked(store, at + "q_proj.bias", at + "v_proj.bias");
  CHECK(bias.w.rows == 128);
  CHECK(bias.w.cols == 1);
  const std::string mlp = "model.layers.1.mlp.";
  CHECK(stacked(store, mlp + "gate_proj.weight", mlp + "up_proj.weight").w.rows == 256);
  CHECK(stacked(store, mlp + "gate_proj.bias", mlp + "up_proj.bias").w.rows == 256);
}

TEST_CASE("the gated delta net's four input projections are one matrix", "[unit]") {
  const auto budget = memory::budget::make(0);
  const parameter_store store(layout_of(config_of("tiny")), parameter_use::forward, *budget,
                              "reference ");
  const std::string at = "model.layers.0.linear_attn.";
  const matrix_parameter all = stacked(store, at + "in_proj_qkv.weight", at + "in_proj_a.weight");
  CHECK(all.w.rows == 128 + 64 + 4 + 4);
  CHECK(matrix_of(store, at + "conv1d.weight").w.cols == 4);
  CHECK(matrix_of(store, at + "conv1d.weight").w.rows == 128);
  CHECK(vector_of(store, at + "A_log").w.size() == 4);
  CHECK(vector_of(store, at + "A_log").offset == store.layout().at(at + "A_log").offset);
}

TEST_CASE("a store draws each array from its named arena", "[unit]") {
  const auto budget = memory::budget::make(0);
  const parameter_layout layout = layout_of(config_of("tiny"));
  const parameter_store trained(layout, parameter_use::train, *budget);
  const parameter_store reference(layout, parameter_use::forward, *budget, "reference ");
  CHECK(trained.trains());
  CHECK_FALSE(reference.trains());
  CHECK(reference.gradients().empty());
  const auto bytes = static_cast<std::size_t>(layout.total()) * sizeof(float);
  for (const auto& u : budget->report())
    CHECK(u.current_bytes == (u.name == "moments" ? 2 * bytes : bytes));
  CHECK(budget->report().size() == 4);
  const auto once = memory::budget::make(2 * bytes);
  const parameter_store updated_once(layout, parameter_use::train_once, *once);
  CHECK(updated_once.trains());
  CHECK_FALSE(updated_once.keeps_moments());
  CHECK(once->report().size() == 2);
  const auto small = memory::budget::make(bytes);
  failure_of([&] { parameter_store(layout, parameter_use::train, *small); }, errc::over_budget);
}

}  // namespace longstraw::models
