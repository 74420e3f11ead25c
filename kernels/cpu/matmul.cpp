#include <longstraw/kernels/cpu/matmul.hpp>
#include <longstraw/kernels/cpu/pack.hpp>

namespace longstraw::kernels {
namespace {

// A packed panel of that depth takes 64 KiB and stays near while all rows of the other factor pass.
constexpr index depth_block = 256;
// Columns packed at once: with depth_block 256 KiB, a quarter of the second-level cache.
constexpr index columns_packed = 256;
// With so few rows, or so little depth, packing costs more than it gains.
constexpr index rows_unpacked = 8;
constexpr index depth_unpacked = 8;

left_factor from(left_factor f, index row, index column) {
  return {f.data + row * f.row_stride + column * f.col_stride, f.row_stride, f.col_stride};
}

// Panels [depth, 64] of the columns of f.
panels pack(left_factor f, index depth, index columns, float* out) {
  if (f.col_stride == 1) {
    pack_rows(
        out, [&](index k) { return f.data + k * f.row_stride; }, depth, depth, columns);
    return {out, depth, whole_vecs(columns), true};
  }
  LS_ASSERT(f.row_stride == 1, "one stride of a factor is 1");
  pack_transposed(
      out, [&](index j) { return f.data + j * f.col_stride; }, columns, depth);
  return {out, depth, whole_vecs(columns), false};
}

// One register block of c (+)= a b, b one panel. Memory is slower than this product only where it has
// to be waited for: what comes next is asked for ahead. Inlined, since the accumulators of a call
// of its own would not overlap with those of the block before.
template <class Ahead>
inline __attribute__((always_inline)) void block_product(mat c, left_factor a, cmat b, bool add,
                                                         const Ahead& ahead) {
  constexpr int rows = detail::block_rows<4>, vecs = 4;
  if (c.rows == rows && c.cols == panel) {
    if (add)
      detail::tile_kernel<rows, vecs, true, false, false>(c, {a, b}, 1, 0, 0, ahead);
    else
      detail::tile_kernel<rows, vecs, false, false, false>(c, {a, b}, 0, 0, 0, ahead);
  } else if (add) {
    tile_product_add(c, a, b);
  } else {
    tile_product(c, a, b);
  }
}

// Into the second-level cache: the first holds the panel and little more.
void fetch(const float* row, index columns) {
  for (index i = 0; i < columns; i += lanes) __builtin_prefetch(row + i, 0, 2);
}

// The register block of results from that row on.
void fetch_results(mat c, index begin) {
  for (index r = begin; r < std::min(c.rows, begin + detail::block_rows<4>); ++r)
    fetch(c.row(r), c.cols);
}

// One register block of c = a b over a full panel, which leaves the panel of b packed behind: the
// copy costs nothing beside the product.
template <bool Add>
void product_packing(mat c, left_factor a, cmat b, float* packed) {
  constexpr int rows = detail::block_rows<4>, vecs = 4;
  constexpr index ahead = 8;
  vec sums[rows][vecs];
  for (auto& row : sums)
    for (vec& sum : row) sum = vec{};
  for (index k = 0; k < b.rows; ++k) {
    vec right[vecs];
    for (int v = 0; v < vecs; ++v) {
      __builtin_prefetch(b.row(k + ahead) + v * lanes);
      right[v] = simd::load(b.row(k) + v * lanes);
      simd::store(packed + k * panel + v * lanes, right[v]);
    }
    for (int r = 0; r < rows; ++r) {
      const vec left = simd::splat(a.data[r * a.row_stride + k * a.col_stride]);
      for (int v = 0; v < vecs; ++v) sums[r][v] += left * right[v];
    }
  }
  for (int r = 0; r < rows; ++r)
    for (int v = 0; v < vecs; ++v) {
      float* to = c.row(r) + v * lanes;  // added last, as tile_product_add does: the same bits
      simd::store(to, Add ? simd::load(to) + sums[r][v] : sums[r][v]);
    }
}

// Rows of a left factor that is stored by columns are copied in strips: steps along its depth would
// otherwise fall into few cache sets. A strip is a whole number of register blocks and of vectors.
constexpr index strip_rows = 48;
static_assert(strip_rows % detail::block_rows<4> == 0 && strip_rows % 16 == 0);

// Rows of the next panel that are asked for at once: four register blocks ask for all of it.
constexpr index rows_fetched = 4;

// The left factor of one block of depth, in place or in strips.
class left_block {
 public:
  left_block(left_factor a, index rows, index depth, float* strips) : a_(a), depth_(depth) {
    if (a.col_stride == 1) return;
    strips_ = strips;
    for (index r = 0; r < rows; r += strip_rows)
      for (index k = 0; k < depth; ++k)
        for (index i = r; i < std::min(rows, r + strip_rows); i += lanes) {
          const float* source = a.data + i + k * a.col_stride;
          simd::store(strips + r * depth + k * strip_rows + i - r,
                      i + lanes <= rows ? simd::load(source) : simd::load_part(source, rows - i));
        }
  }
  left_factor at(index row) const {
    if (!strips_) return from(a_, row, 0);
    const index within = row % strip_rows;
    return {strips_ + (row - within) * depth_ + within, 1, strip_rows};
  }

