#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/reference/rotary.hpp>

#include <catch2/generators/catch_generators.hpp>

#include <numbers>

namespace longstraw::testing {

using namespace kernels;
namespace ref = kernels::reference;

TEST_CASE("rotary equals the reference, forward and back, and leaves the rest of a head alone",
          "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 63, 65, 200);
  const auto [width, turned] =
      GENERATE(std::pair<index, index>{64, 64}, std::pair<index, index>{64, 16},
               std::pair<index, index>{10, 6}, std::pair<index, index>{256, 64});
  const index position = GENERATE(0, 4'000'000);
  CAPTURE(tokens, width, turned, position);
  const auto frequencies = rotary_frequencies({.theta = 1e6, .width = turned});
  runner on(2);
  guarded angles(tokens * turned);
  const mat cos_sin = angles.matrix(tokens, turned);
  rotary_angles(cos_sin, {position, position + tokens}, frequencies, on.exec);
  std::vector<double> want_angles(static_cast<std::size_t>(tokens * turned));
  const matrix_view<double> want_cos_sin(want_angles.data(), tokens, turned);
  ref::rotary_angles(want_cos_sin, {position, position + tokens}, frequencies);
  CHECK(relative_error(angles.values(), want_angles) < 1e-7);

  const auto start = random_values<float>(tokens * 3 * width, 5);
  guarded x(tokens * 3 * width);
  std::copy(start.begin(), start.end(), x.data());
  auto want = as<double>(start);
  const heads fast(x.data(), tokens, 3, width, 3 * width, width);
  const heads_view<double> plain(want.data(), tokens, 3, width, 3 * width, width);
  rotary_forward(fast, cos_sin, on.exec);
  ref::rotary_forward(plain, matrix_view<const double>(want_cos_sin));
  CHECK(relative_error(x.values(), want) < float32_bound(2));
  for (index t = 0; t < tokens; ++t)
    for (index i = turned; i < width; ++i)
      REQUIRE(fast.at(t, 1)[i] == start[static_cast<std::size_t>((t * 3 + 1) * width + i)]);
  rotary_backward(fast, cos_sin, on.exec);
  CHECK(relative_error(x.values(), start) < float32_bound(4));
}

TEST_CASE("the backward turn is the transpose of the forward turn", "[unit]") {
  const auto frequencies = rotary_frequencies({.theta = 1e4, .width = 8});
  std::vector<double> cos_sin(3 * 8);
  ref::rotary_angles(matrix_view(cos_sin.data(), 3, 8), {5, 8}, frequencies);
  const auto x = random_values(3 * 8, 1), y = random_values(3 * 8, 2);
  auto fx = x, by = y;
  const matrix_view<const double> a(cos_sin.data(), 3, 8);
  ref::rotary_forward(heads_view(fx.data(), 3, 1, 8, 8, 8), a);
  ref::rotary_backward(heads_view(by.data(), 3, 1, 8, 8, 8), a);
  double left = 0, right = 0;
  for (std::size_t i = 0; i < x.size(); ++i) left += fx[i] * y[i], right += x[i] * by[i];
  CHECK(std::abs(left - right) < 1e-12);
}

TEST_CASE("llama3 scaling keeps fast turns, slows slow ones by the factor, and ramps between",
          "[unit]") {
  rotary_spec spec{.theta = 500000.0, .width = 128};
  const auto plain = rotary_frequencies(spec);
  spec.kind = rotary_spec::scaling::llama3;
  spec.factor = 8.0;
  const auto scaled = rotary_frequencies(spec);
  CHECK(scaled.front() == plain.front());
  CHECK(std::abs(scaled.back() / (plain.back() / 8.0) - 1) < 1e-12);
  bool between = false;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i], ratio = scaled[i] / plain[i];
    if (wavelength < 8192.0 / 4.0) CHECK(ratio == 1.0);
    if (wavelength > 8192.0 / 1.0) CHECK(std::abs(ratio - 1.0 / 8.0) < 1e-12);
    between = between || (ratio > 0.13 && ratio < 0.99);
    if (i > 0) CHECK(scaled[i] < scaled[i - 1]);
  }
  CHECK(between);
}

}  // namespace longstraw::testing
