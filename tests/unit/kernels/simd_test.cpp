#include "support/compare.hpp"

#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/cpu/tile_transpose.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;
using simd::lanes;
using simd::vec;

namespace {

/// Largest error of f against `truth` over [begin, end], in units in the last place.
template <class F, class Truth>
double worst_ulps(double begin, double end, F f, Truth truth) {
  double worst = 0;
  constexpr index count = 200'000;
  for (index i = 0; i < count; i += lanes) {
    vec x;
    for (index l = 0; l < lanes; ++l)
      x[l] = static_cast<float>(begin + (end - begin) * static_cast<double>(i + l) / count);
    const vec y = f(x);
    for (index l = 0; l < lanes; ++l) {
      const double want = truth(static_cast<double>(x[l]));
      const float size = std::abs(static_cast<float>(want));
      const double ulp =
          static_cast<double>(std::nextafter(size, 1e38f)) - static_cast<double>(size);
      const double off = std::abs(static_cast<double>(y[l]) - want) / ulp;
      worst = std::isnan(off) ? off : std::max(worst, off);
    }
  }
  return worst;
}

double exact_softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

}  // namespace

TEST_CASE("vector functions stay within their stated error", "[unit]") {
  CHECK(worst_ulps(
            -87, 88, [](vec x) { return simd::exp(x); }, [](double x) { return std::exp(x); }) <=
        2);
  CHECK(worst_ulps(
            -1, 1, [](vec x) { return simd::exp(x); }, [](double x) { return std::exp(x); }) <= 2);
  CHECK(worst_ulps(
            0, 1, [](vec x) { return simd::log1p_unit(x); },
            [](double x) { return std::log1p(x); }) <= 3);
  CHECK(worst_ulps(
            -80, 80, [](vec x) { return simd::softplus(x).value; }, exact_softplus) <= 4);
  CHECK(worst_ulps(
            -3, 3, [](vec x) { return simd::softplus(x).value; }, exact_softplus) <= 4);
  CHECK(worst_ulps(
            -80, 80, [](vec x) { return simd::sigmoid(x); },
            [](double x) { return 1 / (1 + std::exp(-x)); }) <= 4);
  CHECK(worst_ulps(
            0, 1e30, [](vec x) { return simd::sqrt(x); }, [](double x) { return std::sqrt(x); }) <=
        0.5001);
}

TEST_CASE("the logarithm from one on stays within its stated error", "[unit]") {
  const auto of = [](vec x) { return simd::log_from_one(x); };
  const auto truth = [](double x) { return std::log(x); };
  CHECK(worst_ulps(1.00001, 2, of, truth) <= 4);
  CHECK(worst_ulps(2, 1e6, of, truth) <= 4);
  CHECK(simd::log_from_one(simd::splat(1.0f))[0] == 0.0f);
}

TEST_CASE("sine and cosine are right at any position of a long sequence", "[unit]") {
  const double end = GENERATE(7.0, 1e3, 8388608.0);
  double worst = 0;
  for (index i = 0; i < 100'000; ++i) {
    const double x = end * static_cast<double>(i) / 100'000;
    const auto both = simd::sin_cos(simd::wide{} + x);
    worst = std::max({worst, std::abs(both.sin[0] - std::sin(x)),
                      std::abs(both.cos[simd::wide_lanes - 1] - std::cos(x))});
  }
  CHECK(worst < 1e-11);
}

TEST_CASE("vector functions have the right ends", "[unit]") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  CHECK(simd::exp(simd::splat(-inf))[0] == 0.0f);
  CHECK(simd::exp(simd::splat(-1000.0f))[0] == 0.0f);
  CHECK(simd::exp(simd::splat(0.0f))[0] == 1.0f);
  CHECK(simd::exp(simd::splat(89.5f))[0] == inf);
  CHECK(simd::exp(simd::splat(inf))[0] == inf);
  CHECK(simd::sigmoid(simd::splat(-inf))[0] == 0.0f);
  CHECK(simd::sigmoid(simd::splat(inf))[0] == 1.0f);
  CHECK(simd::softplus(simd::splat(-200.0f)).value[0] == 0.0f);
  CHECK(simd::softplus(simd::splat(200.0f)).value[0] == 200.0f);
  const vec nan = simd::splat(std::numeric_limits<float>::quiet_NaN());
  CHECK(std::isnan(simd::exp(nan)[0]));
  CHECK(std::isnan(simd::sigmoid(nan)[0]));
  CHECK(std::isnan(simd::softplus(nan).value[0]));
}

TEST_CASE("the lanes of a vector add up and compare, all of them", "[unit]") {
  vec v;
  for (index l = 0; l < lanes; ++l) v[l] = static_cast<float>(1 << l);
  CHECK(simd::sum(v) == static_cast<float>((1 << lanes) - 1));
  CHECK(simd::largest(v) == static_cast<float>(1 << (lanes - 1)));
  CHECK(simd::largest(-v) == -1.0f);
}

TEST_CASE("a part of a vector leaves memory beyond it alone", "[unit]") {
  for (index n = 0; n < lanes; ++n) {
    guarded memory(n, 1.0f);
    const vec v = simd::load_part(memory.data(), n);
    for (index l = 0; l < lanes; ++l) CHECK(v[l] == (l < n ? 1.0f : 0.0f));
    simd::store_part(memory.data(), simd::splat(2.0f), n);
    for (const float x : memory.values()) CHECK(x == 2.0f);
  }
}

TEST_CASE("sums over rows of any length take in every term once", "[unit]") {
  for (const index n :
       {index{0}, index{1}, lanes - 1, lanes, lanes + 1, 4 * lanes, 7 * lanes + 3, 9 * lanes}) {
    const std::vector<float> ones(static_cast<std::size_t>(n), 1.0f),
        twos(static_cast<std::size_t>(n), 2.0f);
    CHECK(simd::dot(ones.data(), twos.data(), n) == static_cast<float>(2 * n));
  }
}

TEST_CASE("a tile's transpose has its rows as columns", "[unit]") {
  const index rows = GENERATE(16, 48), cols = GENERATE(16, 32);
  const auto in = random_values<float>(rows * cols, 1);
  guarded out(rows * cols);
  tile_transpose(out.matrix(cols, rows), {in.data(), rows, cols});
  bool equal = true;
  for (index r = 0; r < rows; ++r)
    for (index c = 0; c < cols; ++c) equal &= out.matrix(cols, rows)(c, r) == in[r * cols + c];
  CHECK(equal);
}

}  // namespace longstraw::testing
