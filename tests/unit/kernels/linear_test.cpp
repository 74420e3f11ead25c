#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/cpu/simd.hpp>
#include <longstraw/kernels/reference/linear.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;
namespace ref = kernels::reference;

namespace {

// Rows of every operand lie further apart than they are wide.
struct linear_case {
  index tokens, in, out;
  std::vector<float> x, weight, bias, d_y;
  linear_case(index t, index i, index o) : tokens(t), in(i), out(o) {
    x = random_values<float>(t * (i + 3), 1);
    weight = random_values<float>(o * (i + 1), 2);
    bias = random_values<float>(o, 3);
    d_y = random_values<float>(t * (o + 2), 4);
  }
  template <class T>
  matrix_view<const T> x_of(const std::vector<T>& v) const {
    return {v.data(), tokens, in, in + 3};
  }
  template <class T>
  matrix_view<const T> weight_of(const std::vector<T>& v) const {
    return {v.data(), out, in, in + 1};
  }
  template <class T>
  matrix_view<const T> d_y_of(const std::vector<T>& v) const {
    return {v.data(), tokens, out, out + 2};
  }
};

}  // namespace

TEST_CASE("linear layers and all their gradients equal the reference", "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 3, 5, 63, 65, 200, 1000);
  const auto [in, out] = GENERATE(std::pair<index, index>{64, 96}, std::pair<index, index>{33, 7},
                                  std::pair<index, index>{257, 300}, std::pair<index, index>{1, 1},
                                  std::pair<index, index>{100, 32});
  const into mode = GENERATE(into::write, into::add);
  const bool with_bias = GENERATE(false, true);
  CAPTURE(tokens, in, out, with_bias);
  const linear_case c(tokens, in, out);
  const auto x = as<double>(c.x), weight = as<double>(c.weight), d_y = as<double>(c.d_y);
  const auto bias = with_bias ? as<double>(c.bias) : std::vector<double>{};
  const std::span<const float> bias_f =
      with_bias ? std::span<const float>(c.bias) : std::span<const float>{};
  runner on(2);

  // Written results start as NaN, results that are added to start at 0.5.
  const float before = mode == into::add ? 0.5f : std::nanf("");
  guarded y(tokens * out, before), d_x(tokens * in, before);
  std::vector<double> want_y(static_cast<std::size_t>(tokens * out), 0.5),
      want_dx(static_cast<std::size_t>(tokens * in), 0.5);
  linear_forward(y.matrix(tokens, out), c.x_of(c.x), c.weight_of(c.weight), bias_f, mode, on.exec);
  ref::linear_forward(matrix_view(want_y.data(), tokens, out), c.x_of(x), c.weight_of(weight),
                      std::span<const double>(bias), mode);
  CHECK(relative_error(y.values(), want_y) < float32_bound(in));
  linear_backward_input(d_x.matrix(tokens, in), c.d_y_of(c.d_y), c.weight_of(c.weight), mode,
                        on.exec);
  ref::linear_backward_input(matrix_view(want_dx.data(), tokens, in), c.d_y_of(d_y),
                             c.weight_of(weight), mode);
  CHECK(relative_error(d_x.values(), want_dx) < float32_bound(out));

  guarded d_weight(out * in, 0.5f), d_bias(out, 0.5f);
  std::vector<double> want_dw(static_cast<std::size_t>(out * in), 0.5),
      want_db(static_cast<std::size_t>(out), 0.5);
  linear_backward_weight(d_weight.matrix(out, in), with_bias ? d_bias.values() : std::span<float>{},
                         c.d_y_of(c.d_y), c.x_of(c.x), on.exec);
  ref::linear_backward_weight(matrix_view(want_dw.data(), out, in),
                              with_bias ? std::span(want_db) : std::span<double>{}, c.d_y_of(d_y),
                              c.x_of(x));
  CHECK(relative_error(d_weight.values(), want_dw) < float32_bound(tokens));
  CHECK(relative_error(d_bias.values(), want_db) < float32_bound(tokens));
}

TEST_CASE("linear layers write only inside strided results", "[unit]") {
  const linear_case c(65, 64, 96);
  runner on(1);
  guarded y(65 * 100, 7.0f);
  linear_forward({y.data(), 65, 96, 100}, c.x_of(c.x), c.weight_of(c.weight), {}, into::write,
                 on.exec);
  for (index r = 0; r < 65; ++r)
    for (index i = 96; i < 100; ++i)
      REQUIRE(y.values()[static_cast<std::size_t>(r * 100 + i)] == 7.0f);
}

