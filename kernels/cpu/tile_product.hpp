#pragma once
// C (+)= A B for tiles that live in the first-level caches (attention and gated-delta tiles, up to
// a few hundred rows). oneDNN's call overhead would cost more than such a product; this one is
// inlined into the kernel that needs it.
//
// A is read one value at a time, so any strides will do and a transposed A costs nothing. B and C
// have contiguous rows.

#include <longstraw/kernels/cpu/simd.hpp>

#include <algorithm>
#include <type_traits>

namespace longstraw::kernels {

/// Element (i, k) of the left factor is data[i * row_stride + k * col_stride].
struct left_factor {
  const float* data;
  index row_stride;
  index col_stride;
};
inline left_factor as_left(cmat a) { return {a.data, a.stride, 1}; }
inline left_factor as_left_transposed(cmat a) { return {a.data, 1, a.stride}; }

/// What a tile is put together from:  scale_i (a b)_i + (a2 b2)_i in row i
struct tile_terms {
  left_factor a;
  cmat b;
  const float* scale = nullptr;  ///< [rows]; unused, as the second product, where there is one term
  left_factor a2{};
  cmat b2{};
};

namespace detail {

/// What a product asks the memory for while it computes: ahead(k) every 16 steps of depth, the
/// values of a cache line. Nothing here, for operands that are in the caches.
struct nothing_ahead {
  void operator()(index) const {}
};
inline constexpr index ahead_steps = 16;

template <bool TwoTerms>
inline tile_terms from_row(tile_terms terms, index row) {
  terms.a.data += row * terms.a.row_stride;
  if constexpr (TwoTerms) {
    terms.scale += row;
    terms.a2.data += row * terms.a2.row_stride;
  }
  return terms;
}

template <int Rows, int Vecs, bool Part, class Ahead>
inline __attribute__((always_inline)) void accumulate(simd::vec (&acc)[Rows][Vecs], left_factor a,
                                                      cmat b, index column, index last_part,
                                                      const Ahead& ahead) {
  using namespace simd;
  for (index k = 0; k < b.rows; ++k) {
    if constexpr (!std::is_same_v<Ahead, nothing_ahead>)
      if (k % ahead_steps == 0) ahead(k);
    vec row[Vecs];
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; ++v) {
      const float* p = b.row(k) + column + v * lanes;
      row[v] = (Part && v == Vecs - 1) ? load_part(p, last_part) : load(p);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const vec x = splat(a.data[r * a.row_stride + k * a.col_stride]);
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; ++v) acc[r][v] += x * row[v];
    }
  }
}

// Loops over registers are unrolled early: the accumulators are in memory otherwise.
template <int Rows, int Vecs, bool Add, bool TwoTerms, bool Part, class Ahead = nothing_ahead>
inline __attribute__((always_inline)) void tile_kernel(mat c, const tile_terms& terms, float kept,
                                                       index column, index last_part,
                                                       const Ahead& ahead = {}) {
  using namespace simd;
  vec acc[Rows][Vecs];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; ++v) acc[r][v] = vec{};
  accumulate<Rows, Vecs, Part>(acc, terms.a, terms.b, column, last_part, ahead);
  if constexpr (TwoTerms) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vecs; ++v) acc[r][v] *= terms.scale[r];
    accumulate<Rows, Vecs, Part>(acc, terms.a2, terms.b2, column, last_part, ahead);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vecs; ++v) {
      float* p = c.row(r) + column + v * lanes;
      if (Part && v == Vecs - 1)
        store_part(p, Add ? load_part(p, last_part) * kept + acc[r][v] : acc[r][v], last_part);
      else
        store(p, Add ? load(p) * kept + acc[r][v] : acc[r][v]);
    }
}

// Rows of a register block. With 32 vector registers, 6 x 4 accumulators, 4 of B and 1 of A fit;
// narrower blocks take more rows, and two of them make 16.
template <int Vecs>
inline constexpr int block_rows = Vecs == 4 ? 6 : 8;

template <int Rows, int Vecs, bool Add, bool TwoTerms, bool Part>
inline void last_rows(mat c, const tile_terms& terms, float kept, index column, index last_part) {
  if constexpr (Rows > 0) {
    if (c.rows == Rows)
      tile_kernel<Rows, Vecs, Add, TwoTerms, Part>(c, terms, kept, column, last_part);
    else
      last_rows<Rows - 1, Vecs, Add, TwoTerms, Part>(c, terms, kept, column, last_part);
  }
}

template <int Vecs, bool Add, bool TwoTerms, bool Part>
inline void column_block(mat c, const tile_terms& terms, float kept, index column,
                         index last_part) {
  constexpr int rows = block_rows<Vecs>;
  index i = 0;
  for (; i + rows <= c.rows; i += rows)
    tile_kernel<rows, Vecs, Add, TwoTerms, Part>(
        c.row_range(i, i + rows), from_row<TwoTerms>(terms, i), kept, column, last_part);
  last_rows<rows - 1, Vecs, Add, TwoTerms, Part>(
      c.row_range(i, c.rows), from_row<TwoTerms>(terms, i), kept, column, last_part);
}

template <bool Add, bool TwoTerms>
inline void tile_product(mat c, const tile_terms& terms, float kept) {
  constexpr index wide = 4 * simd::lanes;
  index column = 0;
  for (; column + wide <= c.cols; column += wide)
    column_block<4, Add, TwoTerms, false>(c, terms, kept, column, 0);
  index rest = c.cols - column;
  if (rest >= 2 * simd::lanes) {
    column_block<2, Add, TwoTerms, false>(c, terms, kept, column, 0);
    column += 2 * simd::lanes, rest -= 2 * simd::lanes;
  }
  if (rest >= simd::lanes) {
    column_block<1, Add, TwoTerms, false>(c, terms, kept, column, 0);
    column += simd::lanes, rest -= simd::lanes;
  }
  if (rest > 0) column_block<1, Add, TwoTerms, true>(c, terms, kept, column, rest);
}

}  // namespace detail

///  c [m, n] = a [m, k] b [k, n]
inline void tile_product(mat c, left_factor a, cmat b) {
  detail::tile_product<false, false>(c, {a, b}, 0);
}
///  c [m, n] = kept c + a [m, k] b [k, n]
inline void tile_product_add(mat c, left_factor a, cmat b, float kept = 1) {
  detail::tile_product<true, false>(c, {a, b}, kept);
}
///  c [m, n] = scale (a [m, k] b [k, n]) + a2 [m, l] b2 [l, n];  scale [m] a factor for each row
inline void tile_product(mat c, const tile_terms& terms) {
  detail::tile_product<false, true>(c, terms, 0);
}
///  c += likewise
inline void tile_product_add(mat c, const tile_terms& terms) {
  detail::tile_product<true, true>(c, terms, 1);
}

}  // namespace longstraw::kernels
