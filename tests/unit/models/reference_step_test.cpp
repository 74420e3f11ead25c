// The conventional two-pass check of a whole step: central differences of the loss of a group, the
// loss included, against the reference's gradient and the layer programs' own, for parameters of
// every kind.

#include "support/compare.hpp"
#include "support/model_parity.hpp"

#include <longstraw/models/reference/loss.hpp>
#include <longstraw/models/reference/step.hpp>

#include <catch2/generators/catch_generators.hpp>

#include <algorithm>

namespace longstraw::testing {
namespace {

namespace ref = models::reference;

/// Ratios on both sides of the clip and beyond it; no ratio within 1e-3 of a bound.
models::group given_group(const decoder& d, index prompt_tokens, std::vector<index> responses,
                          index vocabulary, const models::loss_settings& s, unsigned seed) {
  models::group g;
  g.prompt = random_tokens(prompt_tokens, vocabulary, seed);
  const double log_ratios[] = {0.1, -0.4, 0.5, 0.0, -0.15, 0.3, -0.9};
  for (std::size_t r = 0; r < responses.size(); ++r) {
    models::response one;
    one.tokens = random_tokens(responses[r], vocabulary, ++seed);
    one.loss_tokens = responses[r] - (r == 1 ? 1 : 0);  // the last token of one is masked
    one.advantage = r % 2 == 0 ? 0.9 : -0.7;
    g.responses.push_back(one);
  }
  models::loss_settings bare = s;
  bare.beta = 0;
  const auto scores = ref::evaluate_group(d, g, bare, nullptr).scores;
  std::size_t n = 0;
  for (std::size_t r = 0; r < responses.size(); ++r)
    for (const double logp : scores[r].logps) {
      g.responses[r].old_logps.push_back(static_cast<float>(logp - log_ratios[n % 7]));
      g.responses[r].ref_logps.push_back(static_cast<float>(logp + log_ratios[(n + 3) % 7]));
      ++n;
    }
  return g;
}

/// What the layer programs compute in float32, the loss by models/grpo.
std::vector<float> step_gradients(const models::language_model& model, const models::group& g,
                                  const models::loss_settings& s, bool full) {
  const auto gradients = model.parameters()->gradients();
  std::fill(gradients.begin(), gradients.end(), 0.0f);
  model_driver driver(model, 8, 5);
  const auto captured = std::span(g.prompt).first(g.prompt.size() - 1);
  driver_state state = driver.capture(captured);
  for (const models::response& r : g.responses) {
    std::vector<token_id> suffix{g.prompt.back()};
    suffix.insert(suffix.end(), r.tokens.begin(), r.tokens.end() - 1);
    const auto temperature = static_cast<float>(s.temperature);
    const auto scores = driver.score(state, suffix, r.tokens, temperature);
    std::vector<float> d_logps(r.tokens.size());
    models::evaluate_response(d_logps, scores.logps, r.old_logps, r.ref_logps, scores.entropies,
                              r.advantage, r.loss_tokens, models::counts_of(g, s), s);
    driver.replay(state, suffix, r.tokens, d_logps, full, temperature);
  }
  if (full) driver.sweep(state, captured);
  return {gradients.begin(), gradients.end()};
}

models::loss_settings settings_of(models::loss_type type, models::sampling_level level) {
  models::loss_settings s;
  s.type = type;
  s.level = level;
  s.epsilon_high = type == models::loss_type::cispo ? 1.2 : 0.28;
  s.delta = 1.4;
  s.beta = 0.05;
  s.temperature = 0.8;
  return s;
}

}  // namespace

TEST_CASE("the reference counts a group by itself", "[models]") {
  models::group g;
  for (const index tokens : {4, 9, 6}) {
    models::response r;
    r.tokens.resize(static_cast<std::size_t>(tokens));
    r.loss_tokens = tokens == 9 ? 0 : tokens - 1;
    g.responses.push_back(r);
  }
  models::loss_settings s;
  const models::group_counts longest = ref::count_group(g, s);
  CHECK(longest.responses == 3);
  CHECK(longest.loss_tokens == 3 + 5);
  CHECK(longest.max_completion_length == 9);
  s.max_completion_length = 32;
  CHECK(ref::count_group(g, s).max_completion_length == 32);
}

TEST_CASE("losses in double are those of the step", "[models]") {
  using models::loss_type, models::sampling_level;
  const auto type = GENERATE(loss_type::grpo, loss_type::bnpo, loss_type::dr_grpo, loss_type::dapo,
                             loss_type::cispo);
  const auto level = GENERATE(sampling_level::token, sampling_level::sequence);
  const models::loss_settings s = settings_of(type, level);
  const auto logps = random_values<float>(7, 1), old_logps = random_values<float>(7, 2),
             ref_logps = random_values<float>(7, 3);
  for (const double advantage : {0.8, -0.6, 0.0}) {
    models::response r;
    r.tokens.resize(7);
    r.loss_tokens = 5;
    r.advantage = advantage;
    r.old_logps = old_logps;
    r.ref_logps = ref_logps;
    const models::group_counts counts{4, 30, 12};
    std::vector<float> d_logps(7);
    const auto step = models::evaluate_response(d_logps, logps, old_logps, ref_logps, {}, advantage,
                                                5, counts, s);
    std::vector<double> exact = as<double>(logps), d_exact(7);
    const double loss = ref::response_loss(r, exact, counts, s, d_exact);
    INFO(models::to_string(type) << " " << models::to_string(level) << " " << advantage);
    CHECK(std::abs(step.loss - loss) < 1e-12);
    const auto metrics = ref::metrics_of(r, exact, s);
    CHECK(std::abs(step.kl - metrics.kl) < 1e-12);
    CHECK(step.clipped_low + step.clipped_high == metrics.clipped);
    CHECK(relative_error(d_logps, d_exact) < 1e-7);  // rounded once
    // For cispo the weight of a token is a constant: its loss has another derivative.
    if (type != loss_type::cispo)
      CHECK(finite_difference_error(
                exact, d_exact, [&] { return ref::response_loss(r, exact, counts, s); }) < 1e-7);
  }
}

TEST_CASE("a step's gradient is that of finite differences of its whole loss", "[models]") {
  // The truncation error of central differences and, for float32, the bound of
  // language_model_test.cpp.
  constexpr double difference_bound = 1e-5, gradient_bound = 2e-5, step = 1e-5;
  const auto level = GENERATE(models::sampling_level::token, models::sampling_level::sequence);
  const models::loss_settings s = settings_of(models::loss_type::grpo, level);
  unsigned seed = 700;
  for (const auto& [name, config] : small_configs()) {
    const models::language_model model(config, random_parameters(config, ++seed));
    decoder reference(config, model.parameters()->layout(), model.parameters()->weights());
    const models::group g = given_group(reference, 12, {4, 6, 3}, config.vocabulary, s, ++seed);
    const decoder_state state = ref::capture_prompt(reference, g);
    for (const bool full : {false, true}) {
      // Frozen: the loss is taken as a function of the weights with the state of the prompt held.
      const decoder_state* captured = full ? nullptr : &state;
      std::vector<double> gradients(reference.weights().size());
      ref::evaluate_group(reference, g, s, captured, gradients);
      const std::vector<float> float32 = step_gradients(model, g, s, full);
      const double scale = scale_of(gradients, reference.layout().all().size());

      for (const models::parameter& p : reference.layout().all()) {
        const auto begin = gradients.begin() + p.offset;
        const auto largest = std::max_element(
            begin, begin + p.count, [](double a, double b) { return std::abs(a) < std::abs(b); });
        std::vector<double> differences, exact, rounded;
        for (const auto at : {largest - gradients.begin(), p.offset + p.count / 3}) {
          double& w = reference.weights()[static_cast<std::size_t>(at)];
          const double kept = w;
          w = kept + step;
          const double above = ref::evaluate_group(reference, g, s, captured).loss;
          w = kept - step;
          const double below = ref::evaluate_group(reference, g, s, captured).loss;
          w = kept;
          differences.push_back((above - below) / (2 * step));
          exact.push_back(gradients[static_cast<std::size_t>(at)]);
          rounded.push_back(static_cast<double>(float32[static_cast<std::size_t>(at)]));
        }
        INFO(name << ", " << (full ? "full" : "frozen") << ", " << p.name);
        CHECK(scaled_error(exact, differences, scale) < difference_bound);
        CHECK(scaled_error(rounded, differences, scale) < difference_bound + gradient_bound);
      }
    }
  }
}

TEST_CASE("the first update in double is the one of AdamW with the clipped gradient", "[models]") {
  const std::vector<double> weights{1.0, -2.0, 0.5}, gradients{3.0, 0.0, -4.0};
  kernels::adamw_settings adamw{0.1, 0.9, 0.99, 1e-8, 0.01};
  const auto after = ref::first_update(weights, gradients, adamw, 2.5);
  CHECK(std::abs(ref::norm_of(gradients) - 5.0) < 1e-15);
  // A first step has m / (1 - b1) = g and v / (1 - b2) = g^2: every weight moves by the rate.
  CHECK(std::abs(after[0] - (1.0 * (1 - 0.001) - 0.1)) < 1e-8);
  CHECK(std::abs(after[1] - -2.0 * (1 - 0.001)) < 1e-15);
  CHECK(std::abs(after[2] - (0.5 * (1 - 0.001) + 0.1)) < 1e-8);
}

}  // namespace longstraw::testing
