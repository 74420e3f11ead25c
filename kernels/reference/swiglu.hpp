#pragma once
// Plain SwiGLU, in float or double.

#include <longstraw/kernels/reference/rms_norm.hpp>
#include <longstraw/kernels/swiglu.hpp>

namespace longstraw::kernels::reference {

///  out [tokens, width] written
template <class T>
void swiglu_forward(matrix_view<T> out, in_matrix<T> gate, in_matrix<T> up) {
  for (index t = 0; t < gate.rows; ++t)
    for (index c = 0; c < gate.cols; ++c) out(t, c) = silu(gate(t, c)) * up(t, c);
}

///  d_gate, d_up written (=)
template <class T>
void swiglu_backward(matrix_view<T> d_gate, matrix_view<std::type_identity_t<T>> d_up,
                     in_matrix<T> d_out, in_matrix<T> gate, in_matrix<T> up) {
  for (index t = 0; t < gate.rows; ++t)
    for (index c = 0; c < gate.cols; ++c) {
      const T g = gate(t, c), u = up(t, c);
      d_gate(t, c) = d_out(t, c) * u * silu_slope(g);
      d_up(t, c) = d_out(t, c) * silu(g);
    }
}

}  // namespace longstraw::kernels::reference
