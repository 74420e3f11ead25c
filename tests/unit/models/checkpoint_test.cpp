#include "support/files.hpp"

#include <longstraw/models/checkpoint.hpp>

#include <catch2/generators/catch_generators.hpp>
#include <nlohmann/json.hpp>

#include <cmath>
#include <map>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;
using nlohmann::json;

/// A small random checkpoint in `folder`, and its files to spoil.
std::filesystem::path make(const temporary_folder& folder, const char* preset = "llama-tiny",
                           const std::function<void(json&)>& change = {}) {
  json config = json::parse(preset_config(preset));
  if (change) change(config);
  write_random_checkpoint(folder / "model", config.dump(), 1);
  return folder / "model";
}

/// Rewrites the weights with `change` applied to the list of tensors.
void rewrite(const std::filesystem::path& file,
             const std::function<void(std::vector<tensor_source>&)>& change) {
  const safetensors_file old(file);
  std::map<std::string, std::vector<float>> values;
  std::vector<tensor_source> tensors;
  for (const auto& [name, info] : old.tensors()) {
    auto& v = values[name];
    v.resize(static_cast<std::size_t>(info.count()));
    old.read_floats(name, v);
    tensors.push_back(from_floats(name, info.shape, v, info.type));
  }
  change(tensors);
  write_safetensors(file, tensors, old.metadata());
}

std::string refusal(const std::filesystem::path& folder) {
  return failure_of([&] { checkpoint opened(folder); });
}

parameter_store load(const checkpoint& c, memory::budget& budget) {
  parameter_store store(c.layout(), parameter_use::forward, budget);
  c.read_weights(store);
  return store;
}

}  // namespace

TEST_CASE("golden checkpoints are read, and written back byte for byte", "[unit][golden]") {
  const std::string name =
      GENERATE(Catch::Generators::as<std::string>{}, "qwen35-tiny", "qwen35-8l",
               "qwen35-multimodal-prefix", "qwen3-dense-tiny", "llama-tiny");
  CAPTURE(name);
  const auto folder = golden(name) / "model";
  const checkpoint opened(folder);
  const auto budget = memory::budget::make(0);
  const parameter_store store = load(opened, *budget);
  temporary_folder out;
  opened.write(out / "copy", store);
  CHECK(names_in(out / "copy") == names_in(folder));
  for (const std::string& file : names_in(folder)) {
    CAPTURE(file);
    if (!file.ends_with(".safetensors")) {
      CHECK(read_file(out / "copy" / file) == read_file(folder / file));
      continue;
    }
    const safetensors_file before(folder / file), after(out / "copy" / file);
    CHECK(after.metadata() == before.metadata());
    REQUIRE(after.tensors().size() == before.tensors().size());
    for (const auto& [tensor, info] : before.tensors()) {
      std::vector<std::byte> a(info.end - info.begin), b(a.size());
      before.read_bytes(tensor, 0, a);
      after.read_bytes(tensor, 0, b);
      REQUIRE(a == b);
      REQUIRE(after.find(tensor)->shape == info.shape);
    }
  }
}

TEST_CASE("the language tower has the weights of the plain model, and the rest is left aside",
          "[unit][golden]") {
  const checkpoint plain(golden("qwen35-tiny") / "model");
  const checkpoint tower(golden("qwen35-multimodal-prefix") / "model");
  const auto budget = memory::budget::make(0);
  const parameter_store a = load(plain, *budget), b = load(tower, *budget);
  REQUIRE(a.weights().size() == b.weights().size());
  CHECK(std::equal(a.weights().begin(), a.weights().end(), b.weights().begin()));
  CHECK(plain.left_aside().empty());
  for (const std::string& name : tower.left_aside())
    CHECK((name.starts_with("model.visual.") || name.starts_with("mtp.")));
  REQUIRE(tower.config().notices.size() == 2);
  CHECK_THAT(tower.config().notices[0], ContainsSubstring("model.visual.*"));
  CHECK_THAT(tower.config().notices[1], ContainsSubstring("2 tensors left aside: mtp.*"));
}

