#pragma once
// Plain token embedding. See kernels/embedding.hpp.

#include <longstraw/kernels/embedding.hpp>
#include <longstraw/kernels/reference/views.hpp>

namespace longstraw::kernels::reference {

template <class T>
void embedding_forward(matrix_view<T> out, std::span<const token_id> ids, in_matrix<T> table) {
  for (index t = 0; t < out.rows; ++t)
    for (index i = 0; i < out.cols; ++i) out(t, i) = table(ids[static_cast<std::size_t>(t)], i);
}

template <class T>
void embedding_backward(matrix_view<T> d_table, in_matrix<T> d_out, std::span<const token_id> ids) {
  for (index t = 0; t < d_out.rows; ++t)
    for (index i = 0; i < d_out.cols; ++i)
      d_table(ids[static_cast<std::size_t>(t)], i) += d_out(t, i);
}

}  // namespace longstraw::kernels::reference
