#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/adamw.hpp>
#include <longstraw/kernels/reference/adamw.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

/// Largest difference in units of the last place of `want`, after `slack` is taken off.
double ulps(std::span<const float> got, const std::vector<double>& want, double slack) {
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const float size = std::abs(static_cast<float>(want[i]));
    const double ulp = static_cast<double>(std::nextafter(size, 1e30f)) - static_cast<double>(size);
    const double off = std::abs(static_cast<double>(got[i]) - want[i]);
    worst = std::isnan(off) ? off : std::max(worst, std::max(0.0, off - slack) / ulp);
  }
  return worst;
}

}  // namespace

TEST_CASE("AdamW stays within two units in the last place of its definition over several steps",
          "[unit][parity]") {
  const index n = GENERATE(0, 1, 15, 1000);
  const double scale = GENERATE(1.0, 0.037), beta1 = GENERATE(0.9, 0.3);
  CAPTURE(n, scale, beta1);
  const adamw_settings s{
      .learning_rate = 1e-3, .beta1 = beta1, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1};
  auto weights = random_values<float>(n, 1), m = std::vector<float>(weights.size()), v = m;
  runner on(1);
  for (index step = 1; step <= 3; ++step) {
    const auto g = random_values<float>(n, 10 + static_cast<unsigned>(step), 0.01);
    // Each step's truth starts from what float32 had before it: rounding of earlier steps is not
    // this step's error.
    auto want = as<double>(weights), want_m = as<double>(m), want_v = as<double>(v);
    reference::adamw_update<double>(want, want_m, want_v, as<double>(g), scale, s, step);
    adamw_update(weights, m, v, g, scale, s, step, on.exec);
    CHECK(ulps(weights, want, 1e-6 * s.learning_rate) <= 2.0);
    CHECK(relative_error(m, want_m) < float32_bound(1));
    CHECK(relative_error(v, want_v) < float32_bound(1));
  }
}

TEST_CASE("AdamW's first step moves every weight by the learning rate against its gradient",
          "[unit]") {
  std::vector<float> w = {1.0f, -2.0f, 0.5f}, m(3), v(3);
  const std::vector<float> g = {0.3f, -1e-3f, 70.0f};
  runner on(1);
  adamw_update(w, m, v, g, 1.0, {.learning_rate = 0.01, .weight_decay = 0.0}, 1, on.exec);
  CHECK(std::abs(w[0] - 0.99f) < 1e-6f);
  CHECK(std::abs(w[1] + 1.99f) < 1e-6f);
  CHECK(std::abs(w[2] - 0.49f) < 1e-6f);
}

TEST_CASE("AdamW without moments gives weights the bits of moments that begin at zero", "[unit]") {
  const index n = GENERATE(1, 15, 16, 1000);
  const double beta1 = GENERATE(0.9, 0.3);
  const auto g = random_values<float>(n, 7);
  const adamw_settings s{.learning_rate = 1e-3, .beta1 = beta1, .weight_decay = 0.1};
  auto kept = random_values<float>(n, 8), dropped = kept;
  std::vector<float> m(kept.size()), v(kept.size());
  runner on(1);
  adamw_update(kept, m, v, g, 0.25, s, 1, on.exec);
  adamw_update(dropped, {}, {}, g, 0.25, s, 1, on.exec);
  CHECK(kept == dropped);
}

TEST_CASE("AdamW decays a weight whose gradient is zero and leaves its moments zero", "[unit]") {
  std::vector<float> w(40, 2.0f), m(40), v(40);
  runner on(2);
  adamw_update(w, m, v, std::vector<float>(40), 1.0, {.learning_rate = 0.1, .weight_decay = 0.5}, 1,
               on.exec);
  for (const float x : w) CHECK(x == 2.0f * 0.95f);
  for (std::size_t i = 0; i < 40; ++i) CHECK((m[i] == 0.0f && v[i] == 0.0f));
}

TEST_CASE("AdamW and the sum of squares give the same bits on any number of threads", "[unit]") {
  const index n = 100'003;
  const auto g = random_values<float>(n, 5);
  std::vector<std::vector<float>> results;
  std::vector<double> sums;
  for (const int threads : {1, 2, 3}) {
    runner on(threads);
    auto w = random_values<float>(n, 1), m = random_values<float>(n, 2, 0.1),
         v = std::vector<float>(w.size(), 0.1f);
    adamw_update(w, m, v, g, 0.5, {}, 7, on.exec);
    results.push_back(w);
    sums.push_back(sum_of_squares(g, on.exec));
  }
  CHECK(same_bits(results[0], results[1]));
  CHECK(same_bits(results[0], results[2]));
  CHECK(sums[0] == sums[1]);
  CHECK(sums[0] == sums[2]);
}

TEST_CASE("the sum of squares is exact to double precision", "[unit][parity]") {
  const index n = GENERATE(0, 1, 31, 32, 33, 70'000);
  CAPTURE(n);
  const auto x = random_values<float>(n, 3, 1e3);
  runner on(1);
  const double want = reference::sum_of_squares<float>(x);
  CHECK(std::abs(sum_of_squares(x, on.exec) - want) <= 1e-13 * want);
}

TEST_CASE("the sum of squares shows a value that is not finite", "[unit]") {
  const float bad =
      GENERATE(std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity());
  const std::size_t place = GENERATE(0u, 50'000u, 99'999u);
  std::vector<float> x(100'000, 1.0f);
  x[place] = bad;
  runner on(2);
  CHECK_FALSE(std::isfinite(sum_of_squares(x, on.exec)));
  x[place] = 3e38f;  // its square overflows float, not double
  CHECK(std::isfinite(sum_of_squares(x, on.exec)));
}

}  // namespace longstraw::testing
