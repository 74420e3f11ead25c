#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/reference/head.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;
namespace ref = kernels::reference;

namespace {

struct head_case {
  index tokens, width, vocabulary;
  float temperature;
  std::vector<float> hidden, weight, d_logps;
  std::vector<token_id> targets;
  head_case(index t, index w, index v, float temp)
      : tokens(t),
        width(w),
        vocabulary(v),
        temperature(temp),
        hidden(random_values<float>(t * w, 1)),
        weight(random_values<float>(v * w, 2, 0.3)),
        d_logps(random_values<float>(t, 3)) {
    std::mt19937 engine(4);
    for (index i = 0; i < t; ++i)
      targets.push_back(static_cast<token_id>(engine() % static_cast<unsigned>(v)));
  }
  cmat hidden_view() const { return {hidden.data(), tokens, width}; }
  cmat weight_view() const { return {weight.data(), vocabulary, width}; }
};

struct head_results {
  guarded logps, entropies, lse, d_hidden, d_weight;
  std::vector<float> workspace;
  explicit head_results(const head_case& c)
      : logps(c.tokens),
        entropies(c.tokens),
        lse(c.tokens),
        d_hidden(c.tokens * c.width),
        d_weight(c.vocabulary * c.width, 0.5f),
        workspace(static_cast<std::size_t>(head_workspace_floats(c.tokens, c.vocabulary)),
                  std::nanf("")) {}
  void forward(const head_case& c, executor& on) {
    head_forward(logps.values(), entropies.values(), lse.values(), c.hidden_view(), c.weight_view(),
                 c.targets, c.temperature, workspace, on);
  }
  void backward(const head_case& c, bool kept, executor& on) {
    head_backward(d_hidden.matrix(c.tokens, c.width), d_weight.matrix(c.vocabulary, c.width),
                  c.d_logps, lse.values(), c.hidden_view(), c.weight_view(), c.targets,
                  c.temperature, workspace, kept, on);
  }
};

}  // namespace

TEST_CASE("the head's log-probabilities, entropies and gradients equal the reference",
          "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 63, 65, 300);
  const index vocabulary = GENERATE(1, 77, 1500);
  const float temperature = GENERATE(1.0f, 0.7f);
  const bool kept = GENERATE(false, true);
  if (kept && tokens > head_block_tokens(vocabulary)) return;
  CAPTURE(tokens, vocabulary, temperature, kept);
  const head_case c(tokens, 40, vocabulary, temperature);
  const auto hidden = as<double>(c.hidden), weight = as<double>(c.weight),
             d_logps = as<double>(c.d_logps);
  const auto n = static_cast<std::size_t>(tokens);
  std::vector<double> logps(n), entropies(n), lse(n), d_hidden(hidden.size()),
      d_weight(weight.size(), 0.5);
  const matrix_view<const double> h(hidden.data(), tokens, 40), w(weight.data(), vocabulary, 40);
  ref::head_forward(std::span(logps), std::span(entropies), std::span(lse), h, w, c.targets,
                    temperature);
  ref::head_backward(matrix_view(d_hidden.data(), tokens, 40),
                     matrix_view(d_weight.data(), vocabulary, 40), d_logps, lse, h, w, c.targets,
                     temperature);
  runner on(2);
  head_results got(c);
  got.forward(c, on.exec);
  got.backward(c, kept, on.exec);
  const double bound = float32_bound(200);
  // Relative to a log-probability's usual size: for a vocabulary of one, all are zero.
  for (std::size_t t = 0; t < n; ++t) {
    REQUIRE(got.logps.values()[t] <= 0);
    REQUIRE(std::abs(got.logps.values()[t] - logps[t]) < 1e-5);
    REQUIRE(std::abs(got.entropies.values()[t] - entropies[t]) < 1e-5);
    REQUIRE(std::abs(got.lse.values()[t] - lse[t]) < 1e-5);
  }
  CHECK(relative_error(got.d_weight.values(), d_weight) < bound);
  if (vocabulary > 1) CHECK(relative_error(got.d_hidden.values(), d_hidden) < bound);
}

TEST_CASE("the head stays exact at a vocabulary of 248,320 and hidden values up to 25",
          "[unit][parity]") {
  head_case c(20, 16, 248'320,
              1.0f);  // more tokens than one block of logits: tiles of the vocabulary
  REQUIRE(head_block_tokens(c.vocabulary) < c.tokens);
  for (float& x : c.hidden) x = std::clamp(x * 12.0f, -25.0f, 25.0f);
  c.targets[3] = 0;
  c.targets[4] = 248'319;
  const auto hidden = as<double>(c.hidden), weight = as<double>(c.weight);
  std::vector<double> logps(20), entropies(20), lse(20);
  ref::head_forward(std::span(logps), std::span(entropies), std::span(lse),
                    matrix_view(hidden.data(), 20, 16),
                    matrix_view(weight.data(), c.vocabulary, 16), c.targets, 1.0);
  runner on(2);
  head_results got(c);
  got.forward(c, on.exec);
  for (std::size_t t = 0; t < 20; ++t) {
    CHECK(std::abs(got.logps.values()[t] - logps[t]) < 1e-4);
    CHECK(std::abs(got.entropies.values()[t] - entropies[t]) < 1e-4);
    CHECK(got.logps.values()[t] <= 0);
  }
}

