#include "support/delta_case.hpp"

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

void check_parity(const delta_case<float>& c, double bound, int threads = 1) {
  const delta_truth want(in_double(c));
  runner on(threads);
  delta_results got(c, on.exec);
  const std::vector<double>* truth[] = {&want.out, &want.state, &want.d_q,    &want.d_k,
                                        &want.d_v, &want.d_g,   &want.d_beta, &want.d_state};
  const std::vector<double>* const* next = truth;
  for (const auto& [name, values] : got.all()) {
    CAPTURE(name);
    CHECK(relative_error(values, **next++) < bound);
  }
}

// Terms of the longest sums: a chunk's tokens and the key dimension; the states carry the errors of
// earlier chunks on.
double bound_of(const delta_case<float>& c) {
  return float32_bound(c.dims.chunk_tokens() + c.dims.key_dim);
}

}  // namespace

TEST_CASE("the gated delta rule equals its token by token reference for any length",
          "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 2, 4, 5, 15, 16, 17, 63, 64, 65, 129, 1000);
  CAPTURE(tokens);
  const auto c = make_delta_case({2, 4, 32, 32}, tokens);
  check_parity(c, bound_of(c));
}

TEST_CASE("the gated delta rule equals its reference for any head count and size",
          "[unit][parity]") {
  const auto dims = GENERATE(gated_delta_dims{1, 1, 4, 1}, gated_delta_dims{1, 1, 12, 10},
                             gated_delta_dims{2, 4, 16, 16}, gated_delta_dims{1, 3, 10, 40},
                             gated_delta_dims{3, 3, 64, 17}, gated_delta_dims{2, 2, 128, 128},
                             gated_delta_dims{1, 2, 33, 100});
  const index tokens = GENERATE(3, 70);
  CAPTURE(dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim, tokens);
  const auto c = make_delta_case(dims, tokens);
  check_parity(c, bound_of(c));
}

TEST_CASE("the largest states that are allowed, and many small ones, fit the scratch memory",
          "[unit][parity]") {
  const index most = gated_delta_dims::head_dim_max;
  const auto dims =
      GENERATE_COPY(gated_delta_dims{1, 4, most, most}, gated_delta_dims{1, 64, 128, 128},
                    gated_delta_dims{2, 2, most, 1}, gated_delta_dims{600, 600, 1, 1},
                    gated_delta_dims{1, 1024, 3, 2});
  CAPTURE(dims.key_heads, dims.value_heads, dims.key_dim, dims.value_dim);
  CHECK(dims.key_head_state_floats() <= gated_delta_dims::key_head_state_floats_max);
  const auto c = make_delta_case(dims, 70);
  check_parity(c, bound_of(c));
}

TEST_CASE("a decay that is NaN shows in every later token, in passes of any length", "[unit]") {
  for (const index tokens : {4, 5, 40}) {
    auto c = make_delta_case({1, 1, 16, 16}, tokens);
    c.g[2] = std::numeric_limits<float>::quiet_NaN();
    runner on(1);
    delta_results got(c, on.exec);
    CAPTURE(tokens);
    const auto out = got.out.values();
    for (std::size_t i = 2 * 16; i < out.size(); ++i) CHECK(std::isnan(out[i]));
    for (const float s : got.state.values()) CHECK(std::isnan(s));
  }
}

TEST_CASE("the gated delta rule's reference agrees with finite differences", "[unit]") {
  auto c = in_double(make_delta_case({2, 4, 3, 2}, 6, 0.5, 0.99));
  auto loss = [&] {
    const delta_truth t(c);
    double sum = 0;
    for (std::size_t i = 0; i < t.out.size(); ++i) sum += t.out[i] * c.d_out[i];
    for (std::size_t i = 0; i < t.state.size(); ++i) sum += t.state[i] * c.d_state[i];
    return sum;
  };
  const delta_truth gradients(c);
  CHECK(finite_difference_error(c.q, gradients.d_q, loss) < 1e-7);
  CHECK(finite_difference_error(c.k, gradients.d_k, loss) < 1e-7);
  CHECK(finite_difference_error(c.v, gradients.d_v, loss) < 1e-7);
  CHECK(finite_difference_error(c.g, gradients.d_g, loss) < 1e-7);
  CHECK(finite_difference_error(c.beta, gradients.d_beta, loss) < 1e-7);
  CHECK(finite_difference_error(c.state, gradients.d_state, loss) < 1e-7);
}

