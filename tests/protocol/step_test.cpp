// One step through the actors: the same numbers as the golden files, whatever the cut into chunks,
// pages and threads.

#include "support/golden_case.hpp"
#include "support/job_runner.hpp"

#include <longstraw/models/safetensors.hpp>

#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <limits>
#include <stdexcept>

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

void check_gradients(const golden_case& c, messages::gradient_mode mode) {
  const bool full = mode == messages::gradient_mode::full;
  for (const models::parameter& p : c.parameters->layout().all()) {
    const std::string name = c.expected_name(p.name);
    const auto got = c.parameters->gradients(p);
    const double bound = c.bound(full ? "grads_full_rel" : "grads_frozen_rel", name).value_or(0);
    INFO(p.name);
    CHECK(relative_error(got, (full ? c.grads_full : c.grads_frozen).at(name)) <= bound);
  }
}

/// How a step is cut: the result must not depend on it beyond rounding.
struct cut {
  index chunk_tokens, page_tokens;
  int threads = 1;
  index ranks = 1;
  messages::checkpointing checkpoint = messages::checkpointing::none;
};

void check_golden_step(const char* name, messages::gradient_mode mode, const cut& at) {
  INFO(name << " " << to_string(mode) << " chunk " << at.chunk_tokens << " page " << at.page_tokens
            << " ranks " << at.ranks);
  const golden_case c = load_golden(name);
  auto budget = memory::budget::make(0);
  const auto before = copy_of(c.parameters->weights());
  const auto model = std::make_shared<const models::language_model>(c.config, c.parameters);
  actors::runtime_options options;
  options.chunk_tokens = at.chunk_tokens;
  options.page_tokens = at.page_tokens;
  options.threads = at.threads;
  options.ranks = at.ranks;
  actors::runtime runtime(options, model, budget);
  const models::group g = group_of(c);
  actors::step_settings settings = settings_of(c);
  settings.gradient = mode;
  settings.checkpoint = at.checkpoint;
  const actors::step_outcome out = runtime.step(g, settings);

  CHECK(out.committed);
  CHECK(out.replayed == static_cast<index>(g.responses.size()));
  check_gradients(c, mode);
  const std::string kind(to_string(mode));
  const double norm = c.about.at("step").at(kind).at("grad_norm");
  CHECK(std::abs(out.grad_norm - norm) <= 2e-5 * norm);
  for (std::size_t r = 0; r < g.responses.size(); ++r)
    CHECK(relative_error(out.responses[r].logps, c.expected_row("logps", r)) < 1e-5);

  // The update: error of (w' - w) against the size of (w - w0), over all parameters together.
  const auto folder =
      std::filesystem::path(LONGSTRAW_GOLDEN_DIR) / c.about.at("case").get<std::string>();
  const models::safetensors_file after(folder / ("after_step_" + kind + ".safetensors"));
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
  CHECK(std::sqrt(error / size) <= c.about.at("tolerance").at("update_rel").at(kind).get<double>());
}

const char* golden_name() {
  return GENERATE("qwen35-tiny", "qwen35-8l", "qwen35-multimodal-prefix", "qwen3-dense-tiny",
                  "llama-tiny");
}

using enum messages::gradient_mode;
using enum messages::checkpointing;

TEST_CASE("a step through the actors gives the golden gradients and parameters",
          "[protocol][golden]") {
  const char* name = golden_name();
  check_golden_step(name, frozen, GENERATE(cut{1024, 256, 1}, cut{7, 16, 2}, cut{64, 1, 1}));
}

TEST_CASE("the full gradient and its step are the golden ones on any ranks and chunks",
          "[protocol][golden]") {
  const char* name = golden_name();
  const index ranks = GENERATE(1, 2, 3, 4, 8);
  const index chunk = GENERATE(1, 7, 64, 1000);
  check_golden_step(
      name, full,
      {chunk, chunk == 7 ? index{3} : index{16}, 1, ranks, ranks % 2 == 0 ? layer : none});
}

TEST_CASE("the frozen gradient and its step are the golden ones on any ranks",
          "[protocol][golden]") {
  const char* name = golden_name();
  const index ranks = GENERATE(2, 3, 4, 8, 16);
  check_golden_step(name, frozen, GENERATE_REF(cut{64, 16, 1, ranks}, cut{7, 5, 1, ranks, layer}));
}