TEST_CASE("random checkpoints of every small preset load, the same bits for the same seed",
          "[unit]") {
  const std::string name =
      GENERATE(Catch::Generators::as<std::string>{}, "tiny", "small", "qwen3-tiny", "llama-tiny");
  temporary_folder folder;
  write_random_checkpoint(folder / "a", preset_config(name), 7);
  write_random_checkpoint(folder / "b", preset_config(name), 7);
  write_random_checkpoint(folder / "c", preset_config(name), 8);
  const auto bytes = [&](const char* f) { return read_file(folder / f / "model.safetensors"); };
  CHECK(bytes("a") == bytes("b"));
  CHECK(bytes("a") != bytes("c"));
  const checkpoint opened(folder / "a");
  CHECK_FALSE(opened.has_tokenizer());
  CHECK(opened.config().end_of_sequence == std::vector<token_id>{256});
  const auto budget = memory::budget::make(0);
  const parameter_store store = load(opened, *budget);
  double squares = 0;
  const auto embedding = store.weights(store.layout().all().front());
  for (const float v : embedding) squares += static_cast<double>(v) * v;
  CHECK(std::abs(std::sqrt(squares / static_cast<double>(embedding.size())) - 0.02) < 0.001);
  const float neutral = opened.config().norm == kernels::norm_weight::plain ? 1.0f : 0.0f;
  for (const float v : vector_of(store, "model.norm.weight").w) CHECK(v == neutral);
}

TEST_CASE("random gated delta nets remember: A in (0, 16), steps in [0.001, 0.1]", "[unit]") {
  temporary_folder folder;
  const checkpoint opened(make(folder, "small"));
  const auto budget = memory::budget::make(0);
  const parameter_store store = load(opened, *budget);
  double a_sum = 0;
  int count = 0;
  for (index l = 0; l < opened.config().layer_count(); ++l) {
    const std::string at = fmt::format("model.layers.{}.linear_attn.", l);
    if (!store.layout().find(at + "A_log")) continue;
    for (const float v : vector_of(store, at + "A_log").w) {
      CHECK(std::exp(v) < 16.0f);
      a_sum += std::exp(v);
      ++count;
    }
    for (const float v : vector_of(store, at + "dt_bias").w) {
      const double dt = std::log1p(std::exp(v));
      CHECK(dt > 0.00099);
      CHECK(dt < 0.101);
    }
    for (const float v : vector_of(store, at + "norm.weight").w) CHECK(v == 1.0f);
  }
  CHECK(count == 48);
  CHECK(std::abs(a_sum / count - 8.0) < 3.0);
}

TEST_CASE("every preset is a complete configuration", "[unit]") {
  for (const std::string& name : preset_names()) {
    const model_config c = parse_config(preset_config(name), name);
    CHECK(c.notices.empty());
    CHECK(c.vocabulary >= 256);
  }
  CHECK_THAT(failure_of([] { preset_config("huge"); }), ContainsSubstring("tiny, small, medium"));
}

TEST_CASE("16-bit checkpoints keep their dtype, and their bits", "[unit]") {
  const char* dtype_name = GENERATE("bfloat16", "float16");
  temporary_folder folder;
  const auto source = make(folder, "tiny", [&](json& c) { c["dtype"] = dtype_name; });
  const checkpoint opened(source);
  const auto budget = memory::budget::make(0);
  const parameter_store store = load(opened, *budget);
  opened.write(folder / "copy", store);
  CHECK(read_file(folder / "copy" / "model.safetensors") ==
        read_file(source / "model.safetensors"));
  CHECK(bytes_of(safetensors_file(source / "model.safetensors").find("model.norm.weight")->type) ==
        2);
}

TEST_CASE("a head on disk beside a tied embedding is left aside with a notice", "[unit]") {
  temporary_folder folder;
  const auto source = make(folder);
  json config = json::parse(preset_config("llama-tiny"));
  config["tie_word_embeddings"] = true;
  write_file(source / "config.json", config.dump());
  const checkpoint opened(source);
  CHECK(opened.left_aside() == std::vector<std::string>{"lm_head.weight"});
  REQUIRE(opened.config().notices.size() == 1);
  CHECK_THAT(opened.config().notices[0], ContainsSubstring("tied"));
}

TEST_CASE("a checkpoint may be written over itself", "[unit]") {
  temporary_folder folder;
  const auto source = make(folder);
  write_file(source / "tokenizer.json", "{}");
  write_file(source / "pytorch_model.bin", "stale");
  const checkpoint opened(source);
  CHECK(opened.has_tokenizer());
  const auto budget = memory::budget::make(0);
  const parameter_store store = load(opened, *budget);
  store.weights()[0] = 42.0f;
  opened.write(source, store);
  CHECK(names_in(folder.path()) == std::vector<std::string>{"model"});
  CHECK(names_in(source) ==
        std::vector<std::string>{"config.json", "model.safetensors", "tokenizer.json"});
  CHECK(load(checkpoint(source), *budget).weights()[0] == 42.0f);
}

