#pragma once
// One-thread matrix product on oneDNN, for operands larger than a tile. Primitives and memory
// handles are kept by shape and thread, so that a repeated call costs about a microsecond.

#include <longstraw/kernels/cpu/tile_product.hpp>
#include <longstraw/kernels/executor.hpp>
#include <longstraw/kernels/linear.hpp>

namespace longstraw::kernels {

///  c [m, n] written or added to;  a [m, depth], b [depth, n] with one stride of each equal to 1
///  Deep products are cut, so that the library's workspace fits a thread's scratch.
void matmul(mat c, left_factor a, left_factor b, index depth, into mode, scratch& local);

}  // namespace longstraw::kernels
