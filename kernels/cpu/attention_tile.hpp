#pragma once
// What attention's forward and backward share: blocks of keys gathered from the pieces, packing
// into tiles, and 2^x for scores. Scores are kept as multiples of log 2, so that a probability is a
// power of two: packed queries carry the factor scale / log 2.

#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/cpu/tile_product.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <numbers>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace longstraw::kernels::attention_tile {

using simd::lanes;
using simd::vec;

inline constexpr float log2_e = std::numbers::log2e_v<float>;
inline constexpr float ln_2 = std::numbers::ln2_v<float>;

/// Keys of a tile. Long enough that rescaling and the traffic of the results vanish beside the
/// products.
inline constexpr index key_block = 128;
/// Columns of a packed panel: what one pass of the register kernel covers.
inline constexpr index panel = 4 * lanes;

constexpr index whole_vecs(index n) { return (n + lanes - 1) / lanes * lanes; }

/// 2^x for x <= 0 up to rounding; 0 below the smallest normal number, NaN stays NaN.
inline vec exp2(vec x) {
#if defined(__AVX512F__)
  const __m512 v = reinterpret_cast<__m512>(x);
  const __m512 n =
      _mm512_maskz_roundscale_ps(0xFFFF, v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const vec r = x - reinterpret_cast<vec>(n);
  // Chebyshev interpolation on [-1/2, 1/2]; relative error 3e-9.
  vec p = r * 1.5469731913e-4f + 1.3400432166e-3f;
  p = p * r + 9.6180256032e-3f;
  p = p * r + 5.5503272142e-2f;
  p = p * r + 2.4022651214e-1f;
  p = p * r + 6.9314720671e-1f;
  p = p * r + 1.0f;
  const __mmask16 seen = _mm512_cmp_ps_mask(v, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
  return reinterpret_cast<vec>(_mm512_maskz_scalef_ps(seen, reinterpret_cast<__m512>(p), n));
#else
  return simd::exp(x * ln_2);
#endif
}

/// A run of keys of one kv head, gathered over the borders of pieces.
struct key_tile {
  index count = 0;  ///< keys gathered
  index width =
      0;  ///< count rounded up to whole vectors; the keys beyond count are zero and masked
  std::array<const float*, key_block> key;
  std::array<const float*, key_block> value;
  std::array<float*, key_block> d_key;    ///< null: not wanted
  std::array<float*, key_block> d_value;  ///< null: not wanted
  /// Position less that of the block's first query: query row t sees key j if relative[j] <= t.
  alignas(64) std::array<std::int32_t, key_block> relative;
  index first_row = 0;    ///< the first query that sees any key
  index masked_rows = 0;  ///< queries from this one on see every key
};

/// Which pieces a pass reads.
enum class pieces { all, frozen, wanted };

/// Walks the keys of one kv head that a block of queries can see, in the order of the pieces.
class key_cursor {
 public:
  ///  begin, end: in tokens of the chosen pieces, counted over all of them whether visible or not
  key_cursor(std::span<const kv_piece> keys, std::span<const kv_piece_gradient> d_keys,
             pieces which, index kv_head, index begin, index end, index first_position,
             index last_position)
      : keys_(keys),
        d_keys_(d_keys),
        which_(which),
        kv_head_(kv_head),
        left_(end - begin),
        first_position_(first_position),
        last_position_(last_position) {
    skip_unread();
    while (piece_ < keys_.size() && begin >= keys_[piece_].tokens) {
      begin -= keys_[piece_].tokens;
      ++piece_;
      skip_unread();
    }
    token_ = begin;
  }

  static bool chosen(std::span<const kv_piece_gradient> d_keys, pieces which, std::size_t piece) {
    if (which == pieces::all) return true;
    const bool wanted = !d_keys.empty() && (d_keys[piece].d_key || d_keys[piece].d_value);
    return wanted == (which == pieces::wanted);
  }
  static index tokens(std::span<const kv_piece> keys, std::span<const kv_piece_gradient> d_keys,
                      pieces which) {
    index sum = 0;
    for (std::size_t p = 0; p < keys.size(); ++p)
      if (chosen(d_keys, which, p)) sum += keys[p].tokens;
    return sum;
  }

  /// Fills the next tile; false at the end.
  bool next(key_tile& tile) {
    tile.count = 0;
    std::int32_t least = std::numeric_limits<std::int32_t>::max(), most = -1;
    while (tile.count < key_block && left_ > 0 && piece_ < keys_.size()) {
      const kv_piece& from = keys_[piece_];
      const index rest = std::min(from.tokens - token_, left_);
      const index visible = std::clamp<index>(last_position_ + 1 - from.position - token_, 0, rest);
      const index take = std::min(visible, key_block - tile.count);
      const index offset = kv_head_ * from.head_stride;
      for (index i = 0; i < take; ++i) {
        const auto to = static_cast<std::size_t>(tile.count + i);
        const index at = (token_ + i) * from.token_stride + offset;
        tile.key[to] = from.key + at;
        tile.value[to] = from.value + at;
        if (which_ == pieces::wanted) {
          const kv_piece_gradient& d = d_keys_[piece_];
          tile.d_key[to] = d.d_key ? d.d_key + at : nullptr;
          tile.d_value[to] = d.d_value ? d.d_value + at : nullptr;
        }
        // The distance fits 32 bits once it is cut off at -1: last_position bounds it above.
        const index distance = std::max<index>(from.position + token_ + i - first_position_, -1);
        tile.relative[to] = static_cast<std::int32_t>(distance);
        least = std::min(least, tile.relative[to]);
        most = std::max(most, tile.relative[to]);
      }
      tile.count += take;
      token_ += take;
      left_ -= take;
      if (take == visible && tile.count < key_block) {  // the rest of the piece lies in the future
        left_ -= rest - visible;
        ++piece_;
        token_ = 0;
        skip_unread();
      }
    }
    if (tile.count == 0) return false;
    tile.width = whole_vecs(tile.count);
    for (index j = tile.count; j < tile.width; ++j)
      tile.relative[static_cast<std::size_t>(j)] = std::numeric_limits<std::int32_t>::max();
    tile.first_row = std::max<index>(least, 0);
    tile.masked_rows = tile.count < tile.width ? std::numeric_limits<index>::max() : most;
    return true;
  }

 private:
  void skip_unread() {
    while (piece_ < keys_.size() && !chosen(d_keys_, which_, piece_)) ++piece_;
  }

  std::span<const kv_piece> keys_;
  std::span<const kv_piece_gradient> d_keys_;
  pieces which_;
  index kv_head_;
  index left_;
  index first_position_, last_position_;
  std::size_t piece_ = 0;
  index token_ = 0;
};

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

/// out: panels of `panel` columns, each [depth, panel]; column j is row j of `rows`, zero beyond
/// count.
inline void pack_transposed(float* out, const float* const* rows, index count, index depth) {
  for (index j = 0; j < count; j += lanes) {
    float* column = out + j / panel * panel * depth + j % panel;
    for (index k = 0; k < depth; k += lanes) {
      vec square[lanes];
      const index valid = std::min<index>(lanes, count - j),
                  deep = std::min<index>(lanes, depth - k);
      if (valid == lanes && deep == lanes) {
        for (index i = 0; i < lanes; ++i) square[i] = simd::load(rows[j + i] + k);
      } else {
        for (index i = 0; i < lanes; ++i)
          square[i] = i >= valid      ? vec{}
                      : deep == lanes ? simd::load(rows[j + i] + k)
                                      : simd::load_part(rows[j + i] + k, deep);
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

/// out: panels of the columns of `rows`, zero beyond count (up to `padded` rows) and beyond width.
inline void pack_rows(float* out, const float* const* rows, index count, index padded,
                      index width) {
  const index cols = whole_vecs(width);
  for (index c = 0; c < cols; c += panel) {
    const index wide = std::min(panel, cols - c);
    float* to = out + c * padded;
    for (index j = 0; j < padded; ++j, to += wide)
      for (index i = 0; i < wide; i += lanes)
        simd::store(to + i, j >= count ? vec{}
                            : c + i + lanes <= width
                                ? simd::load(rows[j] + c + i)
                                : simd::load_part(rows[j] + c + i, width - c - i));
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

/// Scores of keys that a query must not see become -inf. Row r of the tile is query r / group.
inline void mask(mat scores, const key_tile& tile, index first_row, index group) {
  const index end = std::min(tile.masked_rows, scores.rows / group);
  for (index t = first_row; t < end; ++t)
    for (index j = 0; j < tile.width; j += lanes) {
      simd::ivec relative;
      std::memcpy(&relative, tile.relative.data() + j, sizeof relative);
      const simd::ivec hidden = relative > static_cast<std::int32_t>(t);
      for (index r = t * group; r < (t + 1) * group; ++r) {
        float* p = scores.row(r) + j;
        simd::store(p,
                    hidden ? simd::splat(-std::numeric_limits<float>::infinity()) : simd::load(p));
      }
    }
}

/// Query rows of a block: query t and head h of the group lie in row t * group + h.
/// About row_target rows share one packed tile of keys, a multiple of the register kernel's rows.
struct query_blocks {
  index group = 1;   // query heads of a kv head
  index tokens = 0;  // queries of a block
  index count = 0;   // blocks
  query_blocks(index queries, attention_dims n) : group(n.query_heads / n.kv_heads) {
    const index row_target = n.head_dim <= 128 ? 192 : 96;
    const index most = std::max<index>(1, row_target / group);
    count = blocks_of(queries, most);
    tokens = count > 0 ? blocks_of(queries, count) : 0;
  }
  index rows() const { return tokens * group; }
};

/// packed [tokens * group, whole_vecs(width)] = factor * x of the kv head's query heads, zero
/// beyond width
inline void pack_queries(mat packed, cheads x, index kv_head, index group, float factor) {
  for (index t = 0; t < x.tokens; ++t)
    for (index h = 0; h < group; ++h) {
      const float* from = x.at(t, kv_head * group + h);
      float* to = packed.row(t * group + h);
      index i = 0;
      for (; i + lanes <= x.width; i += lanes) simd::store(to + i, simd::load(from + i) * factor);
      if (i < packed.cols) simd::store(to + i, simd::load_part(from + i, x.width - i) * factor);
    }
}

}  // namespace longstraw::kernels::attention_tile
