#pragma once
// y [m, n] (+)= x [m, k] w [n, k]^T for a few rows or a few columns, where packing either side
// would cost more than the product: one row at decoding time reads the weight once, at the speed of
// memory.

#include <longstraw/kernels/cpu/simd.hpp>

#include <algorithm>

namespace longstraw::kernels {

inline constexpr index dot_rows_max = 4;      ///< at most that many rows of x pay without packing
inline constexpr index dot_columns_max = 32;  ///< at most that many rows of w likewise

namespace detail {

template <int Rows, int Cols>
inline void dot_tile(mat y, cmat x, cmat w, bool add) {
  using namespace simd;
  vec acc[Rows][Cols] = {};
  index k = 0;
  for (; k + lanes <= x.cols; k += lanes) {
    vec row[Rows];
    for (int r = 0; r < Rows; ++r) row[r] = load(x.row(r) + k);
    for (int c = 0; c < Cols; ++c) {
      const vec column = load(w.row(c) + k);
      for (int r = 0; r < Rows; ++r) acc[r][c] += row[r] * column;
    }
  }
  if (const index rest = x.cols - k; rest > 0)
    for (int c = 0; c < Cols; ++c) {
      const vec column = load_part(w.row(c) + k, rest);
      for (int r = 0; r < Rows; ++r) acc[r][c] += load_part(x.row(r) + k, rest) * column;
    }
  for (int r = 0; r < Rows; ++r)
    for (int c = 0; c < Cols; ++c) {
      const float total = sum(acc[r][c]);
      y(r, c) = add ? y(r, c) + total : total;
    }
}

template <int Rows>
inline void dot_row_block(mat y, cmat x, cmat w, bool add) {
  index c = 0;
  for (; c + 4 <= y.cols; c += 4)
    dot_tile<Rows, 4>(y.col_range(c, c + 4), x, w.row_range(c, c + 4), add);
  for (; c < y.cols; ++c) dot_tile<Rows, 1>(y.col_range(c, c + 1), x, w.row_range(c, c + 1), add);
}

}  // namespace detail

inline void dot_rows(mat y, cmat x, cmat w, bool add) {
  index r = 0;
  for (; r + 4 <= y.rows; r += 4)
    detail::dot_row_block<4>(y.row_range(r, r + 4), x.row_range(r, r + 4), w, add);
  for (; r < y.rows; ++r)
    detail::dot_row_block<1>(y.row_range(r, r + 1), x.row_range(r, r + 1), w, add);
}

}  // namespace longstraw::kernels