TEST_CASE("linear layers give the same bits on any number of threads", "[unit]") {
  const index tokens = GENERATE(1, 64, 600);
  const index out = GENERATE(16, 700);
  const linear_case c(tokens, 512, out);
  std::vector<std::vector<float>> first;
  for (int threads : {1, 2, 3}) {
    runner on(threads);
    std::vector<std::vector<float>> got{std::vector<float>(static_cast<std::size_t>(tokens * out)),
                                        std::vector<float>(static_cast<std::size_t>(tokens * 512)),
                                        std::vector<float>(static_cast<std::size_t>(out * 512)),
                                        std::vector<float>(static_cast<std::size_t>(out))};
    linear_forward({got[0].data(), tokens, out}, c.x_of(c.x), c.weight_of(c.weight), c.bias,
                   into::write, on.exec);
    linear_backward_input({got[1].data(), tokens, 512}, c.d_y_of(c.d_y), c.weight_of(c.weight),
                          into::write, on.exec);
    linear_backward_weight({got[2].data(), out, 512}, got[3], c.d_y_of(c.d_y), c.x_of(c.x),
                           on.exec);
    if (first.empty()) first = got;
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(same_bits(got[i], first[i]));
  }
}

// Ranks split the tokens of a pass, and what they compute must not show it. Whole counts of each of
// the three products; a depth beyond every block of theirs.
TEST_CASE("a token's result has the same bits in any slice of as many tokens", "[unit]") {
  if (simd::lanes < 16) SKIP("all products run on oneDNN here, which does not promise it");
  const index whole = GENERATE(3, 70, 255, 256, 600);
  const index ranks = GENERATE(2, 3, 16);
  const auto [in, out] =
      GENERATE(std::pair<index, index>{700, 96}, std::pair<index, index>{2600, 300},
               std::pair<index, index>{300, 20});
  const into mode = GENERATE(into::write, into::add);
  CAPTURE(whole, ranks, in, out);
  const linear_case c(whole, in, out);
  runner on(2);
  std::vector<float> y(static_cast<std::size_t>(whole * out), 0.5f), y_parts = y;
  std::vector<float> d_x(static_cast<std::size_t>(whole * in), 0.5f), d_x_parts = d_x;
  const auto rows_of = [&](std::vector<float>& v, index cols) {
    return mat{v.data(), whole, cols};
  };
  linear_forward(rows_of(y, out), c.x_of(c.x), c.weight_of(c.weight), c.bias, mode, on.exec);
  linear_backward_input(rows_of(d_x, in), c.d_y_of(c.d_y), c.weight_of(c.weight), mode, on.exec);
  for (index r = 0; r < ranks; ++r) {
    const index begin = whole * r / ranks, end = whole * (r + 1) / ranks;
    linear_forward(rows_of(y_parts, out).row_range(begin, end), c.x_of(c.x).row_range(begin, end),
                   c.weight_of(c.weight), c.bias, mode, on.exec, whole);
    linear_backward_input(rows_of(d_x_parts, in).row_range(begin, end),
                          c.d_y_of(c.d_y).row_range(begin, end), c.weight_of(c.weight), mode,
                          on.exec);
  }
  CHECK(same_bits(y, y_parts));
  CHECK(same_bits(d_x, d_x_parts));
}

TEST_CASE("linear layers reach rows beyond 31 bits", "[unit]") {
  const index stride = 1'500'000'000;
  sparse_floats far(stride * 4 + 64);
  const linear_case c(5, 64, 4);
  for (index r = 0; r < 4; ++r)
    std::copy_n(c.weight_of(c.weight).row(r), 64, far.data() + r * stride);
  const cmat far_weight(far.data(), 4, 64, stride);
  runner on(1);
  std::vector<float> near_y(20), far_y(20), near_dx(320), far_dx(320);
  linear_forward({near_y.data(), 5, 4}, c.x_of(c.x), c.weight_of(c.weight), {}, into::write,
                 on.exec);
  linear_forward({far_y.data(), 5, 4}, c.x_of(c.x), far_weight, {}, into::write, on.exec);
  CHECK(near_y == far_y);
  linear_backward_input({near_dx.data(), 5, 64}, c.d_y_of(c.d_y), c.weight_of(c.weight),
                        into::write, on.exec);
  linear_backward_input({far_dx.data(), 5, 64}, c.d_y_of(c.d_y), far_weight, into::write, on.exec);
  CHECK(relative_error(far_dx, near_dx) < float32_bound(4));
}

TEST_CASE("the linear reference's gradients are its finite differences", "[unit]") {
  auto x = random_values(5 * 7, 1), weight = random_values(3 * 7, 2), bias = random_values(3, 3);
  const auto d_y = random_values(5 * 3, 4);
  std::vector<double> y(15), d_x(35), d_w(21), d_b(3);
  auto m = [](auto& v, index r) {
    return matrix_view(v.data(), r, static_cast<index>(v.size()) / r);
  };
  ref::linear_backward_input(m(d_x, 5), m(d_y, 5), m(weight, 3), into::write);
  ref::linear_backward_weight(m(d_w, 3), std::span(d_b), m(d_y, 5), m(x, 5));
  auto loss = [&] {
    ref::linear_forward(m(y, 5), m(x, 5), m(weight, 3), bias, into::write);
    double sum = 0;
    for (std::size_t i = 0; i < 15; ++i) sum += y[i] * d_y[i];
    return sum;
  };
  CHECK(finite_difference_error(x, d_x, loss) < 1e-8);
  CHECK(finite_difference_error(weight, d_w, loss) < 1e-8);
  CHECK(finite_difference_error(bias, d_b, loss) < 1e-8);
}

}  // namespace longstraw::testing
