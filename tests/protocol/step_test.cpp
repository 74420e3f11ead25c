// One step through the actors: the same numbers as the golden files, whatever the cut into chunks,
// pages and threads.

#include "support/golden_case.hpp"
#include "support/job_runner.hpp"

#include <longstraw/models/safetensors.hpp>

#include <catch2/generators/catch_generators.hpp>

#include <algorithm>

namespace longstraw::testing {
namespace {

models::group group_of(const golden_case& c) {
  models::group g;
  g.name = "golden batch";
  g.prompt = c.step.prompt;
  for (std::size_t r = 0; r < c.step.responses.size(); ++r) {
    models::response response;
    response.tokens = c.step.responses[r];
    response.loss_tokens = static_cast<index>(response.tokens.size());
    response.advantage = c.advantages[r];
    response.old_logps = c.old_logps[r];
    response.ref_logps = c.ref_logps[r];
    g.responses.push_back(std::move(response));
  }
  return g;
}

actors::step_settings settings_of(const golden_case& c) {
  actors::step_settings s;
  s.loss = c.loss;
  const auto& o = c.about.at("optimizer");
  s.optimizer.adamw = {o.at("lr"), o.at("betas").at(0), o.at("betas").at(1), o.at("eps"),
                       o.at("weight_decay")};
  s.optimizer.max_grad_norm = o.at("max_grad_norm");
  return s;
}

void check_gradients(const golden_case& c) {
  for (const models::parameter& p : c.parameters->layout().all()) {
    const std::string name = c.expected_name(p.name);
    const auto got = c.parameters->gradients(p);
    const double bound = c.bound("grads_frozen_rel", name).value_or(0);
    INFO(p.name);
    CHECK(relative_error(got, c.grads_frozen.at(name)) <= bound);
  }
}

struct cut {
  index chunk_tokens, page_tokens;
  int threads;
};

TEST_CASE("a step through the actors gives the golden gradients and parameters",
          "[protocol][golden]") {
  const char* name = GENERATE("qwen35-tiny", "qwen35-8l", "qwen35-multimodal-prefix",
                              "qwen3-dense-tiny", "llama-tiny");
  const cut at = GENERATE(cut{1024, 256, 1}, cut{7, 16, 2}, cut{64, 1, 1});
  INFO(name << " chunk " << at.chunk_tokens << " page " << at.page_tokens);
  const golden_case c = load_golden(name);
  auto budget = memory::budget::make(0);
  const auto before = copy_of(c.parameters->weights());
  const auto model = std::make_shared<const models::language_model>(c.config, c.parameters);
  actors::runtime_options options;
  options.chunk_tokens = at.chunk_tokens;
  options.page_tokens = at.page_tokens;
  options.threads = at.threads;
  actors::runtime runtime(options, model, budget);
  const models::group g = group_of(c);
  const actors::step_outcome out = runtime.step(g, settings_of(c));

  CHECK(out.committed);
  CHECK(out.replayed == static_cast<index>(g.responses.size()));
  check_gradients(c);
  const double norm = c.about.at("step").at("frozen").at("grad_norm");
  CHECK(std::abs(out.grad_norm - norm) <= 2e-5 * norm);
  for (std::size_t r = 0; r < g.responses.size(); ++r)
    CHECK(relative_error(out.responses[r].logps, c.expected_row("logps", r)) < 1e-5);

  // The update: error of (w' - w) against the size of (w - w0), over all parameters together.
  const auto folder =
      std::filesystem::path(LONGSTRAW_GOLDEN_DIR) / c.about.at("case").get<std::string>();
  const models::safetensors_file after(folder / "after_step_frozen.safetensors");
  double error = 0, size = 0;
  for (const models::parameter& p : c.parameters->layout().all()) {
    std::vector<float> want(static_cast<std::size_t>(p.count));
    after.read_floats(c.expected_name(p.name), want);
    const auto got = c.parameters->weights(p);
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double start = before[static_cast<std::size_t>(p.offset) + i];
      error += (got[i] - want[i]) * (got[i] - want[i]);
      size += (want[i] - start) * (want[i] - start);
    }
  }
  CHECK(std::sqrt(error / size) <=
        c.about.at("tolerance").at("update_rel").at("frozen").get<double>());
}

TEST_CASE(
    "scores and replays run the same arithmetic: unchanged parameters give ratios of exactly 1",
    "[protocol]") {
  const index prompt = GENERATE(1, 2, 3, 65, 200);
  auto m = make_hybrid_model();
  actors::runtime_options options;
  options.chunk_tokens = 64;
  actors::runtime runtime(options, m.model, m.budget);
  models::group g = random_group(prompt, {1, 9, 70}, m.model->config().vocabulary, 5);
  const actors::score_outcome scores = runtime.score(g, 1.0);
  for (std::size_t r = 0; r < g.responses.size(); ++r)
    g.responses[r].old_logps = scores.responses[r].logps;
  actors::step_settings s;
  s.loss.epsilon_low = s.loss.epsilon_high = 0.2;
  const actors::step_outcome out = runtime.step(g, s);
  CHECK(out.ratio_min == 1.0);
  CHECK(out.ratio_max == 1.0);
  CHECK(out.clip_fraction == 0.0);
}

TEST_CASE("a scoring pass of its own changes no bit of the step", "[protocol]") {
  std::vector<float> gradients[2];
  std::vector<float> old_logps[2];
  for (const bool separate : {false, true}) {
    auto m = make_hybrid_model();
    actors::runtime runtime({}, m.model, m.budget);
    const models::group g = random_group(130, {20, 70}, m.model->config().vocabulary, 5);
    actors::step_settings s;
    s.separate_score = separate;
    const actors::step_outcome out = runtime.step(g, s);
    REQUIRE(out.committed);
    CHECK((out.seconds.score > 0) == separate);
    gradients[separate] = copy_of(m.parameters->gradients());
    old_logps[separate] = out.responses[1].old_logps;
  }
  CHECK(gradients[0] == gradients[1]);
  CHECK(old_logps[0] == old_logps[1]);
}

TEST_CASE("the same step has the same bits, also with another thread count", "[protocol]") {
  std::vector<float> first;
  for (const int threads : {1, 1, 2, 3}) {
    auto m = make_hybrid_model();
    actors::runtime_options options;
    options.threads = threads;
    options.chunk_tokens = 64;
    actors::runtime runtime(options, m.model, m.budget);
    const models::group g = random_group(150, {20, 33}, m.model->config().vocabulary, 5);
    actors::step_settings s;
    s.optimizer.adamw.learning_rate = 1e-3;
    REQUIRE(runtime.step(g, s).committed);
    const auto weights = copy_of(m.parameters->weights());
    if (first.empty()) first = weights;
    CHECK(first == weights);
  }
}

TEST_CASE("two steps in a row start from clean gradients", "[protocol]") {
  auto m = make_hybrid_model();
  actors::runtime runtime({}, m.model, m.budget);
  const models::group g = random_group(40, {6, 8}, m.model->config().vocabulary, 5);
  actors::step_settings s;
  s.optimizer.adamw.learning_rate = 0;
  runtime.step(g, s);
  const auto once = copy_of(m.parameters->gradients());
  runtime.step(g, s);
  CHECK(once == copy_of(m.parameters->gradients()));
}

TEST_CASE("a group without signal runs nothing", "[protocol]") {
  auto m = make_hybrid_model();
  actors::runtime runtime({}, m.model, m.budget);
  models::group g = random_group(40, {6, 8}, m.model->config().vocabulary, 5);
  const auto before = copy_of(m.parameters->weights());
  SECTION("equal rewards") {
    for (auto& r : g.responses)
      r.advantage =
          models::advantages_of(std::vector<double>{1, 1}, models::reward_scale::group)[0];
  }
  SECTION("fully masked") {
    for (auto& r : g.responses) r.loss_tokens = 0;
  }
  const actors::step_outcome out = runtime.step(g, {});
  CHECK(out.skipped);
  CHECK_FALSE(out.committed);
  CHECK(out.replayed == 0);
  CHECK(before == copy_of(m.parameters->weights()));
}

TEST_CASE("a gradient that is not finite commits nothing and names its parameter",
          "[protocol][negative]") {
  auto m = make_hybrid_model();
  actors::runtime runtime({}, m.model, m.budget);
  models::group g = random_group(40, {6, 8}, m.model->config().vocabulary, 5);
  const auto before = copy_of(m.parameters->weights());
  actors::step_settings s;
  s.loss.epsilon_high = s.loss.epsilon_low = 1e30;
  g.responses[0].old_logps.assign(6, -1e30f);  // a ratio that overflows
  g.responses[1].old_logps.assign(8, -1.0f);
  CHECK_THROWS_AS(runtime.step(g, s), error);
  CHECK(before == copy_of(m.parameters->weights()));

  // The next group works.
  CHECK(runtime.step(random_group(40, {6, 8}, m.model->config().vocabulary, 7), {}).committed);
}

TEST_CASE("a budget that is too small is an answer before the step starts",
          "[protocol][negative]") {
  auto m = make_hybrid_model();
  auto tight = memory::budget::make(std::size_t{9} << 20);
  actors::runtime_options options;
  options.chunk_tokens = 128;
  actors::runtime runtime(options, m.model, tight);
  const models::group g = random_group(20000, {6, 8}, m.model->config().vocabulary, 5);
  try {
    runtime.step(g, {});
    FAIL("the step must not fit");
  } catch (const error& e) {
    CHECK(e.code() == errc::over_budget);
    const std::string sentence = e.what();
    INFO(sentence);
    CHECK(sentence.find("--memory is 9.0 MiB") != std::string::npos);
    CHECK(sentence.find("conditional state") != std::string::npos);
  }
  CHECK(runtime.step(random_group(40, {6, 8}, m.model->config().vocabulary, 7), {}).committed);
}

TEST_CASE("the peak of each name is what the plan said, and eight responses need no more than two",
          "[protocol]") {
  std::size_t peak_of_two = 0;
  for (const std::size_t responses : {2, 8}) {
    auto m = make_hybrid_model();
    auto budget = memory::budget::make(0);
    actors::runtime runtime({}, m.model, budget);
    const models::group g =
        random_group(600, std::vector<index>(responses, 30), m.model->config().vocabulary, 5);
    REQUIRE(runtime.step(g, {}).committed);
    const std::size_t peak = budget->peak_bytes();
    if (peak_of_two == 0) peak_of_two = peak;
    CHECK(peak == peak_of_two);
    for (const auto& u : budget->report())
      if (u.name == "conditional state") CHECK(u.current_bytes == 0);
  }
}

}  // namespace
}  // namespace longstraw::testing
