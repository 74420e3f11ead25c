#pragma once
// Attention of a few query rows, as when tokens are sampled one by one: keys and values are read
// once, where they lie, while the next tile is on its way from memory.

#include <longstraw/kernels/cpu/attention_tile.hpp>

namespace longstraw::kernels::attention_tile {

/// At most that many rows cost less than packing the keys for them.
inline constexpr index few_rows_max = 8;

///  scores [rows, tile.width] = q [rows, whole_vecs(head_dim), zero beyond] keys^T
inline void few_rows_scores(mat scores, cmat q, const key_tile& tile, const key_tile& next,
                            index head_dim) {
  const index whole = head_dim / lanes * lanes;
  for (index j = 0; j < tile.width; j += lanes) {
    const float* key[lanes];
    for (index i = 0; i < lanes; ++i) {
      // Columns beyond the last key are masked; any key will do for them.
      key[i] = tile.key[static_cast<std::size_t>(std::min(j + i, tile.count - 1))];
      fetch(next.key, next.count, j + i, head_dim);
    }
    for (index r = 0; r < scores.rows; ++r) {
      vec part[lanes] = {};
      for (index c = 0; c < whole; c += lanes) {
        const vec x = simd::load(q.row(r) + c);
        for (index i = 0; i < lanes; ++i) part[i] += x * simd::load(key[i] + c);
      }
      if (whole < head_dim) {
        const vec x = simd::load(q.row(r) + whole);
        for (index i = 0; i < lanes; ++i)
          part[i] += x * simd::load_part(key[i] + whole, head_dim - whole);
      }
      simd::store(scores.row(r) + j, sums_of_rows(part));
    }
  }
}

template <int Rows, int Vecs>
inline void few_rows_block(mat out, cmat weights, const key_tile& tile, const key_tile* next,
                           index column, index last, index head_dim) {
  vec sums[Rows][Vecs];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vecs; ++v) sums[r][v] = simd::load(out.row(r) + column + v * lanes);
  for (index j = 0; j < tile.count; ++j) {
    if (next) fetch(next->value, next->count, j, head_dim);
    const float* p = tile.value[static_cast<std::size_t>(j)] + column;
    vec value[Vecs];
    for (int v = 0; v < Vecs; ++v)
      value[v] = v == Vecs - 1 && last < lanes ? simd::load_part(p + v * lanes, last)
                                               : simd::load(p + v * lanes);
    for (int r = 0; r < Rows; ++r) {
      const vec weight = simd::splat(weights(r, j));
      for (int v = 0; v < Vecs; ++v) sums[r][v] += weight * value[v];
    }
  }
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vecs; ++v) simd::store(out.row(r) + column + v * lanes, sums[r][v]);
}

///  out [rows, whole_vecs(head_dim)] += weights [rows, tile.width] values
inline void few_rows_add_values(mat out, cmat weights, const key_tile& tile, const key_tile& next,
                                index head_dim) {
  for (index r = 0; r < out.rows;) {
    const index rows = out.rows - r >= 4 ? 4 : out.rows - r >= 2 ? 2 : 1;
    const mat to = out.row_range(r, r + rows);
    const cmat from = weights.row_range(r, r + rows);
    for (index c = 0; c < out.cols;) {
      const index vecs = out.cols - c >= 4 * lanes ? 4 : 1;
      const index last = std::min<index>(lanes, head_dim - c - (vecs - 1) * lanes);
      const key_tile* fetched = r == 0 && c == 0 ? &next : nullptr;
      auto run = [&]<int Rows>() {
        if (vecs == 4)
          few_rows_block<Rows, 4>(to, from, tile, fetched, c, last, head_dim);
        else
          few_rows_block<Rows, 1>(to, from, tile, fetched, c, last, head_dim);
      };
      if (rows == 4)
        run.template operator()<4>();
      else if (rows == 2)
        run.template operator()<2>();
      else
        run.template operator()<1>();
      c += vecs * lanes;
    }
    r += rows;
  }
}

}  // namespace longstraw::kernels::attention_tile
