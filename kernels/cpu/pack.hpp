#pragma once
// Packing for products: the right factor of a product lies in panels that the register kernel reads
// from front to back, whatever the strides it came with.

#include <longstraw/kernels/cpu/tile_product.hpp>

#include <utility>

namespace longstraw::kernels {

using simd::lanes;
using simd::vec;

/// Columns of a packed panel: what one pass of the register kernel covers.
inline constexpr index panel = 4 * lanes;

constexpr index whole_vecs(index n) { return (n + lanes - 1) / lanes * lanes; }

template <std::size_t... I>
inline vec interleave_low(vec a, vec b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, static_cast<int>(I / 2 + I % 2 * lanes)...);
}
template <std::size_t... I>
inline vec interleave_high(vec a, vec b, std::index_sequence<I...>) {
  return __builtin_shufflevector(a, b, static_cast<int>((I + lanes) / 2 + I % 2 * lanes)...);
}

/// A square of lanes x lanes in registers. One step moves the top bit of the column number below
/// the row number and the top bit of the row number below the column number; after log2(lanes) of
/// them the two numbers have changed places.
inline void transpose(vec (&rows)[lanes]) {
  constexpr auto all = std::make_index_sequence<lanes>{};
  for (index step = 1; step < lanes; step *= 2) {
    vec mixed[lanes];
    for (index i = 0; i < lanes / 2; ++i) {
      mixed[2 * i] = interleave_low(rows[i], rows[i + lanes / 2], all);
      mixed[2 * i + 1] = interleave_high(rows[i], rows[i + lanes / 2], all);
    }
    for (index i = 0; i < lanes; ++i) rows[i] = mixed[i];
  }
}

/// Neighbouring lanes of both vectors summed: a step towards the sums over all lanes of many
/// vectors.
inline vec fold(vec a, vec b) {
  constexpr auto all = std::make_index_sequence<lanes>{};
  return interleave_low(a, b, all) + interleave_high(a, b, all);
}

/// Lane i of the result is the sum over the lanes of rows[i].
inline vec sums_of_rows(vec (&rows)[lanes]) {
  for (index n = lanes / 2; n > 0; n /= 2)
    for (index i = 0; i < n; ++i) rows[i] = fold(rows[i], rows[i + n]);
  return rows[0];
}

/// out: panels of `panel` columns, each [depth, panel]; column j is row(j), a pointer to depth
/// values; zero beyond count, up to a whole vector.
/// Long rows far apart are more than the processor foresees: Ahead values of each are asked for
/// early.
template <index Ahead = 0, class Rows>
inline void pack_transposed(float* out, const Rows& row, index count, index depth) {
  for (index j = 0; j < count; j += lanes) {
    float* column = out + j / panel * panel * depth + j % panel;
    for (index k = 0; k < depth; k += lanes) {
      vec square[lanes];
      const index valid = std::min<index>(lanes, count - j),
                  deep = std::min<index>(lanes, depth - k);
      if (valid == lanes && deep == lanes) {
        for (index i = 0; i < lanes; ++i) {
          if constexpr (Ahead > 0) __builtin_prefetch(row(j + i) + k + Ahead);
          square[i] = simd::load(row(j + i) + k);
        }
      } else {
        for (index i = 0; i < lanes; ++i)
          square[i] = i >= valid      ? vec{}
                      : deep == lanes ? simd::load(row(j + i) + k)
                                      : simd::load_part(row(j + i) + k, deep);
      }
      transpose(square);
      if (deep == lanes)
        for (index i = 0; i < lanes; ++i) simd::store(column + (k + i) * panel, square[i]);
      else
        for (index i = 0; i < deep; ++i) simd::store(column + (k + i) * panel, square[i]);
    }
  }
}

/// The panels of `pack_transposed`, or of `pack_rows`, that start at a column.
struct panels {
  const float* data;
  index rows;
  index cols;        // in all, whole vectors
  bool narrow_last;  // the last panel's rows are as long as it is wide (pack_rows)
  cmat at(index column) const {
    const index width = std::min(panel, cols - column);
    return {data + column * rows, rows, width, narrow_last ? width : panel};
  }
};

/// out: panels of the columns of rows row(j), zero beyond count (up to `padded` rows) and beyond
/// width.
template <class Rows>
inline void pack_rows(float* out, const Rows& row, index count, index padded, index width) {
  const index cols = whole_vecs(width);
  for (index c = 0; c < cols; c += panel) {
    const index wide = std::min(panel, cols - c);
    float* to = out + c * padded;
    for (index j = 0; j < padded; ++j, to += wide)
      for (index i = 0; i < wide; i += lanes)
        simd::store(to + i, j >= count ? vec{}
                            : c + i + lanes <= width
                                ? simd::load(row(j) + c + i)
                                : simd::load_part(row(j) + c + i, width - c - i));
  }
}

/// c (+)= a b over packed panels; c has whole vectors of columns.
template <bool Add>
inline void panel_product(mat c, left_factor a, panels b) {
  for (index column = 0; column < c.cols; column += panel) {
    const cmat part = b.at(column);
    const mat to = c.col_range(column, column + part.cols);
    if constexpr (Add)
      tile_product_add(to, a, part);
    else
      tile_product(to, a, part);
  }
}

}  // namespace longstraw::kernels
