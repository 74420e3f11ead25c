#pragma once
// A random attention problem in pieces, its truth in double, and the fast kernels run on it.

#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/reference/attention.hpp>

#include <memory>

namespace longstraw::testing {

/// What gradients hold before a kernel adds to them.
inline constexpr float start = 0.5f;

struct piece_size {
  index tokens;
  bool wanted;
};

struct attention_case {
  struct piece {
    std::vector<float> key, value;
    index tokens = 0;
    index position = 0;
    bool wanted = false;
  };
  kernels::attention_dims dims;
  index tokens = 0;
  index q_position = 0;
  std::vector<float> q,
      d_out;  // q [tokens, query_heads, head_dim + 3]: strides that are not the width
  std::vector<piece> pieces;  // [tokens, kv_heads, head_dim + 1] + 2 floats a token

  index head_stride() const { return dims.head_dim + 1; }
  index token_stride() const { return dims.kv_heads * head_stride() + 2; }
  index q_stride() const { return dims.query_heads * (dims.head_dim + 3); }
  index key_tokens() const {
    index sum = 0;
    for (const auto& p : pieces) sum += p.tokens;
    return sum;
  }
  cheads query_view() const {
    return {q.data(), tokens, dims.query_heads, dims.head_dim, q_stride(), dims.head_dim + 3};
  }
  std::vector<kernels::kv_piece> piece_views() const {
    std::vector<kernels::kv_piece> v;
    for (const auto& p : pieces)
      v.push_back(
          {p.key.data(), p.value.data(), p.tokens, p.position, token_stride(), head_stride()});
    return v;
  }
};

/// Pieces follow each other from position 1,000,000; the queries are the last positions.
inline attention_case make_case(kernels::attention_dims dims, index tokens,
                                const std::vector<piece_size>& sizes) {
  attention_case c{dims, tokens, 1'000'000, {}, {}, {}};
  unsigned seed = 7;
  c.q = random_values<float>(tokens * c.q_stride(), ++seed);
  c.d_out = random_values<float>(tokens * dims.query_heads * dims.head_dim, ++seed);
  for (const auto& s : sizes) {
    const index floats = s.tokens * c.token_stride();
    c.pieces.push_back({random_values<float>(floats, ++seed), random_values<float>(floats, ++seed),
                        s.tokens, c.q_position, s.wanted});
    c.q_position += s.tokens;
  }
  c.q_position -= tokens;
  return c;
}

struct truth {
  struct numbers {
    std::vector<double> q, d_out;
    std::vector<std::vector<double>> key, value;
  } inputs;
  std::vector<double> out, lse, delta, d_q;
  std::vector<std::vector<double>> d_key, d_value;
};

inline truth reference_of(const truth::numbers& in, const attention_case& c) {
  namespace ref = kernels::reference;
  const auto& n = c.dims;
  truth t;
  t.inputs = in;
  const auto rows = static_cast<std::size_t>(c.tokens * n.query_heads);
  const auto width = static_cast<std::size_t>(n.head_dim);
  t.out.assign(rows * width, 0);
  t.lse.assign(rows, 0);
  t.delta.assign(rows, 0);
  t.d_q.assign(rows * width, start);
  std::vector<ref::kv_part<double>> parts;
  std::vector<ref::kv_part_gradient<double>> gradients;
  for (std::size_t p = 0; p < c.pieces.size(); ++p) {
    const auto& piece = c.pieces[p];
    t.d_key.emplace_back(piece.key.size(), start);
    t.d_value.emplace_back(piece.key.size(), start);
    auto view = [&](auto& v) {
      return heads_view(v.data(), piece.tokens, n.kv_heads, n.head_dim, c.token_stride(),
                        c.head_stride());
    };
    parts.push_back({view(in.key[p]), view(in.value[p]), piece.position});
    gradients.push_back(piece.wanted
                            ? ref::kv_part_gradient<double>{view(t.d_key[p]), view(t.d_value[p])}
                            : ref::kv_part_gradient<double>{});
  }
  const heads_view<const double> q(in.q.data(), c.tokens, n.query_heads, n.head_dim, c.q_stride(),
                                   n.head_dim + 3);
  const index columns = n.query_heads * n.head_dim;
  const matrix_view<const double> d_out(in.d_out.data(), c.tokens, columns);
  const matrix_view<double> out(t.out.data(), c.tokens, columns),
      lse(t.lse.data(), c.tokens, n.query_heads), delta(t.delta.data(), c.tokens, n.query_heads);
  ref::attention_forward(out, lse, q, c.q_position, std::span<const ref::kv_part<double>>(parts),
                         n);
  ref::attention_delta(delta, d_out, matrix_view<const double>(out));
  ref::attention_backward(
      split_heads(matrix_view<double>(t.d_q.data(), c.tokens, columns), n.query_heads),
      std::span<const ref::kv_part_gradient<double>>(gradients), d_out,
      matrix_view<const double>(lse), matrix_view<const double>(delta), q, c.q_position,
      std::span<const ref::kv_part<double>>(parts), n);
  return t;
}

inline truth reference_of(const attention_case& c) {
  truth::numbers in{as<double>(c.q), as<double>(c.d_out), {}, {}};
  for (const auto& p : c.pieces) {
    in.key.push_back(as<double>(p.key));
    in.value.push_back(as<double>(p.value));
  }
  return reference_of(in, c);
}

struct fast_results {
  explicit fast_results(const attention_case& c)
      : out(c.tokens * c.dims.query_heads * c.dims.head_dim),
        lse(c.tokens * c.dims.query_heads),
        delta(c.tokens * c.dims.query_heads),
        d_q(c.tokens * c.dims.query_heads * c.dims.head_dim, start) {
    for (const auto& p : c.pieces) {
      d_key.push_back(std::make_unique<guarded>(static_cast<index>(p.key.size()), start));
      d_value.push_back(std::make_unique<guarded>(static_cast<index>(p.key.size()), start));
    }
  }

  void run(const attention_case& c, int threads) {
    runner on(threads);
    const auto& n = c.dims;
    const auto views = c.piece_views();
    std::vector<kernels::kv_piece_gradient> gradients;
    bool any = false;
    for (std::size_t p = 0; p < c.pieces.size(); ++p) {
      const bool wanted = c.pieces[p].wanted;
      any = any || wanted;
      gradients.push_back(
          {wanted && only_values_of != static_cast<int>(p) ? d_key[p]->data() : nullptr,
           wanted ? d_value[p]->data() : nullptr});
    }
    if (!any) gradients.clear();
    const index columns = n.query_heads * n.head_dim;
    const mat o = out.matrix(c.tokens, columns), l = lse.matrix(c.tokens, n.query_heads),
              d = delta.matrix(c.tokens, n.query_heads);
    const cmat d_out(c.d_out.data(), c.tokens, columns);
    kernels::attention_forward(o, l, c.query_view(), c.q_position, views, n, on.exec);
    kernels::attention_delta(d, d_out, o, on.exec);
    kernels::attention_backward(split_heads(d_q.matrix(c.tokens, columns), n.query_heads),
                                gradients, d_out, l, d, c.query_view(), c.q_position, views, n,
                                on.exec);
  }

  guarded out, lse, delta, d_q;
  std::vector<std::unique_ptr<guarded>> d_key, d_value;
  int only_values_of = -1;  ///< piece whose keys' gradient is not wanted
};

}  // namespace longstraw::testing