TEST_CASE("a certain token has log-probability zero, never more", "[unit]") {
  const index tokens = 100;
  head_case c(tokens, 8, 600, 1.0f);
  for (index t = 0; t < tokens; ++t) {
    // The target's row of the weight equals the hidden state, scaled: its logit towers over the
    // others.
    const auto at = static_cast<std::size_t>(t);
    c.targets[at] = static_cast<token_id>(t);
    for (index i = 0; i < 8; ++i)
      c.weight[static_cast<std::size_t>(t * 8 + i)] =
          0.5f * static_cast<float>(t) * c.hidden[static_cast<std::size_t>(t * 8 + i)];
  }
  runner on(1);
  head_results got(c);
  got.forward(c, on.exec);
  for (float logp : got.logps.values()) REQUIRE(logp <= 0);
}

TEST_CASE("the head gives the same bits on any number of threads and for any block of tokens",
          "[unit]") {
  const head_case c(40, 64, 130'000, 0.9f);
  runner one(1);
  head_results first(c);
  first.forward(c, one.exec);
  first.backward(c, false, one.exec);
  for (int threads : {2, 3}) {
    runner on(threads);
    head_results got(c);
    got.forward(c, on.exec);
    got.backward(c, false, on.exec);
    CHECK(same_bits(first.logps.values(), got.logps.values()));
    CHECK(same_bits(first.entropies.values(), got.entropies.values()));
    CHECK(same_bits(first.d_hidden.values(), got.d_hidden.values()));
    CHECK(same_bits(first.d_weight.values(), got.d_weight.values()));
  }
}

TEST_CASE("the head reaches rows of the weight beyond 31 bits", "[unit]") {
  const index stride = 1'000'000'000;
  sparse_floats far(stride * 5 + 64), far_d(stride * 5 + 64);
  const head_case c(3, 24, 5, 1.0f);
  for (index v = 0; v < 5; ++v) std::copy_n(c.weight.data() + v * 24, 24, far.data() + v * stride);
  runner on(1);
  head_results near(c);
  near.forward(c, on.exec);
  near.backward(c, true, on.exec);
  head_results got(c);
  const cmat weight(far.data(), 5, 24, stride);
  head_forward(got.logps.values(), got.entropies.values(), got.lse.values(), c.hidden_view(),
               weight, c.targets, 1.0f, got.workspace, on.exec);
  head_backward(got.d_hidden.matrix(3, 24), {far_d.data(), 5, 24, stride}, c.d_logps,
                got.lse.values(), c.hidden_view(), weight, c.targets, 1.0f, got.workspace, true,
                on.exec);
  CHECK(relative_error(got.logps.values(), near.logps.values()) < 1e-6);
  CHECK(relative_error(got.d_hidden.values(), near.d_hidden.values()) < 1e-5);
  for (index v = 0; v < 5; ++v)
    for (index i = 0; i < 24; ++i)
      REQUIRE(std::abs(far_d.data()[v * stride + i] + 0.5f -
                       near.d_weight.values()[static_cast<std::size_t>(v * 24 + i)]) < 1e-5f);
}

TEST_CASE("logits for sampling are plain products", "[unit][parity]") {
  const head_case c(1, 100, 500, 0.5f);
  const auto hidden = as<double>(c.hidden), weight = as<double>(c.weight);
  std::vector<double> want(500);
  ref::head_logits(matrix_view(want.data(), 1, 500), matrix_view(hidden.data(), 1, 100),
                   matrix_view(weight.data(), 500, 100));
  runner on(1);
  guarded logits(500);
  head_logits(logits.matrix(1, 500), c.hidden_view(), c.weight_view(), on.exec);
  CHECK(relative_error(logits.values(), want) < float32_bound(100));
}

TEST_CASE("the head reference's gradients are its finite differences", "[unit]") {
  const index tokens = 4, width = 5, vocabulary = 11;
  auto hidden = random_values(tokens * width, 1), weight = random_values(vocabulary * width, 2);
  const auto d_logps = random_values(tokens, 3);
  const std::vector<token_id> targets{0, 10, 4, 4};
  std::vector<double> logps(4), entropies(4), lse(4), d_hidden(20), d_weight(55);
  auto forward = [&] {
    ref::head_forward(std::span(logps), std::span(entropies), std::span(lse),
                      matrix_view(hidden.data(), tokens, width),
                      matrix_view(weight.data(), vocabulary, width), targets, 0.7);
    double sum = 0;
    for (std::size_t i = 0; i < 4; ++i) sum += logps[i] * d_logps[i];
    return sum;
  };
  forward();
  ref::head_backward(matrix_view(d_hidden.data(), tokens, width),
                     matrix_view(d_weight.data(), vocabulary, width), d_logps, lse,
                     matrix_view(hidden.data(), tokens, width),
                     matrix_view(weight.data(), vocabulary, width), targets, 0.7);
  CHECK(finite_difference_error(hidden, d_hidden, forward) < 1e-8);
  CHECK(finite_difference_error(weight, d_weight, forward) < 1e-8);
}

}  // namespace longstraw::testing
