#pragma once
// Attention of a few query rows, as when tokens are sampled one by one: keys and values are read
// where they lie, in their order, while the next tile is on its way from memory.

#include <longstraw/kernels/cpu/attention_tile.hpp>

namespace longstraw::kernels::attention_tile {

/// At most that many rows cost less than packing the keys for them.
inline constexpr index few_rows_max = 24;

/// A vector that has been read. The compiler would rather read it again, as an operand of each
/// multiplication; with one or two of them a key, reading is the bound.
inline vec held(vec x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));
#endif
  return x;
}

/// Asks for the keys or values of a coming tile, in the order in which they lie and four lines a
/// step: the processor holds only some two dozen requests, and work behind a longer burst waits.
class tile_fetch {
 public:
  tile_fetch(const std::array<const float*, key_block>& rows, index count, index head_dim)
      : rows_(rows), count_(count), head_dim_(head_dim) {}

  void step() {
    if (row_ >= count_) return;
    const float* p = rows_[static_cast<std::size_t>(row_)] + column_;
    for (index i = 0; i < step_floats; i += 16) __builtin_prefetch(p + i, 0, 2);
    column_ += step_floats;
    if (column_ >= head_dim_) column_ = 0, ++row_;
  }

  static constexpr index step_floats = 64;

 private:
  const std::array<const float*, key_block>& rows_;
  index count_, head_dim_;
  index row_ = 0, column_ = 0;
};

/// body(integral_constant<int, rows>, first row) for blocks of at most Most rows
template <int Most, class F>
inline void for_row_blocks(index rows, F&& body) {
  const auto run = [&]<int Rows>(const auto& self, index first, index count) -> void {
    if constexpr (Rows > 0) {
      if (count == Rows)
        body(std::integral_constant<int, Rows>{}, first);
      else
        self.template operator()<Rows - 1>(self, first, count);
    }
  };
  for (index first = 0; first < rows; first += Most)
    run.template operator()<Most>(run, first, std::min<index>(Most, rows - first));
}

/// Four neighbouring keys are multiplied at once, and their sums folded while they are in
/// registers; so many such blocks make a vector of scores.
inline constexpr index key_blocks = lanes / 4;

/// Folding leaves key b of block i in lane b * key_blocks + i.
template <std::size_t... Lane>
inline vec in_key_order(vec x, std::index_sequence<Lane...>) {
  return __builtin_shufflevector(x, x, static_cast<int>(Lane % 4 * key_blocks + Lane / 4)...);
}

template <int Rows>
inline void few_rows_scores(mat scores, cmat q, const key_tile& tile, tile_fetch& coming,
                            index head_dim) {
  const index whole = head_dim / lanes * lanes;
  for (index j = 0; j < tile.width; j += lanes) {
    vec sums[Rows][key_blocks];
    for (index i = 0; i < key_blocks; ++i) {
      const float* key[4];
      for (index b = 0; b < 4; ++b)  // columns beyond the last key are masked: any key will do
        key[b] = tile.key[static_cast<std::size_t>(std::min(j + 4 * i + b, tile.count - 1))];
      vec part[Rows][4];
      for (int r = 0; r < Rows; ++r)
        for (vec& p : part[r]) p = vec{};
      const auto add = [&](index c, auto get) __attribute__((always_inline)) {
        coming.step();
        vec k[4];
        for (int b = 0; b < 4; ++b) k[b] = Rows <= 2 ? held(get(key[b] + c)) : get(key[b] + c);
        for (int r = 0; r < Rows; ++r) {
          const vec x = simd::load(q.row(r) + c);
          for (int b = 0; b < 4; ++b) part[r][b] += x * k[b];
        }
      };
      for (index c = 0; c < whole; c += lanes) add(c, [](const float* p) { return simd::load(p); });
      if (whole < head_dim)
        add(whole, [rest = head_dim - whole](const float* p) { return simd::load_part(p, rest); });
      for (int r = 0; r < Rows; ++r)
        sums[r][i] = fold(fold(part[r][0], part[r][2]), fold(part[r][1], part[r][3]));
    }
    for (int r = 0; r < Rows; ++r) {
      for (index n = key_blocks / 2; n > 0; n /= 2)
        for (index i = 0; i < n; ++i) sums[r][i] = fold(sums[r][i], sums[r][i + n]);
      simd::store(scores.row(r) + j, in_key_order(sums[r][0], std::make_index_sequence<lanes>{}));
    }
  }
}

