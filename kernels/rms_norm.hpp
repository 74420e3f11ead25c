#pragma once
// Root-mean-square norm over the width of each head of each token (a plain norm of a hidden state is the case of one
// head), and the gated form of the gated delta net.
//
//   rstd = 1 / sqrt(mean(x^2) + eps)     out = x rstd u     u = w or 1 + w
//   gated: out = x rstd w silu(z)
//
// The weight has one value a channel, shared by all heads.

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

enum class norm_weight { plain, one_plus };  ///< u = w, or u = 1 + w (zero-centred weights)

///  out, x [tokens, heads, width], may be the same memory;  rstd [tokens, heads] written;  weight [width]
void rms_norm_forward(heads out, mat rstd, cheads x, std::span<const float> weight, float eps,
                      norm_weight kind, executor& on);

///  d_x [tokens, heads, width] +=;  d_weight [width] +=, summed over tokens in an order that no thread count changes
void rms_norm_backward(heads d_x, std::span<float> d_weight, cheads d_out, cheads x, cmat rstd,
                       std::span<const float> weight, norm_weight kind, executor& on);

///  out, x, z [tokens, heads, width];  rstd [tokens, heads] written;  weight [width], plain
void gated_rms_norm_forward(heads out, mat rstd, cheads x, cheads z, std::span<const float> weight,
                            float eps, executor& on);

///  d_x, d_z written (=);  d_weight [width] +=
///  d_z must not overlap x, z or d_out; d_x may be d_out
void gated_rms_norm_backward(heads d_x, heads d_z, std::span<float> d_weight, cheads d_out,
                             cheads x, cheads z, cmat rstd, std::span<const float> weight,
                             executor& on);

}  // namespace longstraw::kernels
