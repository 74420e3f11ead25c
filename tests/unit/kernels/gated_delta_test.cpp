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
  return float32_bound(gated_delta_chunk + c.dims.key_dim);
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

}  // namespace longstraw::testing
