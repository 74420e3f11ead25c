#pragma once
// Plain language-model head: a row of logits at a time. See kernels/head.hpp for the formulas.

#include <longstraw/kernels/head.hpp>
#include <longstraw/kernels/reference/views.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace longstraw::kernels::reference {

///  logits [tokens, vocabulary] written: hidden weight^T / temperature
template <class T>
void head_logits(matrix_view<T> logits, in_matrix<T> hidden, in_matrix<T> weight,
                 std::type_identity_t<T> temperature = 1) {
  for (index t = 0; t < logits.rows; ++t)
    for (index v = 0; v < logits.cols; ++v) {
      T sum = 0;
      for (index i = 0; i < hidden.cols; ++i) sum += hidden(t, i) * weight(v, i);
      logits(t, v) = sum / temperature;
    }
}

///  logps, entropies, lse [tokens] written
template <class T>
void head_forward(std::span<T> logps, std::span<T> entropies, std::span<T> lse, in_matrix<T> hidden,
                  in_matrix<T> weight, std::span<const token_id> targets,
                  std::type_identity_t<T> temperature) {
  std::vector<T> z(static_cast<std::size_t>(weight.rows));
  for (index t = 0; t < hidden.rows; ++t) {
    const auto at = static_cast<std::size_t>(t);
    head_logits(matrix_view<T>(z.data(), 1, weight.rows), hidden.row_range(t, t + 1), weight,
                temperature);
    const T largest = *std::max_element(z.begin(), z.end());
    T sum = 0, weighted = 0;
    for (T x : z) {
      sum += std::exp(x - largest);
      weighted += std::exp(x - largest) * (x - largest);
    }
    lse[at] = largest + std::log(sum);
    logps[at] = z[static_cast<std::size_t>(targets[at])] - lse[at];
    entropies[at] = std::log(sum) - weighted / sum;
  }
}

///  d_hidden written;  d_weight +=
template <class T>
void head_backward(matrix_view<T> d_hidden, matrix_view<T> d_weight, in_span<T> d_logps,
                   in_span<T> lse, in_matrix<T> hidden, in_matrix<T> weight,
                   std::span<const token_id> targets, std::type_identity_t<T> temperature) {
  std::vector<T> z(static_cast<std::size_t>(weight.rows));
  for (index t = 0; t < hidden.rows; ++t) {
    const auto at = static_cast<std::size_t>(t);
    head_logits(matrix_view<T>(z.data(), 1, weight.rows), hidden.row_range(t, t + 1), weight,
                temperature);
    std::fill_n(d_hidden.row(t), hidden.cols, T(0));
    for (index v = 0; v < weight.rows; ++v) {
      const T hit = v == targets[at] ? T(1) : T(0);
      const T d =
          d_logps[at] * (hit - std::exp(z[static_cast<std::size_t>(v)] - lse[at])) / temperature;
      for (index i = 0; i < hidden.cols; ++i) {
        d_hidden(t, i) += d * weight(v, i);
        d_weight(v, i) += d * hidden(t, i);
      }
    }
  }
}

}  // namespace longstraw::kernels::reference
