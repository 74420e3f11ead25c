#include "support/attention_case.hpp"

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

void check_parity(const attention_case& c, int threads = 1) {
  const truth want = reference_of(c);
  fast_results got(c);
  got.run(c, threads);
  const double bound = float32_bound(c.key_tokens() + c.dims.head_dim);
  CHECK(relative_error(got.out.values(), want.out) < bound);
  CHECK(relative_error(got.lse.values(), want.lse) < bound);
  CHECK(relative_error(got.d_q.values(), want.d_q) < bound);
  for (std::size_t p = 0; p < c.pieces.size(); ++p) {
    CAPTURE(p);
    if (!c.pieces[p].wanted) continue;
    CHECK(relative_error(got.d_key[p]->values(), want.d_key[p]) < bound);
    CHECK(relative_error(got.d_value[p]->values(), want.d_value[p]) < bound);
  }
}

}  // namespace

TEST_CASE("attention equals the reference for any number of the pass's own tokens",
          "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 12, 63, 65, 200);
  const index earlier = GENERATE(0, 1, 130, 2500);
  CAPTURE(tokens, earlier);
  check_parity(make_case({4, 2, 64, 0.125f}, tokens, {{earlier, false}, {tokens, true}}));
}

TEST_CASE("attention equals the reference for any head size and group", "[unit][parity]") {
  const auto dims = GENERATE(attention_dims{1, 1, 1, 1.0f}, attention_dims{2, 2, 5, 0.4f},
                             attention_dims{6, 2, 24, 0.2f}, attention_dims{3, 1, 33, 0.17f},
                             attention_dims{2, 1, 100, 0.1f}, attention_dims{5, 1, 128, 0.09f},
                             attention_dims{4, 1, 256, 0.0625f});
  const index tokens = GENERATE(1, 2, 4, 70);  // few rows read keys where they lie
  CAPTURE(dims.query_heads, dims.kv_heads, dims.head_dim, tokens);
  check_parity(make_case(dims, tokens, {{150, false}, {tokens, true}}));
}

TEST_CASE("the longest heads and the largest groups fit the scratch memory", "[unit][parity]") {
  const auto [group, tokens] =
      GENERATE(std::pair<index, index>{3, 1}, std::pair<index, index>{3, 300},
               std::pair<index, index>{attention_group_max, 1},
               std::pair<index, index>{attention_group_max, 30});
  CAPTURE(group, tokens);
  check_parity(
      make_case({group, 1, attention_head_dim_max, 0.03f}, tokens, {{150, false}, {tokens, true}}));
}

TEST_CASE("attention equals the reference over pages of any size, frozen and wanted mixed",
          "[unit][parity]") {
  SECTION("pages of one token") {
    std::vector<piece_size> pages;
    for (index i = 0; i < 150; ++i) pages.push_back({1, i % 3 == 0});
    check_parity(make_case({4, 2, 32, 0.2f}, 20, pages));
  }
  SECTION("empty pages between others") {
    check_parity(make_case(
        {4, 2, 32, 0.2f}, 65,
        {{0, true}, {17, false}, {0, false}, {129, true}, {0, true}, {64, false}, {65, true}}));
  }
  SECTION("all frozen") {
    check_parity(make_case({4, 2, 32, 0.2f}, 65, {{100, false}, {65, false}}));
  }
  SECTION("all wanted") {
    check_parity(make_case({4, 2, 32, 0.2f}, 300, {{1500, true}, {300, true}}));
  }
  SECTION("one response after long frozen pages") {
    check_parity(make_case({2, 1, 16, 0.25f}, 65, {{2500, false}, {700, false}, {65, true}}));
  }
  SECTION("one query after long pages") {
    check_parity(make_case({4, 2, 64, 0.125f}, 1, {{5000, false}, {1, true}}));
  }
  SECTION("several blocks of queries") {
    check_parity(make_case({2, 2, 16, 0.25f}, 1000, {{33, false}, {1000, true}}));
  }
}

TEST_CASE("attention sees keys by position, in whatever order the pieces come", "[unit][parity]") {
  attention_case c = make_case({4, 2, 32, 0.2f}, 90, {{40, true}, {90, true}, {70, false}});
  // The pass's own tokens first, then what came before, then keys that only some queries see, and
  // keys of the future that none sees.
  c.pieces[0].position = c.q_position + 200;
  c.pieces[1].position = c.q_position;
  c.pieces[2].position = c.q_position + 60;
  check_parity(c);
}

