#pragma once
// Plain linear layer: y = x weight^T + bias. See kernels/linear.hpp for shapes.

#include <longstraw/kernels/linear.hpp>
#include <longstraw/kernels/reference/views.hpp>

namespace longstraw::kernels::reference {

template <class T>
void linear_forward(matrix_view<T> y, in_matrix<T> x, in_matrix<T> weight, in_span<T> bias,
                    into mode) {
  for (index t = 0; t < y.rows; ++t)
    for (index o = 0; o < y.cols; ++o) {
      T sum = bias.empty() ? T(0) : bias[static_cast<std::size_t>(o)];
      for (index i = 0; i < x.cols; ++i) sum += x(t, i) * weight(o, i);
      y(t, o) = mode == into::add ? y(t, o) + sum : sum;
    }
}

template <class T>
void linear_backward_input(matrix_view<T> d_x, in_matrix<T> d_y, in_matrix<T> weight, into mode) {
  for (index t = 0; t < d_x.rows; ++t)
    for (index i = 0; i < d_x.cols; ++i) {
      T sum = 0;
      for (index o = 0; o < d_y.cols; ++o) sum += d_y(t, o) * weight(o, i);
      d_x(t, i) = mode == into::add ? d_x(t, i) + sum : sum;
    }
}

template <class T>
void linear_backward_weight(matrix_view<T> d_weight, std::span<T> d_bias, in_matrix<T> d_y,
                            in_matrix<T> x) {
  for (index o = 0; o < d_weight.rows; ++o) {
    for (index i = 0; i < d_weight.cols; ++i)
      for (index t = 0; t < x.rows; ++t) d_weight(o, i) += d_y(t, o) * x(t, i);
    if (!d_bias.empty())
      for (index t = 0; t < x.rows; ++t) d_bias[static_cast<std::size_t>(o)] += d_y(t, o);
  }
}

}  // namespace longstraw::kernels::reference
