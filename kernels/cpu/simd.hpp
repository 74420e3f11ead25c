#pragma once
// One vector of floats, written with the compiler's vector extension: the same source becomes AVX-512, AVX2 or plain
// SSE code, and reads as arithmetic.

#include <longstraw/memory/view.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace longstraw::kernels::simd {

#if defined(__AVX512F__)
inline constexpr index lanes = 16;
#elif defined(__AVX__)
inline constexpr index lanes = 8;
#else
inline constexpr index lanes = 4;
#endif

typedef float vec __attribute__((vector_size(lanes * 4)));
typedef std::int32_t ivec __attribute__((vector_size(lanes * 4)));

inline vec load(const float* p) {
  vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, vec v) { std::memcpy(p, &v, sizeof v); }
/// x - 0 is x for every x, so that this is a plain broadcast; 0 + x would turn -0 into 0 by an addition.
inline vec splat(float x) { return x - vec{}; }

/// The first n (0 <= n < lanes) values, zero beyond; the matching store leaves memory beyond alone.
inline vec load_part(const float* p, index n) {
#if defined(__AVX512F__)
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1u), p);
#else
  vec v{};
  std::memcpy(&v, p, static_cast<std::size_t>(n) * sizeof(float));
  return v;
#endif
}
inline void store_part(float* p, vec v, index n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1u), v);
#else
  std::memcpy(p, &v, static_cast<std::size_t>(n) * sizeof(float));
#endif
}

inline vec max(vec a, vec b) { return a > b ? a : b; }
inline vec min(vec a, vec b) { return a < b ? a : b; }

/// v with lane i taken from lane i ^ Distance.
template <int Distance, int... Lane>
inline vec exchange(vec v, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(v, v, (Lane ^ Distance)...);
}

/// Joins all lanes with `join`, halves first: the order depends on the number of lanes alone.
template <int Distance = static_cast<int>(lanes) / 2, class Join>
inline float join_lanes(vec v, Join join) {
  const vec joined =
      join(v, exchange<Distance>(v, std::make_integer_sequence<int, static_cast<int>(lanes)>{}));
  if constexpr (Distance > 1)
    return join_lanes<Distance / 2>(joined, join);
  else
    return joined[0];
}

inline float sum(vec v) {
  return join_lanes(v, [](vec a, vec b) { return a + b; });
}
inline float largest(vec v) {
  return join_lanes(v, [](vec a, vec b) { return max(a, b); });
}

/// e^x within 2 units in the last place on [-87, 88]; 0 below, +inf above, NaN stays NaN.
/// x = n ln 2 + r with |r| <= ln 2 / 2; e^r = 1 + r + r^2 p(r) with p fitted at Chebyshev nodes (relative error 1e-8),
/// and n goes into the exponent.
inline vec exp(vec x) {
  constexpr float log2_e = 1.44269504088896341f;
  constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860682030941723e-6f;
  constexpr float lowest = -87.3f, highest = 89.0f;
#if defined(__AVX512F__)
  const vec bounded =
      _mm512_maskz_min_ps(0xffff, splat(highest), x);  // the second operand if x is NaN
#else
  const vec bounded = max(min(x, splat(highest)), splat(lowest));
#endif
  constexpr float round_magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const vec shifted = bounded * log2_e + round_magic;
  const vec n = shifted - round_magic;
  const vec r = (bounded - n * ln2_high) - n * ln2_low;
  vec p = splat(1.39262508e-3f);
  p = p * r + 8.36323288e-3f;
  p = p * r + 4.16665542e-2f;
  p = p * r + 1.66665767e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
#if defined(__AVX512F__)
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, splat(lowest), _CMP_NLT_UQ), p, n);
#else
  // 2^n in two factors, so that n = 128 and n = -126 do not leave the exponent's range.
  const ivec k = std::bit_cast<ivec>(shifted) - std::bit_cast<std::int32_t>(round_magic);
  const ivec half = k >> 1;
  const vec a = std::bit_cast<vec>((half + 127) << 23);
  const vec b = std::bit_cast<vec>((k - half + 127) << 23);
  vec y = p * a * b;
  y = x < splat(lowest) ? vec{} : y;
  return x == x ? y : x;
#endif
}

inline vec sigmoid(vec x) { return 1.0f / (1.0f + exp(-x)); }

/// Calls body(offset, load_fn, store_fn) for every whole vector of [0, n) and once for the rest.
/// load_fn(pointer) and store_fn(pointer, value) touch only what is inside n.
template <class F>
inline void for_each_vec(index n, F&& body) {
  index i = 0;
  for (; i + lanes <= n; i += lanes)
    body(
        i, [i](const float* p) { return load(p + i); }, [i](float* p, vec v) { store(p + i, v); });
  if (const index rest = n - i; rest > 0)
    body(
        i, [i, rest](const float* p) { return load_part(p + i, rest); },
        [i, rest](float* p, vec v) { store_part(p + i, v, rest); });
}

}  // namespace longstraw::kernels::simd
