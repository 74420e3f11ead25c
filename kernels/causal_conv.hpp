#pragma once
// Short causal depthwise convolution with SiLU, and the tail that carries it from one pass to the next.
//
//   pre[t, c] = sum_j weight[c, j] x[t - (kernel - 1) + j, c]      out = silu(pre)
//
// where x before the pass's first token is the tail: the last kernel - 1 inputs of earlier tokens, oldest first, zero
// before the sequence began.

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

/// Taps of the longest convolution.
inline constexpr index causal_conv_kernel_max = 8;

///  out, x [tokens, channels];  weight [channels, kernel];  tail [kernel - 1, channels]
///  out must not overlap x.
void causal_conv_forward(mat out, cmat x, cmat tail, cmat weight, executor& on);

///  next_tail [kernel - 1, channels] written: the tail after x. May be the same memory as tail.
void causal_conv_next_tail(mat next_tail, cmat x, cmat tail);

///  d_x [tokens, channels] written (=);  d_tail [kernel - 1, channels] written (=), or empty if not wanted;
///  d_weight [channels, kernel] +=
///  d_next_tail [kernel - 1, channels]: gradient that enters through the tail after x, or empty for none.
void causal_conv_backward(mat d_x, mat d_tail, mat d_weight, cmat d_out, cmat d_next_tail, cmat x,
                          cmat tail, cmat weight, executor& on);

}  // namespace longstraw::kernels
