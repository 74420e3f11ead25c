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

/// log(x) for finite x >= 1, within 4 units in the last place; NaN stays NaN. x = m 2^n with
/// 1 <= m < 2.
inline vec log_from_one(vec x) {
  constexpr float ln2 = 0.693147180559945309f;
  const ivec bits = std::bit_cast<ivec>(x);
  const vec n = __builtin_convertvector((bits >> 23) - 127, vec);
  const vec m = std::bit_cast<vec>((bits & 0x7fffff) | 0x3f800000);
  const vec y = n * ln2 + log1p_unit(m - 1.0f);
  return x == x ? y : x;
}

struct softplus_result {
  vec value;
  vec x, e;  // e = exp(-|x|)

  /// The derivative, sigmoid(x), at one more quotient.
  vec slope() const { return (x < vec{} ? e : splat(1.0f)) / (1.0f + e); }
};
/// log(1 + e^x) within 4 units in the last place on [-87, inf); 0 below, NaN stays NaN.
inline softplus_result softplus(vec x) {
  const vec e = exp(-abs(x));
  return {max(x, vec{}) + log1p_unit(e), x, e};
}

inline vec silu(vec x) { return x * sigmoid(x); }
/// The derivative of silu at x, given s = sigmoid(x).
inline vec silu_slope(vec x, vec s) { return s * (1.0f + x * (1.0f - s)); }

// Doubles, where float would decide the result: a register holds half as many.
inline constexpr index wide_lanes = lanes / 2;
typedef double wide __attribute__((vector_size(wide_lanes * 8)));
typedef std::int64_t wide_ivec __attribute__((vector_size(wide_lanes * 8)));
typedef float half_vec __attribute__((vector_size(wide_lanes * 4)));

inline wide widen(const float* p) {
  half_vec v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, wide);
}

struct wide_sin_cos {
  wide sin, cos;
};
/// Both within 1e-11 for |x| up to 2^23: enough to round to float. x = n pi/2 + r with
/// |r| <= pi/4; n pi/2 is taken off in two parts, of which the first has so few digits that its
/// product with n is exact; beyond 2^23 only a fused multiply-add keeps the error so small. Then
/// Taylor's series, and n's last two bits say which is which.
inline wide_sin_cos sin_cos(wide x) {
  constexpr double two_by_pi = 0.636619772367581343;
  constexpr double half_pi_high = 1.57079632673412561417, half_pi_low = 6.07710050650619224932e-11;
  constexpr double round_magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer
  const wide shifted = x * two_by_pi + round_magic;
  const wide n = shifted - round_magic;
  const wide r = (x - n * half_pi_high) - n * half_pi_low, z = r * r;
  wide s = z * (-1.0 / 39916800) + 1.0 / 362880;
  s = s * z - 1.0 / 5040;
  s = s * z + 1.0 / 120;
  s = s * z - 1.0 / 6;
  s = r + r * z * s;
  wide c = z * (1.0 / 479001600) - 1.0 / 3628800;
  c = c * z + 1.0 / 40320;
  c = c * z - 1.0 / 720;
  c = c * z + 1.0 / 24;
  c = c * z - 0.5;
  c = 1.0 + c * z;
  const wide_ivec quarter = std::bit_cast<wide_ivec>(shifted);
  const wide_ivec swapped = -(quarter & 1);  // all bits set where sine and cosine change places
  const wide_ivec s_bits = std::bit_cast<wide_ivec>(s), c_bits = std::bit_cast<wide_ivec>(c);
  const wide_ivec sin_bits = (s_bits & ~swapped) | (c_bits & swapped);
  const wide_ivec cos_bits = (c_bits & ~swapped) | (s_bits & swapped);
  return {std::bit_cast<wide>(sin_bits ^ ((quarter & 2) << 62)),
          std::bit_cast<wide>(cos_bits ^ (((quarter + 1) & 2) << 62))};
}

/// For rows so short that a call of memcpy would take longer than the copy.
inline void copy_row(float* to, const float* from, index n) {
  for_each_vec(n, [=](index, auto get, auto put) { put(to, get(from)); });
}

/// The terms of [0, n) in as many running sums as a vector has lanes, in an order that depends on n
/// alone. term computes its vector from load(pointer), which reads the pointer's values at the
/// current offset, zero past n.
template <class F>
inline vec lane_sums(index n, F&& term) {
  vec acc[4] = {};
  index i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes)
    for (index u = 0; u < 4; ++u)
      acc[u] += term([at = i + u * lanes](const float* p) { return load(p + at); });
  // Each sum is named by a constant, or all of them would live in memory.
  const auto whole = [&](vec& sum) {
    if (i + lanes > n) return;
    sum += term([i](const float* p) { return load(p + i); });
    i += lanes;
  };
  whole(acc[0]), whole(acc[1]), whole(acc[2]);
  if (i < n) acc[3] += term([i, n](const float* p) { return load_part(p + i, n - i); });
  return (acc[0] + acc[1]) + (acc[2] + acc[3]);
}

inline float dot(const float* a, const float* b, index n) {
  return sum(lane_sums(n, [&](auto at) { return at(a) * at(b); }));
}

}  // namespace longstraw::kernels::simd