TEST_CASE("missing files of a checkpoint are named", "[unit][negative]") {
  temporary_folder folder;
  const auto source = make(folder);
  std::filesystem::remove(source / "model.safetensors");
  CHECK_THAT(refusal(source), ContainsSubstring("neither model.safetensors nor"));
  const auto index_file = source / "model.safetensors.index.json";
  write_file(index_file, R"({"weight_map": {"model.norm.weight": "model-1.safetensors"}})");
  CHECK_THAT(refusal(source), ContainsSubstring("model-1.safetensors is missing"));
  write_file(index_file, R"({"weight_map": {}})");
  CHECK_THAT(refusal(source), ContainsSubstring("empty"));
  write_file(index_file, R"({"weight_map": 3})");
  CHECK_THAT(refusal(source), ContainsSubstring("\"weight_map\" is 3"));
  write_file(index_file, "{}");
  CHECK_THAT(refusal(source), ContainsSubstring("\"weight_map\" is missing"));
}

TEST_CASE("an index cannot name a file outside its folder", "[unit][negative]") {
  temporary_folder folder;
  const auto source = make(folder);
  std::filesystem::rename(source / "model.safetensors", folder / "x.safetensors");
  for (const char* name : {"../x.safetensors", "/etc/passwd", "..", ".", "", "a\\b", "a\\u0000b"}) {
    write_file(source / "model.safetensors.index.json",
               fmt::format(R"({{"weight_map": {{"model.norm.weight": "{}"}}}})",
                           name == std::string("a\\b") ? "a\\\\b" : name));
    CHECK_THAT(refusal(source),
               ContainsSubstring("expected the name of a file in the same folder"));
  }
}

TEST_CASE("shards that disagree with their index or each other are refused", "[unit][negative]") {
  temporary_folder folder;
  const auto source = make(folder);
  std::filesystem::rename(source / "model.safetensors", source / "one.safetensors");
  const auto index_file = source / "model.safetensors.index.json";
  write_file(index_file, R"({"weight_map": {"a": "one.safetensors"}})");
  CHECK_THAT(refusal(source), ContainsSubstring("tensor \"a\" is not in one.safetensors"));
  std::filesystem::copy(source / "one.safetensors", source / "two.safetensors");
  write_file(index_file, R"({"weight_map": {"model.norm.weight": "one.safetensors",
                                            "lm_head.weight": "two.safetensors"}})");
  CHECK_THAT(refusal(source), ContainsSubstring("lies in one.safetensors and in two.safetensors"));
}

TEST_CASE("tensors that do not fit the config are refused, both shapes named", "[unit][negative]") {
  temporary_folder folder;
  const auto source = make(folder);
  const auto file = source / "model.safetensors";
  SECTION("shape") {
    json config = json::parse(preset_config("llama-tiny"));
    config["intermediate_size"] = 96;
    write_file(source / "config.json", config.dump());
    CHECK_THAT(refusal(source),
               ContainsSubstring("\"model.layers.0.mlp.gate_proj.weight\" has shape [128, 64]; "
                                 "config.json expects [96, 64]"));
  }
  SECTION("missing") {
    rewrite(file, [](auto& tensors) {
      std::erase_if(tensors, [](const auto& t) { return t.name == "model.norm.weight"; });
    });
    CHECK_THAT(refusal(source), ContainsSubstring("\"model.norm.weight\" is missing"));
  }
  SECTION("dtype") {
    rewrite(file, [](auto& tensors) {
      for (auto& t : tensors) {
        if (t.name != "model.norm.weight") continue;
        t.type = dtype::i32;
      }
    });
    CHECK_THAT(refusal(source), ContainsSubstring("has dtype I32; expected F32, BF16 or F16"));
  }
  SECTION("truncated") {
    std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4);
    CHECK_THAT(refusal(source), ContainsSubstring("model.safetensors"));
  }
}

TEST_CASE("a folder that is no checkpoint is not replaced", "[unit][negative]") {
  temporary_folder folder;
  write_file(folder / "home" / "letter.txt", "dear");
  CHECK_THAT(
      failure_of([&] { write_random_checkpoint(folder / "home", preset_config("llama-tiny"), 1); }),
      ContainsSubstring("no config.json"));
  CHECK(read_file(folder / "home" / "letter.txt") == "dear");
}

}  // namespace longstraw::models
