#pragma once
// Plain root-mean-square norm and its gated form, as kernels/rms_norm.hpp states them, in float or
// double.

#include <longstraw/kernels/reference/views.hpp>
#include <longstraw/kernels/rms_norm.hpp>

#include <cmath>
#include <span>

namespace longstraw::kernels::reference {

template <class T>
T silu(T x) {
  return x / (T(1) + std::exp(-x));
}
/// d silu / dx
template <class T>
T silu_slope(T x) {
  const T s = T(1) / (T(1) + std::exp(-x));
  return s * (T(1) + x * (T(1) - s));
}

///  out [tokens, heads, width], rstd [tokens, heads] written
template <class T>
void rms_norm_forward(heads_view<T> out, matrix_view<std::type_identity_t<T>> rstd, in_heads<T> x,
                      in_span<T> weight, std::type_identity_t<T> eps, norm_weight kind) {
  for (index t = 0; t < x.tokens; ++t)
    for (index h = 0; h < x.heads; ++h) {
      T squares = 0;
      for (index c = 0; c < x.width; ++c) squares += x.at(t, h)[c] * x.at(t, h)[c];
      const T r = T(1) / std::sqrt(squares / T(x.width) + eps);
      rstd(t, h) = r;
      for (index c = 0; c < x.width; ++c) {
        const T u = kind == norm_weight::plain ? weight[c] : T(1) + weight[c];
        out.at(t, h)[c] = x.at(t, h)[c] * r * u;
      }
    }
}

///  d_x, d_weight +=
template <class T>
void rms_norm_backward(heads_view<T> d_x, std::span<std::type_identity_t<T>> d_weight,
                       in_heads<T> d_out, in_heads<T> x, in_matrix<T> rstd, in_span<T> weight,
                       norm_weight kind) {
  for (index t = 0; t < x.tokens; ++t)
    for (index h = 0; h < x.heads; ++h) {
      const T r = rstd(t, h);
      T dot = 0;  // sum of d_normalized * normalized
      for (index c = 0; c < x.width; ++c) {
        const T u = kind == norm_weight::plain ? weight[c] : T(1) + weight[c];
        dot += d_out.at(t, h)[c] * u * x.at(t, h)[c] * r;
      }
      for (index c = 0; c < x.width; ++c) {
        const T u = kind == norm_weight::plain ? weight[c] : T(1) + weight[c];
        const T normalized = x.at(t, h)[c] * r;
        d_x.at(t, h)[c] += r * (d_out.at(t, h)[c] * u - normalized * dot / T(x.width));
        d_weight[c] += d_out.at(t, h)[c] * normalized;
      }
    }
}

///  out, rstd written
template <class T>
void gated_rms_norm_forward(heads_view<T> out, matrix_view<std::type_identity_t<T>> rstd,
                            in_heads<T> x, in_heads<T> z, in_span<T> weight,
                            std::type_identity_t<T> eps) {
  rms_norm_forward<T>(out, rstd, x, weight, eps, norm_weight::plain);
  for (index t = 0; t < x.tokens; ++t)
    for (index h = 0; h < x.heads; ++h)
      for (index c = 0; c < x.width; ++c) out.at(t, h)[c] *= silu(z.at(t, h)[c]);
}

///  d_x, d_z written (=);  d_weight +=
template <class T>
void gated_rms_norm_backward(heads_view<T> d_x, heads_view<std::type_identity_t<T>> d_z,
                             std::span<std::type_identity_t<T>> d_weight, in_heads<T> d_out,
                             in_heads<T> x, in_heads<T> z, in_matrix<T> rstd, in_span<T> weight) {
  for (index t = 0; t < x.tokens; ++t)
    for (index h = 0; h < x.heads; ++h) {
      const T r = rstd(t, h);
      T dot = 0;
      for (index c = 0; c < x.width; ++c)
        dot += d_out.at(t, h)[c] * silu(z.at(t, h)[c]) * weight[c] * x.at(t, h)[c] * r;
      for (index c = 0; c < x.width; ++c) {
        const T normalized = x.at(t, h)[c] * r;
        const T d_norm = d_out.at(t, h)[c] * silu(z.at(t, h)[c]);  // gradient of the plain norm
        d_weight[c] += d_norm * normalized;
        d_z.at(t, h)[c] = d_out.at(t, h)[c] * normalized * weight[c] * silu_slope(z.at(t, h)[c]);
        d_x.at(t, h)[c] = r * (d_norm * weight[c] - normalized * dot / T(x.width));
      }
    }
}

}  // namespace longstraw::kernels::reference
