#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/causal_conv.hpp>
#include <longstraw/kernels/reference/causal_conv.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

struct conv_case {
  index tokens, channels, kernel;
  std::vector<float> x, tail, weight, d_out, d_next_tail;

  conv_case(index t, index c, index k)
      : tokens(t),
        channels(c),
        kernel(k),
        x(random_values<float>(t * c, 1)),
        tail(random_values<float>((k - 1) * c, 2)),
        weight(random_values<float>(c * k, 3, 0.5)),
        d_out(random_values<float>(t * c, 4)),
        d_next_tail(random_values<float>((k - 1) * c, 5)) {}

  cmat x_view() const { return {x.data(), tokens, channels}; }
  cmat tail_view() const { return {tail.data(), kernel - 1, channels}; }
  cmat weight_view() const { return {weight.data(), channels, kernel}; }
  cmat d_out_view() const { return {d_out.data(), tokens, channels}; }
  cmat d_next_tail_view() const { return {d_next_tail.data(), kernel - 1, channels}; }
};

struct conv_truth {
  std::vector<double> out, next_tail, d_x, d_tail, d_weight;

  explicit conv_truth(const conv_case& c, bool enters = true)
      : out(c.x.size()),
        next_tail(c.tail.size()),
        d_x(c.x.size()),
        d_tail(c.tail.size()),
        d_weight(c.weight.size()) {
    const auto x = as<double>(c.x), tail = as<double>(c.tail), weight = as<double>(c.weight),
               d_out = as<double>(c.d_out), d_next = as<double>(c.d_next_tail);
    using view = matrix_view<double>;
    using const_view = matrix_view<const double>;
    const const_view xs(x.data(), c.tokens, c.channels),
        tails(tail.data(), c.kernel - 1, c.channels), weights(weight.data(), c.channels, c.kernel),
        d_outs(d_out.data(), c.tokens, c.channels),
        d_nexts = enters ? const_view(d_next.data(), c.kernel - 1, c.channels) : const_view();
    reference::causal_conv_forward<double>(view(out.data(), c.tokens, c.channels), xs, tails,
                                           weights);
    reference::causal_conv_next_tail<double>(view(next_tail.data(), c.kernel - 1, c.channels), xs,
                                             tails);
    reference::causal_conv_backward<double>(
        view(d_x.data(), c.tokens, c.channels), view(d_tail.data(), c.kernel - 1, c.channels),
        view(d_weight.data(), c.channels, c.kernel), d_outs, d_nexts, xs, tails, weights);
  }
};

struct conv_results {
  guarded out, next_tail, d_x, d_tail, d_weight;

  conv_results(const conv_case& c, int threads, bool enters = true)
      : out(c.tokens * c.channels),
        next_tail((c.kernel - 1) * c.channels),
        d_x(c.tokens * c.channels),
        d_tail((c.kernel - 1) * c.channels),
        d_weight(c.channels * c.kernel, 0.0f) {
    runner on(threads);
    causal_conv_forward(out.matrix(c.tokens, c.channels), c.x_view(), c.tail_view(),
                        c.weight_view(), on.exec);
    causal_conv_next_tail(next_tail.matrix(c.kernel - 1, c.channels), c.x_view(), c.tail_view());
    causal_conv_backward(d_x.matrix(c.tokens, c.channels), d_tail.matrix(c.kernel - 1, c.channels),
                         d_weight.matrix(c.channels, c.kernel), c.d_out_view(),
                         enters ? c.d_next_tail_view() : cmat(), c.x_view(), c.tail_view(),
                         c.weight_view(), on.exec);
  }
};

void check_parity(const conv_case& c, bool enters = true) {
  const conv_truth want(c, enters);
  conv_results got(c, 1, enters);
  CHECK(relative_error(got.out.values(), want.out) < float32_bound(c.kernel));
  CHECK(relative_error(got.next_tail.values(), want.next_tail) == 0.0);
  CHECK(relative_error(got.d_x.values(), want.d_x) < float32_bound(c.kernel));
  CHECK(relative_error(got.d_tail.values(), want.d_tail) < float32_bound(c.kernel));
  CHECK(relative_error(got.d_weight.values(), want.d_weight) < float32_bound(c.tokens));
}

}  // namespace

TEST_CASE("the convolution equals its reference for any length, also shorter than its kernel",
          "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 2, 3, 4, 5, 63, 64, 65, 129, 300);
  const bool enters = GENERATE(true, false);
  CAPTURE(tokens, enters);
  check_parity(conv_case(tokens, 40, 4), enters);
}

