#include <longstraw/kernels/cpu/simd.hpp>
#include <longstraw/kernels/embedding.hpp>

#include <algorithm>
#include <cstring>

namespace longstraw::kernels {
namespace {
constexpr index token_block = 16;

/// Rows of a table lie anywhere in memory, where no hardware foresees the next one: it is asked for
/// while the row before it is worked on.
void fetch(const float* row, index count) {
  for (index i = 0; i < count; i += 16) __builtin_prefetch(row + i);
}
}  // namespace

void embedding_forward(mat out, std::span<const token_id> ids, cmat table, executor& on) {
  LS_ASSERT(out.rows == static_cast<index>(ids.size()) && out.cols == table.cols,
            "out [tokens, hidden], ids [tokens] and table [vocabulary, hidden] must agree");
  on.parallel_for(blocks_of(out.rows, token_block), [&](index block, scratch&) {
    const index end = std::min(out.rows, (block + 1) * token_block);
    for (index t = block * token_block; t < end; ++t) {
      std::memcpy(out.row(t), table.row(ids[static_cast<std::size_t>(t)]),
                  static_cast<std::size_t>(out.cols) * sizeof(float));
    }
  });
}

// Ids repeat, so tokens cannot be items; columns can, and keep the sums in token order.
void embedding_backward(mat d_table, cmat d_out, std::span<const token_id> ids, executor& on) {
  LS_ASSERT(d_out.rows == static_cast<index>(ids.size()) && d_out.cols == d_table.cols,
            "d_out [tokens, hidden], ids [tokens] and d_table [vocabulary, hidden] must agree");
  // Wide enough for memory to send what it is asked for in one go, and eight items if possible.
  const index column_block = std::max<index>(64, blocks_of(d_out.cols, 4 * 16) * 16);
  on.parallel_for(blocks_of(d_out.cols, column_block), [&](index block, scratch&) {
    const index begin = block * column_block;
    const index width = std::min(column_block, d_out.cols - begin);
    const auto row = [&](index t) { return d_table.row(ids[static_cast<std::size_t>(t)]) + begin; };
    for (index t = 0; t < d_out.rows; ++t) {
      if (t + 1 < d_out.rows) fetch(row(t + 1), width);
      simd::for_each_vec(width,
                         [sum = row(t), d = d_out.row(t) + begin](index, auto load, auto store) {
                           store(sum, load(sum) + load(d));
                         });
    }
  });
}

}  // namespace longstraw::kernels
