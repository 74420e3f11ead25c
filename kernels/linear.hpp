#pragma once
// Linear layers in the layout of checkpoints: weight [out, in], y = x weight^T + bias. Products run on packed panels, one
// thread each (on oneDNN where the project is not compiled for AVX-512), over blocks whose borders depend on the shapes
// alone: results have the same bits for any thread count. All views may have row strides.

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

enum class into { write, add };  ///< result = ..., or result += ...

///  y [tokens, out] written or added to;  x [tokens, in];  weight [out, in];  bias [out] or empty
///  of_tokens: how many tokens x is a slice of (0: x is all of them). Up to four tokens have a product of their own; the
///  number of all of them chooses, so that a token's result has the same bits in any slice.
void linear_forward(mat y, cmat x, cmat weight, std::span<const float> bias, into mode,
                    executor& on, index of_tokens = 0);

///  d_x [tokens, in] written or added to;  d_y [tokens, out]. A token's result has the same bits in any slice.
void linear_backward_input(mat d_x, cmat d_y, cmat weight, into mode, executor& on);

///  d_weight [out, in] +=;  d_bias [out] += (or empty)
void linear_backward_weight(mat d_weight, std::span<float> d_bias, cmat d_y, cmat x, executor& on);

}  // namespace longstraw::kernels
