#include "support/attention_case.hpp"

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

constexpr float none = -std::numeric_limits<float>::infinity();
const attention_dims dims{4, 2, 24, 0.2f};

// The result of attending to the given pieces of a case only.
struct partial {
  guarded out, lse;
  partial(const attention_case& c, const std::vector<kv_piece>& pieces, executor& exec)
      : out(c.tokens * 4 * 24), lse(c.tokens * 4) {
    attention_forward(out.matrix(c.tokens, 4 * 24), lse.matrix(c.tokens, 4), c.query_view(),
                      c.q_position, pieces, c.dims, exec);
  }
  attention_part view(const attention_case& c) {
    return {out.matrix(c.tokens, 4 * 24), lse.matrix(c.tokens, 4)};
  }
};

}  // namespace

TEST_CASE("parts of the keys, attended apart and merged in any order, equal dense attention",
          "[unit][parity]") {
  attention_case c =
      make_case(dims, 65, {{0, true}, {40, true}, {1, true}, {129, true}, {65, true}});
  const truth want = reference_of(c);
  runner on(2);
  std::vector<kv_piece> pieces = c.piece_views();
  std::vector<std::size_t> order{0, 1, 2, 3, 4};
  std::mt19937 engine(5);
  for (int round = 0; round < 8; ++round) {
    std::shuffle(order.begin(), order.end(), engine);
    // Deal the pieces to a few parts; some stay empty.
    const std::size_t count = 1 + round % 4;
    std::vector<std::vector<kv_piece>> dealt(count);
    std::vector<std::vector<kv_piece_gradient>> gradients(count);
    fast_results got(c);
    for (std::size_t i = 0; i < order.size(); ++i) {
      dealt[i % count].push_back(pieces[order[i]]);
      gradients[i % count].push_back({got.d_key[order[i]]->data(), got.d_value[order[i]]->data()});
    }
    std::vector<std::unique_ptr<partial>> partials;
    std::vector<attention_part> parts;
    for (const auto& part : dealt) {
      partials.push_back(std::make_unique<partial>(c, part, on.exec));
      parts.push_back(partials.back()->view(c));
    }
    const mat out = got.out.matrix(65, 4 * 24), lse = got.lse.matrix(65, 4),
              delta = got.delta.matrix(65, 4);
    attention_merge(out, lse, parts, on.exec);
    const cmat d_out(c.d_out.data(), 65, 4 * 24);
    attention_delta(delta, d_out, out, on.exec);
    for (std::size_t i = 0; i < count; ++i)
      attention_backward(split_heads(got.d_q.matrix(65, 4 * 24), 4), gradients[i], d_out, lse,
                         delta, c.query_view(), c.q_position, dealt[i], dims, on.exec);
    const double bound = float32_bound(300);
    CHECK(relative_error(got.out.values(), want.out) < bound);
    CHECK(relative_error(got.lse.values(), want.lse) < bound);
    CHECK(relative_error(got.d_q.values(), want.d_q) < bound);
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      CHECK(relative_error(got.d_key[p]->values(), want.d_key[p]) < bound);
      CHECK(relative_error(got.d_value[p]->values(), want.d_value[p]) < bound);
    }
  }
}

TEST_CASE("an empty part changes no bit, wherever it stands", "[unit]") {
  attention_case c = make_case(dims, 20, {{40, false}, {20, false}});
  runner on(1);
  const auto pieces = c.piece_views();
  partial a(c, {pieces[0]}, on.exec), b(c, {pieces[1]}, on.exec), empty(c, {}, on.exec);
  for (float x : empty.out.values()) REQUIRE(x == 0);
  for (float x : empty.lse.values()) REQUIRE(x == none);
  const auto part_a = a.view(c), part_b = b.view(c), part_empty = empty.view(c);
  guarded out(20 * 96), lse(80), out_2(20 * 96), lse_2(80);
  attention_merge(out.matrix(20, 96), lse.matrix(20, 4), std::vector{part_a, part_b}, on.exec);
  for (const auto& parts :
       {std::vector{part_empty, part_a, part_b}, std::vector{part_a, part_empty, part_b},
        std::vector{part_a, part_b, part_empty, part_empty}}) {
    attention_merge(out_2.matrix(20, 96), lse_2.matrix(20, 4), parts, on.exec);
    CHECK(same_bits(out.values(), out_2.values()));
    CHECK(same_bits(lse.values(), lse_2.values()));
  }
}

TEST_CASE("merging nothing, or only empty parts, gives zero and -inf without NaN", "[unit]") {
  const index tokens = GENERATE(1, 5);
  attention_case c = make_case(dims, tokens, {});
  runner on(1);
  partial empty(c, {}, on.exec);
  for (const auto& parts : {std::vector<attention_part>{}, std::vector{empty.view(c)},
                            std::vector{empty.view(c), empty.view(c)}}) {
    guarded out(tokens * 96), lse(tokens * 4);
    attention_merge(out.matrix(tokens, 96), lse.matrix(tokens, 4), parts, on.exec);
    for (float x : out.values()) REQUIRE(x == 0);
    for (float x : lse.values()) REQUIRE(x == none);
  }
}

