#pragma once
// Transposes of matrices in padded scratch memory, a square of vectors at a time.

#include <longstraw/kernels/cpu/simd.hpp>

#include <utility>

namespace longstraw::kernels {
namespace detail {

// One stage of a transpose: swaps lanes whose number has bit `Step` with rows whose number has not.
template <int Step, int... Lane>
inline void swap_lanes(simd::vec& a, simd::vec& b, std::integer_sequence<int, Lane...>) {
  constexpr int n = static_cast<int>(simd::lanes);
  const simd::vec low = __builtin_shufflevector(a, b, (Lane & Step ? n + Lane - Step : Lane)...);
  b = __builtin_shufflevector(a, b, (Lane & Step ? n + Lane : Lane + Step)...);
  a = low;
}

template <int Step>
inline __attribute__((always_inline)) void transpose_stage(simd::vec (&rows)[simd::lanes]) {
  constexpr int n = static_cast<int>(simd::lanes);
  for (int r = 0; r < n; ++r)
    if ((r & Step) == 0)
      swap_lanes<Step>(rows[r], rows[r + Step], std::make_integer_sequence<int, n>{});
}

}  // namespace detail

///  out [cols, rows] = in [rows, cols] transposed; both sizes are multiples of simd::lanes
inline void tile_transpose(mat out, cmat in) {
  using namespace simd;
  for (index r = 0; r < in.rows; r += lanes)
    for (index c = 0; c < in.cols; c += lanes) {
      vec square[lanes];
      for (index i = 0; i < lanes; ++i) square[i] = load(in.row(r + i) + c);
      if constexpr (lanes > 8) detail::transpose_stage<8>(square);
      if constexpr (lanes > 4) detail::transpose_stage<4>(square);
      detail::transpose_stage<2>(square);
      detail::transpose_stage<1>(square);
      for (index i = 0; i < lanes; ++i) store(out.row(c + i) + r, square[i]);
    }
}

}  // namespace longstraw::kernels
