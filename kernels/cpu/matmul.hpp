#pragma once
// One-thread matrix products for operands larger than a tile.

#include <longstraw/kernels/cpu/tile_product.hpp>
#include <longstraw/kernels/executor.hpp>
#include <longstraw/kernels/linear.hpp>

namespace longstraw::kernels {

///  c [m, n] written or added to;  a [m, depth], b [depth, n] with one stride of each equal to 1
/// Packs panels of one factor into scratch and runs the register kernel of tile_product over them.
/// Sums run over depth in blocks whose borders depend on depth alone: a row of c has the same bits
/// whatever other rows and columns are computed with it.
void matmul(mat c, left_factor a, left_factor b, index depth, into mode, scratch& local);

/// The same on oneDNN, which brings kernels for every processor: used where the project is not
/// compiled for AVX-512. It promises nothing on bits across row counts; measured, a row has the same
/// in any product of at least 16 rows and the same number of columns. Primitives and memory handles are kept by shape and thread.
void matmul_library(mat c, left_factor a, left_factor b, index depth, into mode, scratch& local);

}  // namespace longstraw::kernels
