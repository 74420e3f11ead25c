#include <longstraw/models/workspace.hpp>

#include <cstring>

namespace longstraw::models {
namespace {
constexpr index rows_of_block = 32;

template <class F>
void for_row_blocks(index rows, kernels::executor& on, F&& body) {
  on.parallel_for(kernels::blocks_of(rows, rows_of_block), [&](index block, kernels::scratch&) {
    const index end = std::min(rows, (block + 1) * rows_of_block);
    for (index r = block * rows_of_block; r < end; ++r) body(r);
  });
}

std::size_t bytes_of_floats(index count) { return static_cast<std::size_t>(count) * sizeof(float); }
}  // namespace

void copy(mat to, cmat from, kernels::executor& on) {
  LS_ASSERT(to.rows == from.rows && to.cols == from.cols, "a copy has the shape of its source");
  if (to.empty()) return;
  for_row_blocks(to.rows, on,
                 [&](index r) { std::memcpy(to.row(r), from.row(r), bytes_of_floats(to.cols)); });
}

void copy(heads to, cheads from, kernels::executor& on) {
  LS_ASSERT(to.tokens == from.tokens && to.heads == from.heads && to.width == from.width,
            "a copy has the shape of its source");
  for_row_blocks(to.tokens, on, [&](index t) {
    for (index h = 0; h < to.heads; ++h)
      std::memcpy(to.at(t, h), from.at(t, h), bytes_of_floats(to.width));
  });
}

void set_zero(mat m, kernels::executor& on) {
  if (m.empty()) return;
  for_row_blocks(m.rows, on, [&](index r) { std::memset(m.row(r), 0, bytes_of_floats(m.cols)); });
}

}  // namespace longstraw::models