TEST_CASE("attention takes one half of a gradient when only that is wanted", "[unit][parity]") {
  attention_case c = make_case({4, 2, 32, 0.2f}, 70, {{50, true}, {70, true}});
  const truth want = reference_of(c);
  fast_results got(c);
  got.only_values_of = 0;
  got.run(c, 1);
  CHECK(relative_error(got.d_value[0]->values(), want.d_value[0]) < float32_bound(200));
  CHECK(relative_error(got.d_key[0]->values(),
                       std::vector<double>(got.d_key[0]->values().size(), start)) == 0);
  CHECK(relative_error(got.d_key[1]->values(), want.d_key[1]) < float32_bound(200));
  CHECK(relative_error(got.d_q.values(), want.d_q) < float32_bound(200));
}

TEST_CASE("queries that see no key give zero, -inf and no gradient", "[unit]") {
  attention_case c = make_case({2, 1, 24, 0.2f}, 40, {{40, true}});
  c.pieces[0].position = c.q_position + 20;
  fast_results got(c);
  got.run(c, 1);
  for (index t = 0; t < 20; ++t)
    for (index h = 0; h < 2; ++h) {
      CHECK(got.lse.values()[static_cast<std::size_t>(t * 2 + h)] ==
            -std::numeric_limits<float>::infinity());
      for (index i = 0; i < 24; ++i) {
        const auto at = static_cast<std::size_t>((t * 2 + h) * 24 + i);
        REQUIRE(got.out.values()[at] == 0);
        REQUIRE(got.d_q.values()[at] == start);
      }
    }
  check_parity(c);
}

TEST_CASE("attention gives the same bits on any number of threads", "[unit]") {
  const index tokens = GENERATE(1, 64, 500);
  attention_case c =
      make_case({4, 2, 32, 0.2f}, tokens, {{3000, false}, {600, true}, {tokens, true}});
  fast_results one(c);
  one.run(c, 1);
  for (int threads : {2, 3}) {
    fast_results many(c);
    many.run(c, threads);
    CHECK(same_bits(one.out.values(), many.out.values()));
    CHECK(same_bits(one.lse.values(), many.lse.values()));
    CHECK(same_bits(one.d_q.values(), many.d_q.values()));
    for (std::size_t p = 0; p < c.pieces.size(); ++p) {
      CHECK(same_bits(one.d_key[p]->values(), many.d_key[p]->values()));
      CHECK(same_bits(one.d_value[p]->values(), many.d_value[p]->values()));
    }
  }
}

TEST_CASE("a suffix at once agrees with the same suffix token by token", "[unit]") {
  attention_case c = make_case({4, 2, 64, 0.125f}, 33, {{200, false}, {33, false}});
  fast_results all(c);
  all.run(c, 1);
  runner on(1);
  const std::size_t row = 4 * 64;
  for (index t = 0; t < 33; ++t) {
    guarded out(4 * 64), lse(4);
    attention_forward(out.matrix(1, 4 * 64), lse.matrix(1, 4), c.query_view().token_range(t, t + 1),
                      c.q_position + t, c.piece_views(), c.dims, on.exec);
    CHECK(relative_error(out.values(),
                         all.out.values().subspan(static_cast<std::size_t>(t) * row, row)) < 1e-5);
  }
}

TEST_CASE("scores far from zero neither overflow nor vanish", "[unit][parity]") {
  attention_case c = make_case({2, 1, 64, 3.0f}, 65, {{130, false}, {65, true}});
  const truth want = reference_of(c);
  fast_results got(c);
  got.run(c, 1);
  // Scores reach a few hundred: their own rounding is amplified by the exponential.
  CHECK(relative_error(got.out.values(), want.out) < 1e-4);
  CHECK(relative_error(got.lse.values(), want.lse) < 1e-6);
  CHECK(relative_error(got.d_q.values(), want.d_q) < 1e-3);
}

