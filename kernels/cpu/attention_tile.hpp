#pragma once
// What attention's forward and backward share: blocks of keys gathered from the pieces, packing
// into tiles, and 2^x for scores. Scores are kept as multiples of log 2, so that a probability is a
// power of two: packed queries carry the factor scale / log 2.

#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/cpu/pack.hpp>

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

  static auto rows_of(const std::array<const float*, key_block>& pointers) {
    return [&pointers](index j) { return pointers[static_cast<std::size_t>(j)]; };
  }
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

/// body(tile, next) for every tile; next has count 0 behind the last.
template <class F>
inline void for_tiles(key_cursor& cursor, F&& body) {
  std::array<key_tile, 2> tiles;
  bool more = cursor.next(tiles[0]);
  for (std::size_t i = 0; more; i = 1 - i) {
    more = cursor.next(tiles[1 - i]);
    body(tiles[i], tiles[1 - i]);
  }
}

/// Starts to bring row j of a coming tile's keys or values near, if it has that many.
inline void fetch(const std::array<const float*, key_block>& rows, index count, index j,
                  index head_dim) {
  if (j >= count) return;
  for (index i = 0; i < head_dim; i += 16)
    __builtin_prefetch(rows[static_cast<std::size_t>(j)] + i, 0, 2);
}
/// The share of that which falls to row r of `rows`: requests are spread over the work on a tile,
/// as the core holds only a few dozen at once.
inline void fetch_share(const key_tile& tile, index r, index rows, index head_dim) {
  for (index j = tile.count * r / rows; j < tile.count * (r + 1) / rows; ++j)
    fetch(tile.key, tile.count, j, head_dim), fetch(tile.value, tile.count, j, head_dim);
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
