#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/kernels/reference/gated_delta.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

template <class T>
struct gates_case {
  index tokens, heads_count;
  std::vector<T> a, b, a_log, dt_bias, d_g, d_beta;

  matrix_view<const T> view(const std::vector<T>& v) const {
    return {v.data(), tokens, heads_count};
  }
};

gates_case<float> make_gates(index tokens, index heads_count, double spread = 2.0) {
  const index n = tokens * heads_count;
  return {tokens,
          heads_count,
          random_values<float>(n, 1, spread),
          random_values<float>(n, 2, spread),
          random_values<float>(heads_count, 3),
          random_values<float>(heads_count, 4),
          random_values<float>(n, 5),
          random_values<float>(n, 6)};
}

gates_case<double> in_double(const gates_case<float>& c) {
  return {c.tokens,          c.heads_count,       as<double>(c.a),
          as<double>(c.b),   as<double>(c.a_log), as<double>(c.dt_bias),
          as<double>(c.d_g), as<double>(c.d_beta)};
}

struct gates_truth {
  std::vector<double> g, beta, d_a, d_b, d_a_log, d_dt_bias;

  explicit gates_truth(const gates_case<double>& c)
      : g(c.a.size()),
        beta(c.a.size()),
        d_a(c.a.size()),
        d_b(c.a.size()),
        d_a_log(c.a_log.size()),
        d_dt_bias(c.a_log.size()) {
    auto result = [&](std::vector<double>& v) {
      return matrix_view<double>(v.data(), c.tokens, c.heads_count);
    };
    reference::gated_delta_gates_forward<double>(result(g), result(beta), c.view(c.a), c.view(c.b),
                                                 c.a_log, c.dt_bias);
    reference::gated_delta_gates_backward<double>(result(d_a), result(d_b), d_a_log, d_dt_bias,
                                                  c.view(c.d_g), c.view(c.d_beta), c.view(c.a),
                                                  c.view(c.b), c.a_log, c.dt_bias);
  }
};

struct gates_results {
  guarded g, beta, d_a, d_b, d_a_log, d_dt_bias;

  gates_results(const gates_case<float>& c, int threads)
      : g(c.tokens * c.heads_count),
        beta(c.tokens * c.heads_count),
        d_a(c.tokens * c.heads_count),
        d_b(c.tokens * c.heads_count),
        d_a_log(c.heads_count, 0.0f),
        d_dt_bias(c.heads_count, 0.0f) {
    runner on(threads);
    auto result = [&](guarded& v) { return v.matrix(c.tokens, c.heads_count); };
    gated_delta_gates_forward(result(g), result(beta), c.view(c.a), c.view(c.b), c.a_log, c.dt_bias,
                              on.exec);
    gated_delta_gates_backward(result(d_a), result(d_b), d_a_log.values(), d_dt_bias.values(),
                               c.view(c.d_g), c.view(c.d_beta), c.view(c.a), c.view(c.b), c.a_log,
                               c.dt_bias, on.exec);
  }
};

}  // namespace

TEST_CASE("the gates equal their reference for any length and head count", "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 63, 65, 1000), heads_count = GENERATE(1, 8, 12, 32);
  CAPTURE(tokens, heads_count);
  const auto c = make_gates(tokens, heads_count);
  const gates_truth want(in_double(c));
  gates_results got(c, 1);
  CHECK(relative_error(got.g.values(), want.g) < float32_bound(1));
  CHECK(relative_error(got.beta.values(), want.beta) < float32_bound(1));
  CHECK(relative_error(got.d_a.values(), want.d_a) < float32_bound(1));
  CHECK(relative_error(got.d_b.values(), want.d_b) < float32_bound(1));
  CHECK(relative_error(got.d_a_log.values(), want.d_a_log) < float32_bound(tokens));
  CHECK(relative_error(got.d_dt_bias.values(), want.d_dt_bias) < float32_bound(tokens));
}

TEST_CASE("the gates' gradients of parameters are added to what is there", "[unit]") {
  const auto c = make_gates(10, 3);
  const gates_truth want(in_double(c));
  std::vector<float> d_a(30), d_b(30), d_a_log(3, 100.0f), d_dt_bias(3, -100.0f);
  runner on(1);
  gated_delta_gates_backward({d_a.data(), 10, 3}, {d_b.data(), 10, 3}, d_a_log, d_dt_bias,
                             c.view(c.d_g), c.view(c.d_beta), c.view(c.a), c.view(c.b), c.a_log,
                             c.dt_bias, on.exec);
  for (std::size_t h = 0; h < 3; ++h) {
    CHECK(std::abs(static_cast<double>(d_a_log[h]) - 100.0 - want.d_a_log[h]) < 1e-4);
    CHECK(std::abs(static_cast<double>(d_dt_bias[h]) + 100.0 - want.d_dt_bias[h]) < 1e-4);
  }
}

TEST_CASE("gates far out stay finite, and a decay is never above one", "[unit]") {
  auto c = make_gates(100, 8, 60.0);
  gates_results got(c, 1);
  for (const float g : got.g.values()) CHECK((std::isfinite(g) && g <= 0.0f));
  for (auto* values : {&got.beta, &got.d_a, &got.d_b, &got.d_a_log, &got.d_dt_bias})
    for (const float x : values->values()) CHECK(std::isfinite(x));
}

TEST_CASE("the gates' reference agrees with finite differences", "[unit]") {
  auto c = in_double(make_gates(4, 3));
  auto loss = [&] {
    const gates_truth t(c);
    double sum = 0;
    for (std::size_t i = 0; i < t.g.size(); ++i) sum += t.g[i] * c.d_g[i] + t.beta[i] * c.d_beta[i];
    return sum;
  };
  const gates_truth gradients(c);
  CHECK(finite_difference_error(c.a, gradients.d_a, loss) < 1e-7);
  CHECK(finite_difference_error(c.b, gradients.d_b, loss) < 1e-7);
  CHECK(finite_difference_error(c.a_log, gradients.d_a_log, loss) < 1e-7);
  CHECK(finite_difference_error(c.dt_bias, gradients.d_dt_bias, loss) < 1e-7);
}

TEST_CASE("the gates' bits do not depend on the thread count", "[unit]") {
  const auto c = make_gates(3000, 8);
  gates_results one(c, 1), two(c, 2), three(c, 3);
  for (auto* other : {&two, &three}) {
    CHECK(same_bits(one.g.values(), other->g.values()));
    CHECK(same_bits(one.d_a.values(), other->d_a.values()));
    CHECK(same_bits(one.d_a_log.values(), other->d_a_log.values()));
    CHECK(same_bits(one.d_dt_bias.values(), other->d_dt_bias.values()));
  }
}

}  // namespace longstraw::testing
