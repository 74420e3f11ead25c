#include <longstraw/kernels/cpu/dot_rows.hpp>
#include <longstraw/kernels/cpu/matmul.hpp>
#include <longstraw/kernels/linear.hpp>

namespace longstraw::kernels {
namespace {

// Borders of blocks depend on the shapes alone. Rows are cut evenly into at most row_block_max;
// columns so that a block is worth handing to a thread.
constexpr index row_block_max = 256;
constexpr index column_block = 256;

index even_block(index count, index block_max) {
  const index blocks = std::max<index>(1, blocks_of(count, block_max));
  return std::max<index>(1, blocks_of(count, blocks));
}

// Columns a block of a forward pass. Each block packs its rows of x anew, so it is as wide as it can
// be while more than one thread has work: the rows of a prompt chunk are enough of them, a suffix
// has a single block of rows. Whole register blocks.
index forward_column_block(index rows, index columns) {
  const index wide = rows >= row_block_max ? 2048 : 384;
  const index blocks = std::max<index>(rows >= row_block_max ? 1 : 2, (columns + wide / 2) / wide);
  return std::max<index>(64, (blocks_of(columns, blocks) + 5) / 6 * 6);
}

// Columns a block: a few blocks even of a small product, so that more than one thread has work.
index column_block_of(index columns) {
  return columns >= 4 * column_block ? column_block : std::max<index>(64, even_block(columns, 128));
}

template <class F>
void for_blocks(index rows, index row_block, index cols, index col_block, executor& on, F&& body) {
  const index across = blocks_of(cols, col_block);
  on.parallel_for(blocks_of(rows, row_block) * across, [&](index item, scratch& local) {
    const index r = item / across * row_block, c = item % across * col_block;
    body(r, std::min(rows, r + row_block), c, std::min(cols, c + col_block), local);
  });
}

void add_bias(mat y, const float* bias, into mode) {
  for (index r = 0; r < y.rows; ++r)
    simd::for_each_vec(y.cols, [&](index, auto load, auto store) {
      store(y.row(r), mode == into::add ? load(y.row(r)) + load(bias) : load(bias));
    });
}

}  // namespace

void linear_forward(mat y, cmat x, cmat weight, std::span<const float> bias, into mode,
                    executor& on, index of_tokens) {
  LS_ASSERT(y.rows == x.rows && y.cols == weight.rows && x.cols == weight.cols,
            "y [tokens, out], x [tokens, in] and weight [out, in] must agree");
  LS_ASSERT(of_tokens == 0 || of_tokens >= y.rows, "a slice has no more tokens than the whole");
  if (y.empty()) return;
  // Each of the three products gives a row the same bits whatever rows are computed with it, but
  // not those of the others.
  const index whole = of_tokens == 0 ? y.rows : of_tokens;
  const bool few_rows = whole <= dot_rows_max;
  const bool few_columns = y.cols <= dot_columns_max;
  const index row_block = few_rows ? y.rows : even_block(y.rows, few_columns ? 64 : row_block_max);
  const index col_block = few_rows ? std::max<index>(4, 65536 / std::max<index>(1, x.cols) / 4 * 4)
                          : few_columns ? y.cols
                                        : forward_column_block(y.rows, y.cols);
  for_blocks(y.rows, row_block, y.cols, col_block, on,
             [&](index r0, index r1, index c0, index c1, scratch& local) {
               const mat part = y.row_range(r0, r1).col_range(c0, c1);
               const cmat rows = x.row_range(r0, r1), columns = weight.row_range(c0, c1);
               into how = mode;
               if (!bias.empty()) {
                 add_bias(part, bias.data() + c0, mode);
                 how = into::add;
               }
               if (few_rows || few_columns)
                 dot_rows(part, rows, columns, how == into::add);
               else
                 matmul(part, as_left(rows), as_left_transposed(columns), x.cols, how, local);
             });
}

void linear_backward_input(mat d_x, cmat d_y, cmat weight, into mode, executor& on) {
  LS_ASSERT(d_x.rows == d_y.rows && d_y.cols == weight.rows && d_x.cols == weight.cols,
            "d_x [tokens, in], d_y [tokens, out] and weight [out, in] must agree");
  if (d_x.empty()) return;
  for_blocks(d_x.rows, even_block(d_x.rows, row_block_max), d_x.cols, column_block_of(d_x.cols), on,
             [&](index r0, index r1, index c0, index c1, scratch& local) {
               matmul(d_x.row_range(r0, r1).col_range(c0, c1), as_left(d_y.row_range(r0, r1)),
                      as_left(weight.col_range(c0, c1)), d_y.cols, mode, local);
             });
}

void linear_backward_weight(mat d_weight, std::span<float> d_bias, cmat d_y, cmat x, executor& on) {
  LS_ASSERT(d_weight.rows == d_y.cols && d_weight.cols == x.cols && d_y.rows == x.rows,
            "d_weight [out, in], d_y [tokens, out] and x [tokens, in] must agree");
  for_blocks(d_weight.rows, even_block(d_weight.rows, 256), d_weight.cols, d_weight.cols, on,
             [&](index r0, index r1, index c0, index c1, scratch& local) {
               matmul(d_weight.row_range(r0, r1).col_range(c0, c1),
                      as_left_transposed(d_y.col_range(r0, r1)), as_left(x.col_range(c0, c1)),
                      x.rows, into::add, local);
               if (d_bias.empty()) return;
               for (index t = 0; t < d_y.rows; ++t)
                 simd::for_each_vec(r1 - r0, [&](index, auto load, auto store) {
                   float* sum = d_bias.data() + r0;
                   store(sum, load(sum) + load(d_y.row(t) + r0));
                 });
             });
}

}  // namespace longstraw::kernels