TEST_CASE("a NaN in a key shows in every result that sees it", "[unit]") {
  attention_case c = make_case({2, 1, 16, 0.25f}, 10, {{20, false}, {10, true}});
  c.pieces[1].key[static_cast<std::size_t>(5 * c.token_stride())] = std::nanf("");
  fast_results got(c);
  got.run(c, 1);
  CHECK(std::isfinite(got.out.values()[4 * 32]));
  CHECK(std::isnan(got.out.values()[5 * 32]));
  CHECK(std::isnan(got.d_q.values()[9 * 32]));
}

TEST_CASE("offsets beyond 31 bits reach the right key", "[unit]") {
  // Reserved, hardly touched: token t of head 0 lies t * 3e9 floats from the first.
  const index stride = 3'000'000'000;
  sparse_floats key(stride * 2 + 64), value(stride * 2 + 64), d_key(stride * 2 + 64),
      d_value(stride * 2 + 64);
  const auto k = random_values<float>(3 * 16, 1), v = random_values<float>(3 * 16, 2);
  for (index t = 0; t < 3; ++t) {
    std::copy_n(k.data() + t * 16, 16, key.data() + t * stride);
    std::copy_n(v.data() + t * 16, 16, value.data() + t * stride);
  }
  const attention_dims n{1, 1, 16, 0.25f};
  const auto q = random_values<float>(3 * 16, 3), d_out = random_values<float>(3 * 16, 4);
  runner on(1);
  auto run = [&](const kv_piece& piece, const kv_piece_gradient& gradient, std::vector<float>& out,
                 std::vector<float>& d_q) {
    std::vector<float> lse(3), delta(3);
    const cheads queries(q.data(), 3, 1, 16, 16, 16);
    attention_forward({out.data(), 3, 16}, {lse.data(), 3, 1}, queries, 0, {&piece, 1}, n, on.exec);
    attention_delta({delta.data(), 3, 1}, {d_out.data(), 3, 16}, {out.data(), 3, 16}, on.exec);
    attention_backward({d_q.data(), 3, 1, 16, 16, 16}, {&gradient, 1}, {d_out.data(), 3, 16},
                       {lse.data(), 3, 1}, {delta.data(), 3, 1}, queries, 0, {&piece, 1}, n,
                       on.exec);
  };
  std::vector<float> out(48), near_out(48), d_q(48), near_d_q(48), near_dk(48), near_dv(48);
  run({key.data(), value.data(), 3, 0, stride, 16}, {d_key.data(), d_value.data()}, out, d_q);
  run({k.data(), v.data(), 3, 0, 16, 16}, {near_dk.data(), near_dv.data()}, near_out, near_d_q);
  CHECK(same_bits(out, near_out));
  CHECK(same_bits(d_q, near_d_q));
  for (index t = 0; t < 3; ++t) {
    CHECK(std::equal(near_dk.begin() + t * 16, near_dk.begin() + (t + 1) * 16,
                     d_key.data() + t * stride));
    CHECK(std::equal(near_dv.begin() + t * 16, near_dv.begin() + (t + 1) * 16,
                     d_value.data() + t * stride));
  }
}

TEST_CASE("the reference's gradients are its finite differences", "[unit]") {
  attention_case c = make_case({4, 2, 5, 0.4f}, 6, {{3, true}, {6, true}});
  truth t = reference_of(c);
  auto loss = [&] {
    const truth now = reference_of(t.inputs, c);
    double sum = 0;
    for (std::size_t i = 0; i < now.out.size(); ++i) sum += now.out[i] * t.inputs.d_out[i];
    return sum;
  };
  auto less_start = [](std::vector<double> g) {
    for (double& x : g) x -= start;
    return g;
  };
  // q has unused values between its heads; their gradient is zero.
  std::vector<double> d_q(t.inputs.q.size());
  for (index r = 0; r < 6 * 4; ++r)
    for (index i = 0; i < 5; ++i)
      d_q[static_cast<std::size_t>(r * 8 + i)] = t.d_q[static_cast<std::size_t>(r * 5 + i)] - start;
  CHECK(finite_difference_error(t.inputs.q, d_q, loss) < 1e-8);
  for (std::size_t p = 0; p < 2; ++p) {
    CHECK(finite_difference_error(t.inputs.key[p], less_start(t.d_key[p]), loss) < 1e-8);
    CHECK(finite_difference_error(t.inputs.value[p], less_start(t.d_value[p]), loss) < 1e-8);
  }
}

}  // namespace longstraw::testing