TEST_CASE("decays from nearly none to nearly all give finite results that equal the reference",
          "[unit][parity]") {
  // Chunks of 32 and of 64 tokens.
  const auto dims = GENERATE(gated_delta_dims{2, 4, 32, 24}, gated_delta_dims{1, 2, 80, 64});
  CAPTURE(dims.key_dim, dims.chunk_tokens());
  SECTION("decays between 0.01 and 0.99") {
    const auto c = make_delta_case(dims, 150, 0.01, 0.99);
    check_parity(c, bound_of(c));
  }
  SECTION("g = -50 a token: nothing is left of the token before") {
    auto c = make_delta_case(dims, 150);
    std::fill(c.g.begin(), c.g.end(), -50.0f);
    check_parity(c, bound_of(c));
  }
  SECTION("g = 0: nothing is forgotten") {
    auto c = make_delta_case(dims, 150);
    std::fill(c.g.begin(), c.g.end(), 0.0f);
    check_parity(c, bound_of(c));
  }
  SECTION("a sudden g = -50 between tokens that forget little") {
    auto c = make_delta_case(dims, 150, 0.95, 0.9999);
    for (std::size_t i = 0; i < c.g.size(); i += 37) c.g[i] = -50.0f;
    check_parity(c, bound_of(c));
  }
  SECTION("g far below what any exponential holds") {
    auto c = make_delta_case(dims, 150);
    for (std::size_t i = 0; i < c.g.size(); i += 3) c.g[i] = -1e4f;
    check_parity(c, bound_of(c));
  }
}

TEST_CASE("beta at both its ends equals the reference", "[unit][parity]") {
  auto c = make_delta_case({1, 2, 32, 32}, 100);
  for (std::size_t i = 0; i < c.beta.size(); ++i)
    c.beta[i] = i % 3 == 0 ? 0.0f : i % 3 == 1 ? 1.0f : 1e-20f;
  check_parity(c, bound_of(c));
}

TEST_CASE("repeated and zero keys equal the reference", "[unit][parity]") {
  auto c = make_delta_case({1, 2, 16, 16}, 100);
  for (index t = 0; t < 100; ++t)
    for (index i = 0; i < 16; ++i) {
      c.k[t * 16 + i] = t % 10 == 9 ? 0.0f : c.k[i];
      if (t % 7 == 0) c.q[t * 16 + i] = 0.0f;
    }
  // A zero vector's norm has the slope 1000: gradients of zero keys outweigh all others.
  check_parity(c, bound_of(c));
}

TEST_CASE("two passes joined by the state equal one, forward and backward", "[unit]") {
  const index cut = GENERATE(1, 64, 100);
  CAPTURE(cut);
  const auto whole = make_delta_case({2, 4, 32, 24}, 200, 0.9, 0.999);
  runner on(1);
  delta_results want(whole, on.exec);
  delta_results first(whole.part(0, cut), on.exec);
  auto later = whole.part(cut, 200);
  later.state.assign(first.state.data(), first.state.data() + whole.dims.state_floats());
  delta_results second(later, on.exec);
  auto earlier = whole.part(0, cut);
  earlier.d_state.assign(second.d_state.data(), second.d_state.data() + whole.dims.state_floats());
  delta_results first_again(earlier, on.exec);

  auto joined = [](guarded& a, guarded& b) {
    std::vector<float> v(a.values().begin(), a.values().end());
    v.insert(v.end(), b.values().begin(), b.values().end());
    return v;
  };
  const double bound = bound_of(whole);
  CHECK(relative_error(joined(first.out, second.out), want.out.values()) < bound);
  CHECK(relative_error(second.state.values(), want.state.values()) < bound);
  CHECK(relative_error(joined(first_again.d_q, second.d_q), want.d_q.values()) < bound);
  CHECK(relative_error(joined(first_again.d_k, second.d_k), want.d_k.values()) < bound);
  CHECK(relative_error(joined(first_again.d_v, second.d_v), want.d_v.values()) < bound);
  CHECK(relative_error(joined(first_again.d_g, second.d_g), want.d_g.values()) < bound);
  CHECK(relative_error(joined(first_again.d_beta, second.d_beta), want.d_beta.values()) < bound);
  CHECK(relative_error(first_again.d_state.values(), want.d_state.values()) < bound);
  if (cut == 64) {  // the cut is a chunk border: the same arithmetic, so the same bits
    CHECK(same_bits(joined(first.out, second.out), want.out.values()));
    CHECK(same_bits(joined(first_again.d_k, second.d_k), want.d_k.values()));
  }
}