TEST_CASE("checkpointing rebuilds the very bits", "[protocol]") {
  const index ranks = GENERATE(1, 2);
  std::vector<std::vector<float>> gradients;
  for (const auto kept : {none, layer}) {
    auto m = make_hybrid_model();
    actors::runtime_options options;
    options.chunk_tokens = 20;
    options.ranks = ranks;
    actors::runtime runtime(options, m.model, m.budget);
    actors::step_settings s;
    s.gradient = full;
    s.checkpoint = kept;
    runtime.step(random_group(90, {6, 8}, m.model->config().vocabulary, 7), s);
    gradients.push_back(copy_of(m.parameters->gradients()));
  }
  CHECK(gradients[0] == gradients[1]);
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

/// Passes hidden states on; its backward poisons the gradient of a parameter.
class poisoned_layer : public models::layer_program {
 public:
  explicit poisoned_layer(models::vector_parameter p) : parameter_(p) {}
  std::string_view kind() const override { return "poisoned"; }
  std::span<const models::segment> segments() const override {
    static constexpr models::segment all[] = {{"pass"}};
    return all;
  }
  models::state_spec state(const models::rank_share&) const override { return {}; }
  index activation_floats(index, const models::rank_share&) const override { return 0; }
  void forward(std::size_t, models::layer_pass&) const override {}
  void backward(std::size_t, models::layer_pass& p) const override {
    parameter_.d(p.gradients)[0] = std::numeric_limits<float>::quiet_NaN();
  }

 private:
  models::vector_parameter parameter_;
};

TEST_CASE("a gradient that is not finite commits nothing and names its parameter",
          "[protocol][negative]") {
  auto config = make_hybrid_model().model->config();
  config.layers = {models::layer_kind::full_attention};
  auto layout = models::layout_of(config);
  layout.add("poisoned.weight", {1});
  auto budget = memory::budget::make(0);
  auto store =
      std::make_shared<models::parameter_store>(layout, models::parameter_use::train, *budget);
  for (float& w : store->weights()) w = 0.01f;
  std::vector<std::unique_ptr<models::layer_program>> layers;
  layers.push_back(std::make_unique<poisoned_layer>(models::vector_of(*store, "poisoned.weight")));
  actors::runtime runtime(
      {}, std::make_shared<models::language_model>(config, store, std::move(layers)), budget);
  const auto before = copy_of(store->weights());
  try {
    runtime.step(random_group(9, {3, 4}, config.vocabulary, 5), {});
    FAIL("the step must fail");
  } catch (const error& e) {
    CHECK(e.code() == errc::not_finite);
    CHECK(std::string(e.what()).find("poisoned.weight") != std::string::npos);
  }
  CHECK(before == copy_of(store->weights()));
}

/// Passes hidden states on and keeps no state.
class stateless_layer : public models::layer_program {
 public:
  std::string_view kind() const override { return "stateless"; }
  std::span<const models::segment> segments() const override {
    static constexpr models::segment all[] = {{"pass", models::exchange::none, false}};
    return all;
  }
  models::state_spec state(const models::rank_share&) const override { return {}; }
  index activation_floats(index, const models::rank_share&) const override { return 0; }
  void forward(std::size_t, models::layer_pass&) const override {}
  void backward(std::size_t, models::layer_pass&) const override {}
  bool gives_state_gradient() const override { return true; }
  bool runs_on_ranks() const override { return true; }
};

TEST_CASE("a last layer without state ends its captured chunks", "[protocol]") {
  const index ranks = GENERATE(1, 2);
  auto config = make_hybrid_model().model->config();
  config.layers = {models::layer_kind::full_attention};
  auto budget = memory::budget::make(0);
  auto store = std::make_shared<models::parameter_store>(models::layout_of(config),
                                                         models::parameter_use::train, *budget);
  for (float& w : store->weights()) w = 0.01f;
  std::vector<std::unique_ptr<models::layer_program>> layers;
  layers.push_back(std::make_unique<stateless_layer>());
  actors::runtime_options options;
  options.ranks = ranks;
  options.chunk_tokens = 4;
  actors::runtime runtime(
      options, std::make_shared<models::language_model>(config, store, std::move(layers)), budget);
  actors::step_settings s;
  s.gradient = full;
  CHECK(runtime.step(random_group(9, {3, 4}, config.vocabulary, 5), s).committed);
}

TEST_CASE("a model without moments takes one update, with the bits of one that keeps them",
          "[protocol]") {
  const index ranks = GENERATE(1, 2);
  actors::runtime_options options;
  options.ranks = ranks;
  std::vector<std::vector<float>> weights;
  for (const auto use : {models::parameter_use::train, models::parameter_use::train_once}) {
    auto m = make_hybrid_model(3, use);
    actors::runtime runtime(options, m.model, m.budget);
    const models::group g = random_group(40, {6, 8}, m.model->config().vocabulary, 5);
    actors::step_settings s;
    s.optimizer.adamw.weight_decay = 0.1;
    REQUIRE(runtime.step(g, s).committed);
    weights.push_back(copy_of(m.parameters->weights()));
    if (m.parameters->keeps_moments()) continue;
    s.optimizer_step = 2;
    try {
      runtime.step(g, s);
      FAIL("the moments of the first update are gone");
    } catch (const error& e) {
      CHECK(e.code() == errc::bad_input);
      CHECK(std::string(e.what()).find("optimizer_step is 2, expected 1") != std::string::npos);
    }
    CHECK(weights.back() == copy_of(m.parameters->weights()));
  }
  CHECK(weights[0] == weights[1]);
}

TEST_CASE("a loss that is not finite commits nothing, and the next group works",
          "[protocol][negative]") {
  auto m = make_hybrid_model();
  actors::runtime runtime({}, m.model, m.budget);
  models::group g = random_group(40, {6, 8}, m.model->config().vocabulary, 5);
  const auto before = copy_of(m.parameters->weights());
  actors::step_settings s;
  s.loss.epsilon_high = s.loss.epsilon_low = 1e30;
  g.responses[0].old_logps.assign(6, -1e30f);  // a ratio that overflows
  g.responses[1].old_logps.assign(8, -1.0f);
  try {
    runtime.step(g, s);
    FAIL("the step must fail");
  } catch (const error& e) {
    CHECK(e.code() == errc::not_finite);
  }
  CHECK(before == copy_of(m.parameters->weights()));
  CHECK(runtime.step(random_group(40, {6, 8}, m.model->config().vocabulary, 7), {}).committed);
}

TEST_CASE("an operation that exceeds its deadline ends the job and the runtime",
          "[protocol][negative]") {
  auto m = make_hybrid_model();
  actors::runtime_options options;
  options.limits.operation = std::chrono::milliseconds(1);
  options.limits.watchdog = std::chrono::milliseconds(1);
  options.chunk_tokens = 4096;
  actors::runtime runtime(options, m.model, m.budget);
  const auto before = copy_of(m.parameters->weights());
  const models::group g = random_group(4000, {6, 8}, m.model->config().vocabulary, 5);
  bool committed = false;
  try {
    committed = runtime.step(g, {}).committed;
  } catch (const error& e) {
    CHECK(e.code() == errc::timed_out);
  }
  CHECK_FALSE(committed);
  CHECK(before == copy_of(m.parameters->weights()));
}

TEST_CASE("a caller that throws while a job runs stops the job", "[protocol][negative]") {
  auto m = make_hybrid_model();
  actors::runtime_options options;
  options.chunk_tokens = 8;
  options.on_progress = [](const messages::job&) -> bool { throw std::runtime_error("enough"); };
  actors::runtime runtime(options, m.model, m.budget);
  const models::group g = random_group(6000, {6, 8}, m.model->config().vocabulary, 5);
  CHECK_THROWS_AS(runtime.step(g, {}), std::runtime_error);
}

TEST_CASE("what comes through the front door is checked", "[protocol][negative]") {
  auto m = make_hybrid_model();
  actors::runtime_options options;
  options.chunk_tokens = 0;
  CHECK_THROWS_AS(actors::runtime(options, m.model, m.budget), error);
  actors::runtime runtime({}, m.model, m.budget);
  const models::group good = random_group(9, {3, 4}, m.model->config().vocabulary, 5);
  models::group bad = good;
  bad.prompt[2] = static_cast<token_id>(m.model->config().vocabulary);
  CHECK_THROWS_AS(runtime.step(bad, {}), error);
  bad = good;
  bad.responses[1].old_logps.assign(3, -1.0f);
  CHECK_THROWS_AS(runtime.step(bad, {}), error);
  bad = good;
  bad.responses[0].loss_tokens = 4;
  CHECK_THROWS_AS(runtime.step(bad, {}), error);
  actors::generate_settings endless;
  endless.max_tokens = index{1} << 40;
  CHECK_THROWS_AS(runtime.generate(good, endless), error);
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

TEST_CASE("a budget that fits the frozen gradient only says so before the step",
          "[protocol][negative]") {
  auto m = make_hybrid_model();
  const models::group g = random_group(4000, {6, 8}, m.model->config().vocabulary, 5);
  actors::runtime_options options;
  options.chunk_tokens = 128;
  actors::step_settings s;
  const auto bytes = [&] {
    actors::runtime unlimited(options, m.model, memory::budget::make(0));
    return unlimited.step_plan(g, s).total();
  };
  const std::size_t for_frozen = bytes();
  s.gradient = full;
  const std::size_t for_full = bytes();
  REQUIRE(for_full > for_frozen);
  constexpr std::size_t scratch = kernels::executor::default_scratch_bytes;
  const auto tight = memory::budget::make(scratch + for_frozen + (for_full - for_frozen) / 2);
  actors::runtime runtime(options, m.model, tight);
  try {
    runtime.step(g, s);
    FAIL("the step must not fit");
  } catch (const error& e) {
    CHECK(e.code() == errc::over_budget);
    const std::string sentence = e.what();
    INFO(sentence);
    CHECK(sentence.find("gradient pages") != std::string::npos);
    CHECK(sentence.find("--gradient frozen would fit with " +
                        memory::readable_bytes(scratch + for_frozen)) != std::string::npos);
    CHECK(sentence.find("full misses " + memory::readable_bytes((for_full - for_frozen + 1) / 2)) !=
          std::string::npos);
  }
  s.gradient = frozen;
  CHECK(runtime.step(g, s).committed);
}

TEST_CASE("the peak of each name is what the plan said, whatever the size of the group",
          "[protocol]") {
  const auto mode = GENERATE(frozen, full);
  const auto kept = GENERATE(none, layer);
  const index ranks = GENERATE(1, 3);
  INFO(to_string(mode) << " ranks " << ranks);
  std::size_t peak_of_two = 0;
  for (const std::size_t responses : {2, 32}) {
    auto m = make_hybrid_model();
    auto budget = memory::budget::make(0);
    actors::runtime_options options;
    options.ranks = ranks;
    options.chunk_tokens = 200;
    actors::runtime runtime(options, m.model, budget);
    actors::step_settings s;
    s.gradient = mode;
    s.checkpoint = kept;
    const models::group g =
        random_group(600, std::vector<index>(responses, 30), m.model->config().vocabulary, 5);
    const auto plan = runtime.step_plan(g, s);
    REQUIRE(runtime.step(g, s).committed);
    std::size_t seen = 0, peak = 0;
    for (const auto& u : budget->report()) {
      const auto planned = plan.bytes.find(u.name);
      if (u.name != "staging") peak += u.peak_bytes;
      if (planned == plan.bytes.end()) continue;
      INFO(u.name);
      if (u.name == "staging")  // as many buffers as the ranks' pace asks for
        CHECK(u.peak_bytes <= planned->second);
      else
        CHECK(u.peak_bytes == planned->second);
      if (u.name == "conditional state" || u.name == "gradient pages" ||
          u.name == "state snapshots")
        CHECK(u.current_bytes == 0);
      ++seen;
    }
    CHECK(seen == plan.bytes.size());
    if (peak_of_two == 0) peak_of_two = peak;
    CHECK(peak == peak_of_two);
  }
}

TEST_CASE("more ranks than tokens, heads or pages give what one rank gives", "[protocol]") {
  // Two captured tokens and suffixes of one token: most ranks own nothing, slices are shorter than the convolution.
  const index prompt = GENERATE(1, 2, 3, 5);
  const auto mode = GENERATE(frozen, full);
  const index ranks = GENERATE(2, 5, 16);
  INFO("prompt " << prompt << " ranks " << ranks << " " << to_string(mode));
  std::vector<std::vector<float>> gradients;
  std::vector<actors::step_outcome> outcomes;
  for (const index n : {index{1}, ranks}) {
    auto m = make_hybrid_model();
    actors::runtime_options options;
    options.ranks = n;
    options.chunk_tokens = 2;
    actors::runtime runtime(options, m.model, m.budget);
    actors::step_settings s;
    s.gradient = mode;
    outcomes.push_back(
        runtime.step(random_group(prompt, {1, 2, 7}, m.model->config().vocabulary, 7), s));
    gradients.push_back(copy_of(m.parameters->gradients()));
  }
  CHECK(relative_error(gradients[1], gradients[0]) < 1e-5);
  CHECK(std::abs(outcomes[1].grad_norm / outcomes[0].grad_norm - 1) < 1e-5);
  for (std::size_t r = 0; r < 3; ++r)
    CHECK(relative_error(outcomes[1].responses[r].logps, outcomes[0].responses[r].logps) < 1e-5);
}

TEST_CASE("the same ranks give the same bits, with any number of threads", "[protocol]") {
  const auto mode = GENERATE(frozen, full);
  std::vector<std::vector<float>> weights, moments;
  for (const int threads : {1, 1, 3}) {
    auto m = make_hybrid_model();
    actors::runtime_options options;
    options.ranks = 3;
    options.threads = threads;
    options.chunk_tokens = 50;
    actors::runtime runtime(options, m.model, m.budget);
    actors::step_settings s;
    s.gradient = mode;
    s.optimizer.adamw.learning_rate = 1e-3;
    runtime.step(random_group(120, {3, 30}, m.model->config().vocabulary, 7), s);
    weights.push_back(copy_of(m.parameters->weights()));
    moments.push_back(copy_of(m.parameters->second_moments()));
  }
  CHECK(weights[0] == weights[1]);
  CHECK(weights[0] == weights[2]);
  CHECK(moments[0] == moments[1]);
  CHECK(moments[0] == moments[2]);
}

TEST_CASE("ranks score what one rank scores, and score what they replay bit for bit",
          "[protocol]") {
  auto m = make_hybrid_model();
  const models::group g = random_group(120, {1, 9, 70}, m.model->config().vocabulary, 5);
  const auto score_on = [&](index ranks) {
    actors::runtime_options options;
    options.ranks = ranks;
    options.chunk_tokens = 50;
    actors::runtime runtime(options, m.model, memory::budget::make(0));
    return runtime.score(g, 0.7).responses;
  };
  const auto one = score_on(1), three = score_on(3);
  for (std::size_t r = 0; r < one.size(); ++r) {
    CHECK(relative_error(three[r].logps, one[r].logps) < 1e-5);
    CHECK(relative_error(three[r].entropies, one[r].entropies) < 1e-5);
  }
  actors::runtime_options options;
  options.ranks = 3;
  options.chunk_tokens = 50;
  actors::runtime runtime(options, m.model, m.budget);
  actors::step_settings s;
  s.separate_score = true;
  const auto out = runtime.step(g, s);
  CHECK(out.ratio_min == 1.0);
  CHECK(out.ratio_max == 1.0);
}

TEST_CASE(
    "losses use global counts: a short and a long response weigh by their tokens on any ranks",
    "[protocol]") {
  std::vector<actors::step_outcome> outcomes;
  for (const index ranks : {1, 4}) {
    auto m = make_hybrid_model();
    actors::runtime_options options;
    options.ranks = ranks;
    actors::runtime runtime(options, m.model, m.budget);
    actors::step_settings s;
    s.loss.type = models::loss_type::bnpo;  // the mean over the tokens of the group
    outcomes.push_back(
        runtime.step(random_group(40, {3, 300}, m.model->config().vocabulary, 7), s));
  }
  CHECK(std::abs(outcomes[1].loss - outcomes[0].loss) < 1e-6);
  CHECK(std::abs(outcomes[1].grad_norm / outcomes[0].grad_norm - 1) < 1e-5);
}

}  // namespace
}  // namespace longstraw::testing
