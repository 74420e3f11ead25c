#pragma once
// Plain rotary embedding, half-split order. See kernels/rotary.hpp.

#include <longstraw/kernels/reference/views.hpp>
#include <longstraw/kernels/rotary.hpp>

#include <cmath>

namespace longstraw::kernels::reference {

///  cos_sin [positions, width] written: width/2 cosines, then width/2 sines a row
template <class T>
void rotary_angles(matrix_view<T> cos_sin, token_range positions,
                   std::span<const double> frequencies) {
  const auto half = static_cast<index>(frequencies.size());
  for (index t = 0; t < positions.count(); ++t)
    for (index i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(positions.begin + t) * frequencies[static_cast<std::size_t>(i)];
      cos_sin(t, i) = static_cast<T>(std::cos(angle));
      cos_sin(t, half + i) = static_cast<T>(std::sin(angle));
    }
}

/// x turned in place, forward for direction = 1 and back for -1.
template <class T>
void rotary(heads_view<T> x, in_matrix<T> cos_sin, int direction) {
  const index half = cos_sin.cols / 2;
  for (index t = 0; t < x.tokens; ++t)
    for (index h = 0; h < x.heads; ++h)
      for (index i = 0; i < half; ++i) {
        T* p = x.at(t, h);
        const T a = p[i], b = p[half + i];
        const T c = cos_sin(t, i), s = T(direction) * cos_sin(t, half + i);
        p[i] = a * c - b * s;
        p[half + i] = b * c + a * s;
      }
}

template <class T>
void rotary_forward(heads_view<T> x, in_matrix<T> cos_sin) {
  rotary(x, cos_sin, 1);
}
template <class T>
void rotary_backward(heads_view<T> d_x, in_matrix<T> cos_sin) {
  rotary(d_x, cos_sin, -1);
}

}  // namespace longstraw::kernels::reference
