// A step through the program against what conventional training computed in float64.

#include "process.hpp"
#include "support/compare.hpp"
#include "support/files.hpp"
#include "support/golden_case.hpp"

#include <longstraw/models/checkpoint.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {
namespace {

namespace fs = std::filesystem;

struct case_paths {
  explicit case_paths(const std::string& name) : own(golden(name)), expected(own) {
    const auto about = json_file(own / "case.json");
    if (about.contains("expected_from")) expected = golden(about.at("expected_from"));
  }
  std::vector<std::string> step(const fs::path& out,
                                const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"step",    "--quiet",
                                    "--case",  (own / "case.json").string(),
                                    "--model", (own / "model").string(),
                                    "--data",  (expected / "batch.safetensors").string(),
                                    "--out",   out.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  fs::path own, expected;
};

std::vector<float> values(const fs::path& file, const std::string& name) {
  const models::safetensors_file f(file);
  REQUIRE(f.find(name) != nullptr);
  std::vector<float> v(static_cast<std::size_t>(f.find(name)->count()));
  f.read_floats(name, v);
  return v;
}

double largest_difference(const std::vector<float>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    largest = std::max(largest, std::abs(got[i] - want[i]));
  return largest;
}

void check_gradients(const fs::path& file, const golden_case& c,
                     const std::string& mode = "frozen") {
  const models::safetensors_file got(file);
  const auto& expected_gradients = mode == "full" ? c.grads_full : c.grads_frozen;
  CHECK(got.tensors().size() == expected_gradients.size());
  for (const auto& [name, info] : got.tensors()) {
    INFO(name);
    CHECK(info.type == models::dtype::f32);
    const std::string expected = c.expected_name(name);
    const auto gradient = values(file, name);
    const auto bound = c.bound("grads_" + mode + "_rel", expected);
    if (bound)
      CHECK(relative_error(gradient, expected_gradients.at(expected)) <= *bound);
    else
      CHECK(std::all_of(gradient.begin(), gradient.end(), [](float v) { return v == 0; }));
  }
}

void check_update(const fs::path& model, const case_paths& at, const golden_case& c,
                  const std::string& mode) {
  const models::safetensors_file after(at.expected / ("after_step_" + mode + ".safetensors"));
  const models::checkpoint written(model);
  const models::parameter_store store(written.layout(), models::parameter_use::forward,
                                      *memory::budget::make(0));
  written.read_weights(store);
  double difference = 0, moved = 0;
  for (const models::parameter& p : c.parameters->layout().all()) {
    const auto got = store.weights(store.layout().at(p.name));
    const auto want = values(after.path(), c.expected_name(p.name));
    const auto before = c.parameters->weights(p);
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(double(got[i]) - double(want[i]), 2);
      moved += std::pow(double(want[i]) - double(before[i]), 2);
    }
  }
  const auto& bound = c.about.at("tolerance").at("update_rel");
  CHECK(std::sqrt(difference / moved) <=
        (bound.is_object() ? bound.at(mode).get<double>() : bound.get<double>()));
}

}  // namespace

TEST_CASE("a step through the program reproduces a golden case", "[program][parity]") {
  const std::string name = GENERATE("qwen35-tiny", "qwen35-8l", "qwen35-multimodal-prefix",
                                    "qwen3-dense-tiny", "llama-tiny");
  const std::string mode = GENERATE("frozen", "full");
  const std::string ranks = GENERATE("1", "3");
  INFO(name << " " << mode << " on " << ranks << " ranks");
  const case_paths at(name);
  const golden_case c = load_golden(name);
  const temporary_folder folder;
  succeeds(at.step(folder / "out", {"--gradient", mode, "--ranks", ranks, "--chunk-tokens", "64"}));
  const fs::path out = folder / "out";
  const auto tolerance = c.about.at("tolerance");

  CHECK(largest_difference(values(out / "logprobs.safetensors", "logps"), c.expected.at("logps")) <=
        tolerance.at("logps_abs").get<double>());
  CHECK(largest_difference(values(out / "logprobs.safetensors", "entropies"),
                           c.expected.at("entropies")) <=
        tolerance.at("entropies_abs").get<double>());
  check_gradients(out / "gradients.safetensors", c, mode);
  check_update(out / "model", at, c, mode);

  const auto report = json_file(out / "report.json");
  const double norm = c.about.at("step").at(mode).at("grad_norm");
  CHECK(std::abs(report.at("grad_norm").get<double>() - norm) <= 1e-4 * norm);
  CHECK(report.at("committed") == true);
  CHECK(report.at("skipped") == false);
  CHECK(std::abs(report.at("kl").get<double>() -
                 c.about.at("metrics").at("kl_mean").get<double>()) < 1e-4);
}

TEST_CASE("every loss of a golden case has its value", "[program][parity]") {
  const std::string name = GENERATE("qwen35-tiny", "llama-tiny");
  const case_paths at(name);
  const temporary_folder folder;
  const auto about = json_file(at.own / "case.json");
  for (const auto& loss : about.at("losses")) {
    const std::string which = loss.at("name");
    INFO(name << " " << which);
    succeeds(at.step(folder / "out", {"--case-loss", which}));
    const double got = json_file(folder / "out" / "report.json").at("loss");
    const auto& bound = about.at("tolerance").at("losses_abs");
    CHECK(std::abs(got - loss.at("value").get<double>()) <=
          (bound.is_object() ? bound.at(which).get<double>() : bound.get<double>()));
  }
}

TEST_CASE("chunks, pages and threads do not change a step beyond rounding", "[program]") {
  const case_paths at("qwen35-tiny");
  const golden_case c = load_golden("qwen35-tiny");
  const temporary_folder folder;
  succeeds(
      at.step(folder / "out", {"--chunk-tokens", "37", "--page-tokens", "16", "--threads", "2"}));
  check_gradients(folder / "out" / "gradients.safetensors", c);
}

TEST_CASE("greedy generation continues a golden prompt", "[program][parity]") {
  const std::string name = GENERATE("qwen35-tiny", "qwen35-8l", "qwen3-dense-tiny", "llama-tiny");
  INFO(name);
  const case_paths at(name);
  const golden_case c = load_golden(name);
  const auto f =
      succeeds({"generate", "--quiet", "--model", (at.own / "model").string(), "--data",
                (at.own / "batch.safetensors").string(), "--temperature", "0", "--max-tokens",
                std::to_string(c.greedy.size()), "--ignore-end", "--json"});
  CHECK(nlohmann::json::parse(f.out).at("ids").get<std::vector<token_id>>() == c.greedy);
}

TEST_CASE("score gives the log-probabilities of a golden case", "[program][parity]") {
  const case_paths at("qwen35-tiny");
  const golden_case c = load_golden("qwen35-tiny");
  const temporary_folder folder;
  succeeds({"score", "--quiet", "--model", (at.own / "model").string(), "--data",
            (at.own / "batch.safetensors").string(), "--temperature", "0.7", "--out",
            (folder / "s.safetensors").string()});
  CHECK(
      largest_difference(values(folder / "s.safetensors", "logps"), c.expected.at("logps_t0p7")) <=
      2 * c.about.at("tolerance").at("logps_abs").get<double>());
}

}  // namespace longstraw::testing