TEST_CASE("the convolution equals its reference for any kernel and number of channels",
          "[unit][parity]") {
  const index kernel = GENERATE(1, 2, 3, 4, 7), channels = GENERATE(1, 15, 16, 600);
  CAPTURE(kernel, channels);
  check_parity(conv_case(21, channels, kernel));
}

TEST_CASE("the convolution's reference agrees with finite differences", "[unit]") {
  const conv_case c(5, 3, 4);
  auto x = as<double>(c.x), tail = as<double>(c.tail), weight = as<double>(c.weight);
  const auto d_out = as<double>(c.d_out), d_next = as<double>(c.d_next_tail);
  auto loss = [&] {
    std::vector<double> out(x.size()), next(tail.size());
    const matrix_view<const double> xs(x.data(), 5, 3), tails(tail.data(), 3, 3);
    reference::causal_conv_forward<double>({out.data(), 5, 3}, xs, tails, {weight.data(), 3, 4});
    reference::causal_conv_next_tail<double>({next.data(), 3, 3}, xs, tails);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * d_out[i];
    for (std::size_t i = 0; i < next.size(); ++i) sum += next[i] * d_next[i];
    return sum;
  };
  const conv_truth gradients(c);
  CHECK(finite_difference_error(x, gradients.d_x, loss) < 1e-8);
  CHECK(finite_difference_error(tail, gradients.d_tail, loss) < 1e-8);
  CHECK(finite_difference_error(weight, gradients.d_weight, loss) < 1e-8);
}

TEST_CASE("two passes joined by the tail equal one pass, forward and backward", "[unit]") {
  const index cut = GENERATE(1, 2, 30), channels = 24, total = 50;
  CAPTURE(cut);
  const conv_case whole(total, channels, 4);
  conv_results want(whole, 1);
  runner on(1);
  conv_case first(cut, channels, 4), second(total - cut, channels, 4);
  const auto border = static_cast<std::ptrdiff_t>(cut * channels);
  first.x.assign(whole.x.begin(), whole.x.begin() + border);
  second.x.assign(whole.x.begin() + border, whole.x.end());
  first.d_out.assign(whole.d_out.begin(), whole.d_out.begin() + border);
  second.d_out.assign(whole.d_out.begin() + border, whole.d_out.end());
  conv_results head(first, 1);
  second.tail.assign(head.next_tail.data(), head.next_tail.data() + 3 * channels);
  conv_results rest(second, 1);
  first.d_next_tail.assign(rest.d_tail.data(), rest.d_tail.data() + 3 * channels);
  conv_results head_again(first, 1);

  auto joined = [&](guarded& a, guarded& b) {
    std::vector<float> v(a.values().begin(), a.values().end());
    v.insert(v.end(), b.values().begin(), b.values().end());
    return v;
  };
  CHECK(same_bits(joined(head.out, rest.out), want.out.values()));
  CHECK(same_bits(rest.next_tail.values(), want.next_tail.values()));
  CHECK(relative_error(joined(head_again.d_x, rest.d_x), want.d_x.values()) < float32_bound(4));
  CHECK(relative_error(head_again.d_tail.values(), want.d_tail.values()) < float32_bound(4));
  std::vector<float> d_weight(want.d_weight.values().size());
  for (std::size_t i = 0; i < d_weight.size(); ++i)
    d_weight[i] = head_again.d_weight.values()[i] + rest.d_weight.values()[i];
  CHECK(relative_error(d_weight, want.d_weight.values()) < float32_bound(total));
}

TEST_CASE("the tail may be moved on in place", "[unit]") {
  const index tokens = GENERATE(0, 1, 2, 3, 9);
  CAPTURE(tokens);
  conv_case c(tokens, 20, 4);
  const conv_truth want(c);
  causal_conv_next_tail({c.tail.data(), 3, 20}, c.x_view(), c.tail_view());
  CHECK(relative_error(c.tail, want.next_tail) == 0.0);
}

TEST_CASE("the convolution's bits do not depend on the thread count", "[unit]") {
  const conv_case c(700, 530, 4);
  conv_results one(c, 1), two(c, 2), three(c, 3);
  for (auto* other : {&two, &three}) {
    CHECK(same_bits(one.out.values(), other->out.values()));
    CHECK(same_bits(one.d_x.values(), other->d_x.values()));
    CHECK(same_bits(one.d_tail.values(), other->d_tail.values()));
    CHECK(same_bits(one.d_weight.values(), other->d_weight.values()));
  }
}

}  // namespace longstraw::testing