TEST_CASE("a part that is NaN makes the merged row NaN, and no other", "[unit]") {
  attention_case c = make_case(dims, 3, {{40, false}, {20, false}});
  runner on(1);
  const auto pieces = c.piece_views();
  partial a(c, {pieces[0]}, on.exec), b(c, {pieces[1]}, on.exec);
  a.lse.values()[1 * 4 + 2] = std::numeric_limits<float>::quiet_NaN();  // token 1, head 2
  for (const auto& parts : {std::vector{a.view(c), b.view(c)}, std::vector{b.view(c), a.view(c)}}) {
    guarded out(3 * 96), lse(3 * 4);
    attention_merge(out.matrix(3, 96), lse.matrix(3, 4), parts, on.exec);
    for (index i = 0; i < 3 * 4; ++i)
      CHECK(std::isnan(lse.values()[static_cast<std::size_t>(i)]) == (i == 6));
    for (index i = 0; i < 3 * 96; ++i)
      CHECK(std::isnan(out.values()[static_cast<std::size_t>(i)]) == (i / 24 == 6));
  }
}

TEST_CASE("the reference's merge equals its dense attention", "[unit]") {
  namespace ref = kernels::reference;
  attention_case c = make_case(dims, 9, {{7, false}, {9, false}});
  const truth dense = reference_of(c);
  std::vector<truth> parts;
  for (std::size_t kept : {0u, 1u}) {
    attention_case part = c;
    part.pieces = {c.pieces[kept]};
    parts.push_back(reference_of(part));
  }
  std::vector<ref::attention_result<double>> views;
  for (const auto& p : parts) views.push_back({{p.out.data(), 9, 96}, {p.lse.data(), 9, 4}});
  std::vector<double> out(9 * 96), lse(9 * 4);
  ref::attention_merge(matrix_view(out.data(), 9, 96), matrix_view(lse.data(), 9, 4),
                       std::span<const ref::attention_result<double>>(views));
  CHECK(relative_error(out, dense.out) < 1e-14);
  CHECK(relative_error(lse, dense.lse) < 1e-14);
}

TEST_CASE("the sigmoid gate and its gradients equal the reference", "[unit][parity]") {
  namespace ref = kernels::reference;
  const index tokens = GENERATE(0, 1, 63), width = GENERATE(1, 24, 64);
  const index heads_count = 3, stride = 2 * width, row = heads_count * stride;  // x | gate a head
  const auto data = random_values<float>(tokens * row, 3, 4.0),
             up = random_values<float>(tokens * row, 4);
  const cheads x(data.data(), tokens, heads_count, width, row, stride);
  const cheads gate(data.data() + width, tokens, heads_count, width, row, stride);
  const cheads d_out(up.data(), tokens, heads_count, width, row, stride);
  const auto data_d = as<double>(data), up_d = as<double>(up);
  auto wide = [&](const std::vector<double>& v, index offset) {
    return heads_view<const double>(v.data() + offset, tokens, heads_count, width, row, stride);
  };
  const index n = tokens * heads_count * width;
  guarded out(n), d_x(n), d_gate(n);
  std::vector<double> want(static_cast<std::size_t>(n)), want_dx(want), want_dg(want);
  auto dense = [&](auto* p) {
    return heads_view(p, tokens, heads_count, width, heads_count * width, width);
  };
  runner on(2);
  sigmoid_gate_forward(dense(out.data()), x, gate, on.exec);
  sigmoid_gate_backward(dense(d_x.data()), dense(d_gate.data()), d_out, x, gate, on.exec);
  ref::sigmoid_gate_forward(dense(want.data()), wide(data_d, 0), wide(data_d, width));
  ref::sigmoid_gate_backward(dense(want_dx.data()), dense(want_dg.data()), wide(up_d, 0),
                             wide(data_d, 0), wide(data_d, width));
  CHECK(relative_error(out.values(), want) < float32_bound(1));
  CHECK(relative_error(d_x.values(), want_dx) < float32_bound(1));
  CHECK(relative_error(d_gate.values(), want_dg) < float32_bound(4));

  // In place, as the layer does it.
  std::vector<float> kept(data);
  const heads in_place(kept.data(), tokens, heads_count, width, row, stride);
  sigmoid_gate_forward(in_place, in_place, gate, on.exec);
  for (index t = 0; t < tokens; ++t)
    for (index h = 0; h < heads_count; ++h)
      REQUIRE(std::equal(in_place.at(t, h), in_place.at(t, h) + width, dense(out.data()).at(t, h)));
}

TEST_CASE("the sigmoid gate's reference gradients are its finite differences", "[unit]") {
  namespace ref = kernels::reference;
  auto x = random_values(12, 1), gate = random_values(12, 2);
  const auto d_out = random_values(12, 3);
  std::vector<double> d_x(12), d_gate(12), out(12);
  auto view = [](auto& v) { return heads_view(v.data(), 2, 2, 3, 6, 3); };
  ref::sigmoid_gate_backward(view(d_x), view(d_gate), view(d_out), view(x), view(gate));
  auto loss = [&] {
    ref::sigmoid_gate_forward(view(out), view(x), view(gate));
    double sum = 0;
    for (std::size_t i = 0; i < 12; ++i) sum += out[i] * d_out[i];
    return sum;
  };
  CHECK(finite_difference_error(x, d_x, loss) < 1e-8);
  CHECK(finite_difference_error(gate, d_gate, loss) < 1e-8);
}

}  // namespace longstraw::testing