 private:
  left_factor a_;
  index depth_;
  const float* strips_ = nullptr;
};

// c = a b with b packed: depth by depth, panel by panel.
void packed_right(mat c, left_factor a, left_factor b, index depth, bool add, scratch& local) {
  const index mark = local.mark();
  float* packed = local.floats(columns_packed * depth_block).data();
  float* strips =
      a.col_stride == 1
          ? nullptr
          : local.floats(blocks_of(c.rows, strip_rows) * strip_rows * std::min(depth, depth_block))
                .data();
  const bool direct = b.col_stride == 1 && c.rows >= detail::block_rows<4>;
  // Where the panel after that of column n begins in b; none if it is not a whole one.
  const auto next_panel = [&](index k, index n) -> const float* {
    n += panel;
    if (n >= c.cols) n = 0, k += depth_block;
    return direct && k + depth_block <= depth && n + panel <= c.cols ? from(b, k, n).data : nullptr;
  };
  for (index k = 0; k < depth; k += depth_block) {
    const index deep = std::min(depth_block, depth - k);
    const bool adding = add || k > 0;
    const left_block left(from(a, 0, k), c.rows, deep, strips);
    for (index n = 0; n < c.cols; n += columns_packed) {
      const index columns = std::min(columns_packed, c.cols - n);
      panels right{packed, deep, whole_vecs(columns), b.col_stride == 1};
      if (!direct) right = pack(from(b, k, n), deep, columns, packed);
      for (index p = 0; p < columns; p += panel) {
        cmat part = right.at(p);
        part.cols = std::min(part.cols, columns - p);
        const mat to = c.col_range(n + p, n + p + part.cols);
        index row = 0;
        if (direct && part.cols == panel) {
          const cmat source(from(b, k, n + p).data, deep, panel, b.row_stride);
          float* copy = packed + p * deep;
          if (adding)
            product_packing<true>(to, left.at(0), source, copy);
          else
            product_packing<false>(to, left.at(0), source, copy);
          row = detail::block_rows<4>;
        } else if (direct) {
          pack(from(b, k, n + p), deep, part.cols, packed + p * deep);
        }
        const float* next = next_panel(k, n + p);
        for (index end, fetched = 0; row < c.rows; row = end) {
          end = std::min(c.rows, row + detail::block_rows<4>);
          fetch_results(to, end);
          const mat block = to.row_range(row, end);
          if (next && fetched < depth_block)
            block_product(block, left.at(row), part, adding, [&](index) {
              for (index i = 0; i < rows_fetched && fetched < depth_block; ++i, ++fetched)
                fetch(next + fetched * b.row_stride, panel);
            });
          else
            block_product(block, left.at(row), part, adding, detail::nothing_ahead{});
        }
      }
    }
  }
  local.rewind(mark);
}

// to [n, m] (+)= tile [m, n] transposed
void turn(mat to, cmat tile, bool add) {
  for (index r = 0; r < to.rows; r += lanes)
    for (index c = 0; c < to.cols; c += lanes) {
      const index rows = std::min<index>(lanes, to.rows - r),
                  cols = std::min<index>(lanes, to.cols - c);
      vec square[lanes];
      for (index i = 0; i < lanes; ++i)
        square[i] = i < cols ? simd::load(tile.row(c + i) + r) : vec{};
      transpose(square);
      for (index i = 0; i < rows; ++i) {
        float* p = to.row(r + i) + c;
        if (cols == lanes)
          simd::store(p, add ? simd::load(p) + square[i] : square[i]);
        else
          simd::store_part(p, add ? simd::load_part(p, cols) + square[i] : square[i], cols);
      }
    }
}

// c (+)= a b, a block of rows after the other; the next rows of a are asked for meanwhile, those
// behind the last too: packed_left goes on with them.
void product(mat c, left_factor a, cmat b, bool add) {
  constexpr index step = detail::block_rows<4>;
  for (index r = 0; r < c.rows; r += step) {
    const index end = std::min(c.rows, r + step);
    fetch_results(c, end);
    block_product(c.row_range(r, end), from(a, r, 0), b, add, [&](index k) {
      for (index i = 0; i < step; ++i) __builtin_prefetch(from(a, end + i, k).data);
    });
  }
}

// c^T = b^T a^T with a^T packed: for c = x weight^T the weight is then read in the order it lies in
// memory, and only the smaller factor is packed. Tiles of c^T are turned on their way out.
void packed_left(mat c, left_factor a, left_factor b, index depth, bool add, scratch& local) {
  constexpr index columns_turned = 192;
  constexpr index packed_left_floats = index{128} << 10;  // half of the second-level cache
  const index mark = local.mark();
  const index near = std::max<index>(1, packed_left_floats / (depth * panel)) * panel;
  const index rows_packed = std::min({columns_packed, near, blocks_of(c.rows, panel) * panel});
  float* packed = local.floats(rows_packed * depth).data();
  const mat tile = local.matrix(columns_turned, panel);
  const left_factor left{b.data, b.col_stride, b.row_stride};
  for (index m = 0; m < c.rows; m += rows_packed) {
    const index rows = std::min(rows_packed, c.rows - m);
    const index padded = blocks_of(rows, panel) * panel;  // every packed panel is stored full
    for (index k = 0; k < depth; k += depth_block)
      pack({a.data + m * a.row_stride + k * a.col_stride, a.col_stride, a.row_stride},
           std::min(depth_block, depth - k), rows, packed + k * padded);
    for (index n = 0; n < c.cols; n += columns_turned) {
      const index columns = std::min(columns_turned, c.cols - n);
      for (index p = 0; p < rows; p += panel) {
        const index wide = std::min(panel, whole_vecs(rows) - p);
        const mat part(tile.data, columns, wide, panel);
        for (index k = 0; k < depth; k += depth_block) {
          const index deep = std::min(depth_block, depth - k);
          const panels right{packed + k * padded, deep, whole_vecs(rows), a.row_stride == 1};
          product(part, from(left, n, k), right.at(p), k > 0);
        }
        const index last = std::min(rows, p + panel);
        turn(c.row_range(m + p, m + last).col_range(n, n + columns), part, add);
      }
    }
  }
  local.rewind(mark);
}

}  // namespace

void matmul(mat c, left_factor a, left_factor b, index depth, into mode, scratch& local) {
  if (c.empty()) return;
  const bool add = mode == into::add;
  if (depth == 0) {
    if (!add)
      for (index r = 0; r < c.rows; ++r) std::fill_n(c.row(r), c.cols, 0.0f);
    return;
  }
  if constexpr (lanes < 16) return matmul_library(c, a, b, depth, mode, local);
  if (b.col_stride == 1 && (c.rows <= rows_unpacked || depth <= depth_unpacked)) {
    // In the blocks of the packed products, for the same bits.
    for (index k = 0; k < depth; k += depth_block)
      product(c, from(a, 0, k),
              {b.data + k * b.row_stride, std::min(depth_block, depth - k), c.cols, b.row_stride},
              add || k > 0);
    return;
  }
  // The packed left factor takes scratch for its whole depth; beyond this the product is cut.
  constexpr index depth_packed_left = 4096;
  // By the storage of the factors alone, not by the number of rows: the two products add to c in
  // another order.
  if (b.col_stride != 1 && a.col_stride == 1) {
    for (index k = 0; k < depth; k += depth_packed_left)
      packed_left(c, from(a, 0, k), from(b, k, 0), std::min(depth_packed_left, depth - k),
                  add || k > 0, local);
    return;
  }
  packed_right(c, a, b, depth, add, local);
}

}  // namespace longstraw::kernels
