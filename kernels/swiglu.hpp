#pragma once
// SwiGLU: out = silu(gate) up, silu(x) = x / (1 + exp(-x)).

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

///  out, gate, up [tokens, width]
void swiglu_forward(mat out, cmat gate, cmat up, executor& on);
///  d_gate, d_up written (=); they may be the same memory as gate and up.
void swiglu_backward(mat d_gate, mat d_up, cmat d_out, cmat gate, cmat up, executor& on);

}  // namespace longstraw::kernels
