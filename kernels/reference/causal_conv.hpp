#pragma once
// Plain causal depthwise convolution with SiLU, in float or double.

#include <longstraw/kernels/causal_conv.hpp>
#include <longstraw/kernels/reference/rms_norm.hpp>

namespace longstraw::kernels::reference {

/// Input number `t` of the pass; t < 0 counts back into the tail.
template <class T>
const T& conv_input(matrix_view<const T> x, matrix_view<const T> tail, index t, index channel) {
  return t >= 0 ? x(t, channel) : tail(tail.rows + t, channel);
}

///  out [tokens, channels] written
template <class T>
void causal_conv_forward(matrix_view<T> out, in_matrix<T> x, in_matrix<T> tail,
                         in_matrix<T> weight) {
  for (index t = 0; t < x.rows; ++t)
    for (index c = 0; c < x.cols; ++c) {
      T pre = 0;
      for (index j = 0; j < weight.cols; ++j)
        pre += weight(c, j) * conv_input<T>(x, tail, t - (weight.cols - 1) + j, c);
      out(t, c) = silu(pre);
    }
}

///  next_tail [kernel - 1, channels] written; must not be the memory of tail
template <class T>
void causal_conv_next_tail(matrix_view<T> next_tail, in_matrix<T> x, in_matrix<T> tail) {
  for (index r = 0; r < tail.rows; ++r)
    for (index c = 0; c < tail.cols; ++c)
      next_tail(r, c) = conv_input<T>(x, tail, x.rows - tail.rows + r, c);
}

///  d_x, d_tail written (=);  d_weight +=;  d_next_tail may be empty
template <class T>
void causal_conv_backward(matrix_view<T> d_x, matrix_view<std::type_identity_t<T>> d_tail,
                          matrix_view<std::type_identity_t<T>> d_weight, in_matrix<T> d_out,
                          in_matrix<T> d_next_tail, in_matrix<T> x, in_matrix<T> tail,
                          in_matrix<T> weight) {
  auto d_input = [&](index t, index c) -> T& {
    return t >= 0 ? d_x(t, c) : d_tail(tail.rows + t, c);
  };
  for (index t = -tail.rows; t < x.rows; ++t)
    for (index c = 0; c < x.cols; ++c) {
      const index kept = t - (x.rows - tail.rows);  // row of this input in the next tail
      d_input(t, c) = kept >= 0 && !d_next_tail.empty() ? d_next_tail(kept, c) : T(0);
    }
  for (index t = 0; t < x.rows; ++t)
    for (index c = 0; c < x.cols; ++c) {
      T pre = 0;
      for (index j = 0; j < weight.cols; ++j)
        pre += weight(c, j) * conv_input<T>(x, tail, t - (weight.cols - 1) + j, c);
      const T d_pre = d_out(t, c) * silu_slope(pre);
      for (index j = 0; j < weight.cols; ++j) {
        const index source = t - (weight.cols - 1) + j;
        d_input(source, c) += d_pre * weight(c, j);
        d_weight(c, j) += d_pre * conv_input<T>(x, tail, source, c);
      }
    }
}

}  // namespace longstraw::kernels::reference
