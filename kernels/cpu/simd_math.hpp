#pragma once
// Functions of a vector of floats beyond exp, and sums over rows.

#include <longstraw/kernels/cpu/simd.hpp>

namespace longstraw::kernels::simd {

inline vec sqrt(vec x) {
#if defined(__AVX512F__)
  return _mm512_maskz_sqrt_ps(0xffff, x);
#else
  for (index i = 0; i < lanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
#endif
}

inline vec abs(vec x) {
  return std::bit_cast<vec>(std::bit_cast<ivec>(x) & std::int32_t{0x7fffffff});
}

/// log(1 + x) for 0 <= x <= 1, within 3 units in the last place; NaN stays NaN.
/// log(1 + x) = 2 atanh(s) with s = x / (2 + x) <= 1/3, so no digit of a small x is lost to the sum
/// 1 + x. atanh(s) = s + s^3 p(s^2) with p fitted at Chebyshev nodes (relative error 4e-10).
inline vec log1p_unit(vec x) {
  const vec s = x / (2.0f + x);
  const vec z = s * s;
  vec p = splat(1.16121646e-1f);
  p = p * z + 1.08532879e-1f;
  p = p * z + 1.42961790e-1f;
  p = p * z + 1.99998532e-1f;
  p = p * z + 3.33333337e-1f;
  return 2.0f * (s + s * z * p);
}

/// log(1 + e^x) within 4 units in the last place on [-87, inf); 0 below, NaN stays NaN.
inline vec softplus(vec x) { return max(x, vec{}) + log1p_unit(exp(-abs(x))); }

inline vec silu(vec x) { return x * sigmoid(x); }
/// The derivative of silu at x, given s = sigmoid(x).
inline vec silu_slope(vec x, vec s) { return s * (1.0f + x * (1.0f - s)); }

/// Sum of term(load) over [0, n) in an order that depends on n alone: four running vectors, then
/// their lanes. term computes its vector from load(pointer), which reads the pointer's values at
/// the current offset, zero past n.
template <class F>
inline float sum_terms(index n, F&& term) {
  vec acc[4] = {};
  index i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes)
    for (index u = 0; u < 4; ++u)
      acc[u] += term([at = i + u * lanes](const float* p) { return load(p + at); });
  for (index u = 0; i + lanes <= n; i += lanes, ++u)
    acc[u] += term([i](const float* p) { return load(p + i); });
  if (i < n) acc[3] += term([i, n](const float* p) { return load_part(p + i, n - i); });
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

inline float dot(const float* a, const float* b, index n) {
  return sum_terms(n, [&](auto at) { return at(a) * at(b); });
}

}  // namespace longstraw::kernels::simd