TEST_CASE("a pass without a backward pass to follow gives the same bits", "[unit]") {
  const index tokens = GENERATE(1, 100);
  const auto c = make_delta_case({2, 4, 32, 24}, tokens);
  runner on(1);
  delta_results want(c, on.exec);
  guarded out(c.value_values()), state(c.dims.state_floats());
  std::copy(c.state.begin(), c.state.end(), state.data());
  gated_delta_forward(split_heads(out.matrix(tokens, 4 * 24), 4), state.values(), {}, c.q_view(),
                      c.k_view(), c.v_view(), c.g_view(), c.beta_view(), c.dims, on.exec);
  CHECK(same_bits(out.values(), want.out.values()));
  CHECK(same_bits(state.values(), want.state.values()));
}

TEST_CASE("the gated delta rule's bits do not depend on the thread count", "[unit]") {
  const auto dims = GENERATE(gated_delta_dims{3, 6, 32, 24}, gated_delta_dims{1, 4, 16, 16},
                             gated_delta_dims{4, 8, 24, 16});
  const auto c = make_delta_case(dims, 150);
  runner one(1), two(2), three(3);
  delta_results want(c, one.exec), with_two(c, two.exec), with_three(c, three.exec);
  const auto wanted = want.all(), got_two = with_two.all(), got_three = with_three.all();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CAPTURE(wanted[i].first);
    CHECK(same_bits(wanted[i].second, got_two[i].second));
    CHECK(same_bits(wanted[i].second, got_three[i].second));
  }
}

TEST_CASE("q, k and v may be columns of one matrix", "[unit]") {
  const index tokens = GENERATE(2, 70), keys = 2 * 12, values = 4 * 10, all = 2 * keys + values + 3;
  const auto c = make_delta_case({2, 4, 12, 10}, tokens);
  runner on(1);
  delta_results want(c, on.exec);
  std::vector<float> stacked(static_cast<std::size_t>(tokens * all), 1e9f);
  const mat columns(stacked.data(), tokens, all);
  for (index t = 0; t < tokens; ++t) {
    std::copy_n(&c.q[t * keys], keys, columns.row(t));
    std::copy_n(&c.k[t * keys], keys, columns.row(t) + keys);
    std::copy_n(&c.v[t * values], values, columns.row(t) + 2 * keys);
  }
  guarded out(c.value_values()), state(c.dims.state_floats());
  std::copy(c.state.begin(), c.state.end(), state.data());
  gated_delta_forward(split_heads(out.matrix(tokens, values), 4), state.values(), {},
                      split_heads(columns.col_range(0, keys), 2),
                      split_heads(columns.col_range(keys, 2 * keys), 2),
                      split_heads(columns.col_range(2 * keys, 2 * keys + values), 4), c.g_view(),
                      c.beta_view(), c.dims, on.exec);
  CHECK(same_bits(out.values(), want.out.values()));
  CHECK(same_bits(state.values(), want.state.values()));
}

}  // namespace longstraw::testing
