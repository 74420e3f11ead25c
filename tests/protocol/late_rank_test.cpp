// A rank that comes late to an exchange: the attempt is rewound, or the job fails and says who was late.

#include "support/job_runner.hpp"

#include <longstraw/models/attention_layer.hpp>
#include <longstraw/models/gated_delta_layer.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace longstraw::testing {
namespace {

/// What the layers of all ranks do, and what was seen of them.
struct delay {
  std::atomic<bool> armed{false};
  std::atomic<int> slept{0};
  std::atomic<index> captures{0};  // chunks, over layers and ranks
};

/// A program that is late once, on rank 1, before its second segment of a pass with gradient.
class late_layer : public models::layer_program {
 public:
  late_layer(std::unique_ptr<models::layer_program> of, std::shared_ptr<delay> d)
      : of_(std::move(of)), delay_(std::move(d)) {}

  std::string_view kind() const override { return of_->kind(); }
  std::span<const models::segment> segments() const override { return of_->segments(); }
  bool gives_state_gradient() const override { return of_->gives_state_gradient(); }
  bool runs_on_ranks() const override { return of_->runs_on_ranks(); }
  models::state_spec state(const models::rank_share& at) const override { return of_->state(at); }
  index activation_floats(index tokens, const models::rank_share& at) const override {
    return of_->activation_floats(tokens, at);
  }
  void forward(std::size_t s, models::layer_pass& p) const override {
    if (s == 0 && (p.writes_pages || !p.recurrent_after.empty())) ++delay_->captures;
    if (s == 1 && p.keep && p.at.rank == 1 && delay_->armed.exchange(false)) {
      ++delay_->slept;
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
    of_->forward(s, p);
  }
  void backward(std::size_t s, models::layer_pass& p) const override { of_->backward(s, p); }
  index given_floats(std::size_t s, models::direction d, index tokens,
                     const models::rank_share& at) const override {
    return of_->given_floats(s, d, tokens, at);
  }
  index give(std::size_t s, models::direction d, const models::layer_pass& p,
             std::span<float> to) const override {
    return of_->give(s, d, p, to);
  }
  void take(std::size_t s, models::direction d, models::layer_pass& p,
            std::span<const std::span<const float>> given) const override {
    of_->take(s, d, p, given);
  }

 private:
  const std::unique_ptr<models::layer_program> of_;
  const std::shared_ptr<delay> delay_;
};

struct late_model {
  small_model plain = make_hybrid_model();
  std::shared_ptr<delay> wait = std::make_shared<delay>();
  std::shared_ptr<const models::language_model> model;

  late_model() {
    const models::model_config& config = plain.model->config();
    std::vector<std::unique_ptr<models::layer_program>> layers;
    for (index l = 0; l < config.layer_count(); ++l) {
      std::unique_ptr<models::layer_program> layer;
      if (config.layers[static_cast<std::size_t>(l)] == models::layer_kind::full_attention)
        layer = std::make_unique<models::attention_layer>(config, l, *plain.parameters);
      else
        layer = std::make_unique<models::gated_delta_layer>(config, l, *plain.parameters);
      layers.push_back(std::make_unique<late_layer>(std::move(layer), wait));
    }
    model = std::make_shared<models::language_model>(config, plain.parameters, std::move(layers));
  }
};

actors::runtime_options two_ranks(index attempts) {
  actors::runtime_options o;
  o.ranks = 2;
  o.attempts = attempts;
  o.chunk_tokens = 16;
  return o;
}

actors::step_settings settings() {
  actors::step_settings s;
  s.optimizer.adamw.learning_rate = 1e-3;
  return s;
}

TEST_CASE("SV-4: a step with a rank that was late once has the bits of an undisturbed step",
          "[protocol]") {
  std::vector<float> weights[2], gradients[2];
  index captures[2];
  for (const bool late : {false, true}) {
    late_model m;
    auto options = two_ranks(2);
    if (late) options.limits.collective = std::chrono::milliseconds(50);
    actors::runtime runtime(options, m.model, m.plain.budget);
    m.wait->armed = late;
    REQUIRE(runtime.step(random_group(40, {6, 9}, m.model->config().vocabulary, 5), settings())
                .committed);
    CHECK(m.wait->slept == (late ? 1 : 0));
    weights[late] = copy_of(m.plain.parameters->weights());
    gradients[late] = copy_of(m.plain.parameters->gradients());
    captures[late] = m.wait->captures;
  }
  CHECK(weights[0] == weights[1]);
  CHECK(gradients[0] == gradients[1]);
  CHECK(captures[0] == captures[1]);  // the captured state was kept
}

TEST_CASE("CO-2: without a further attempt a late rank fails the job by name, and the next works",
          "[protocol][negative]") {
  late_model m;
  auto options = two_ranks(1);
  options.limits.collective = std::chrono::milliseconds(50);
  actors::runtime runtime(options, m.model, m.plain.budget);
  const models::group g = random_group(40, {6, 9}, m.model->config().vocabulary, 5);
  const auto before = copy_of(m.plain.parameters->weights());
  m.wait->armed = true;
  try {
    runtime.step(g, settings());
    FAIL("the step must fail");
  } catch (const error& e) {
    CHECK(e.code() == errc::rank_late);
    const std::string sentence = e.what();
    INFO(sentence);
    CHECK(sentence.find("rank 1 did not reach exchange") != std::string::npos);
    CHECK(sentence.find("of layer 0") != std::string::npos);
  }
  CHECK(before == copy_of(m.plain.parameters->weights()));
  CHECK(runtime.step(g, settings()).committed);
}

/// The first message of that name to the supervisor is lost.
struct lose_first : actors::message_faults {
  std::string message;
  std::atomic<bool> lost{false};
  explicit lose_first(std::string m) : message(std::move(m)) {}
  verdict before(const std::string& actor, const char* name) override {
    if (actor != "supervisor" || message != name || lost.exchange(true)) return verdict::deliver;
    return verdict::drop;
  }
};

TEST_CASE("SV-2: a ledger that misses a contribution is refused by name", "[protocol][negative]") {
  const index ranks = GENERATE(1, 2);
  auto m = make_hybrid_model();
  actors::runtime_options options;
  options.ranks = ranks;
  options.faults = std::make_shared<lose_first>("response_replayed");
  actors::runtime runtime(options, m.model, m.budget);
  const models::group g = random_group(40, {6, 9}, m.model->config().vocabulary, 5);
  const auto before = copy_of(m.parameters->weights());
  try {
    runtime.step(g, settings());
    FAIL("the step must fail");
  } catch (const error& e) {
    const std::string sentence = e.what();
    INFO(sentence);
    CHECK(sentence.find("the ledger has no contribution of response 0 from rank") !=
          std::string::npos);
  }
  CHECK(before == copy_of(m.parameters->weights()));
  CHECK(runtime.step(g, settings()).committed);
}

}  // namespace
}  // namespace longstraw::testing
