#include <longstraw/kernels/cpu/simd.hpp>
#include <longstraw/kernels/embedding.hpp>

#include <algorithm>
#include <cstring>

namespace longstraw::kernels {
namespace {
constexpr index token_block = 16;
}  // namespace

void embedding_forward(mat out, std::span<const token_id> ids, cmat table, executor& on) {
  LS_ASSERT(out.rows == static_cast<index>(ids.size()) && out.cols == table.cols,
            "out [tokens, hidden], ids [tokens] and table [vocabulary, hidden] must agree");
  on.parallel_for(blocks_of(out.rows, token_block), [&](index block, scratch&) {
    const index end = std::min(out.rows, (block + 1) * token_block);
    for (index t = block * token_block; t < end; ++t)
      std::memcpy(out.row(t), table.row(ids[static_cast<std::size_t>(t)]),
                  static_cast<std::size_t>(out.cols) * sizeof(float));
  });
}

// Ids repeat, so tokens cannot be items; columns can, and keep the sums in token order.
void embedding_backward(mat d_table, cmat d_out, std::span<const token_id> ids, executor& on) {
  LS_ASSERT(d_out.rows == static_cast<index>(ids.size()) && d_out.cols == d_table.cols,
            "d_out [tokens, hidden], ids [tokens] and d_table [vocabulary, hidden] must agree");
  // Rows of a table lie anywhere in memory, where no hardware foresees the next one: it is asked for
  // while the row before it is worked on. The longer the stretch of a row, the better for memory.
  const index column_block =
      std::max<index>(64, blocks_of(d_out.cols, on.threads() * simd::lanes) * simd::lanes);
  on.parallel_for(blocks_of(d_out.cols, column_block), [=](index block, scratch&) {
    const index begin = block * column_block;
    const index width = std::min(column_block, d_out.cols - begin);
    const auto row = [=](index t) {
      return d_table.row(ids[static_cast<std::size_t>(std::min(t, d_out.rows - 1))]) + begin;
    };
    for (index t = 0; t < d_out.rows; ++t)
      simd::for_each_vec(width, [sum = row(t), next = row(t + 1), d = d_out.row(t) + begin](
                                    index column, auto load, auto store) {
        __builtin_prefetch(next + column, 1);
        store(sum, load(sum) + load(d));
      });
  });
}

}  // namespace longstraw::kernels