///  scores [rows, tile.width] = q [rows, whole_vecs(head_dim), zero beyond] keys^T
inline void few_rows_scores(mat scores, cmat q, const key_tile& tile, const key_tile& next,
                            index head_dim) {
  constexpr int most = 6;  // of 4 keys each, what the registers hold
  tile_fetch coming(next.key, next.count, head_dim);
  for_row_blocks<most>(scores.rows, [&]<int Rows>(std::integral_constant<int, Rows>, index r) {
    few_rows_scores<Rows>(scores.row_range(r, r + Rows), q.row_range(r, r + Rows), tile, coming,
                          head_dim);
  });
}

template <int Rows, int Vecs>
inline void few_rows_block(mat out, cmat weights, const key_tile& tile, index begin, index end,
                           tile_fetch& coming, index steps, index column, index last) {
  vec sums[Rows][Vecs];
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vecs; ++v) sums[r][v] = simd::load(out.row(r) + column + v * lanes);
  const auto add_all = [&](auto get_last) __attribute__((always_inline)) {
    for (index j = begin; j < end; ++j) {
      for (index i = 0; i < steps; ++i) coming.step();
      const float* p = tile.value[static_cast<std::size_t>(j)] + column;
      vec weight[Rows];
      for (int r = 0; r < Rows; ++r) weight[r] = simd::splat(weights(r, j));
      for (int v = 0; v < Vecs; ++v) {
        const vec value = v == Vecs - 1 ? get_last(p + v * lanes) : simd::load(p + v * lanes);
        for (int r = 0; r < Rows; ++r) sums[r][v] += weight[r] * value;
      }
    }
  };
  if (last == lanes)
    add_all([](const float* p) { return simd::load(p); });
  else
    add_all([last](const float* p) { return simd::load_part(p, last); });
  for (int r = 0; r < Rows; ++r)
    for (int v = 0; v < Vecs; ++v) simd::store(out.row(r) + column + v * lanes, sums[r][v]);
}

/// The rows `Most` at a time, `Vecs` vectors of columns at a time.
template <int Most, int Vecs>
inline void few_rows_add_blocks(mat out, cmat weights, const key_tile& tile, const key_tile& next,
                                index head_dim) {
  tile_fetch coming(next.value, next.count, head_dim);
  const index columns = Vecs * lanes;
  const index passes = blocks_of(out.rows, Most) * blocks_of(out.cols, columns);
  const index steps = blocks_of(blocks_of(head_dim, tile_fetch::step_floats), passes);
  // So many values at a time stay in the first-level cache from one pass to the next.
  const index run = passes == 1 ? tile.count : std::max<index>(lanes, 4096 / out.cols);
  for (index begin = 0; begin < tile.count; begin += run) {
    const index end = std::min(tile.count, begin + run);
    for (index c = 0; c < out.cols; c += columns)
      for_row_blocks<Most>(out.rows, [&]<int Rows>(std::integral_constant<int, Rows>, index r) {
        const index last = std::min(lanes, head_dim - c - columns + lanes);
        few_rows_block<Rows, Vecs>(out.row_range(r, r + Rows), weights.row_range(r, r + Rows), tile,
                                   begin, end, coming, steps, c, last);
      });
  }
}

///  out [rows, whole_vecs(head_dim)] += weights [rows, tile.width] values
/// Whole rows of values are taken if the registers allow it: memory is read in its order.
inline void few_rows_add_values(mat out, cmat weights, const key_tile& tile, const key_tile& next,
                                index head_dim) {
  if (out.cols % (8 * lanes) == 0)
    few_rows_add_blocks<2, 8>(out, weights, tile, next, head_dim);
  else if (out.cols % (4 * lanes) == 0)
    few_rows_add_blocks<6, 4>(out, weights, tile, next, head_dim);
  else
    few_rows_add_blocks<6, 1>(out, weights, tile, next, head_dim);
}

}  // namespace longstraw::kernels::attention_tile
