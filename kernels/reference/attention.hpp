#pragma once
// Plain causal grouped-query attention, whole rows of scores, one head at a time.
// See kernels/attention.hpp for the formulas and shapes.

#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/reference/views.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace longstraw::kernels::reference {

/// Keys and values [tokens, kv_heads, head_dim] at positions position, position + 1, ...
template <class T>
struct kv_part {
  heads_view<const T> key;
  heads_view<const T> value;
  index position = 0;
};

/// Where the gradients of a part go; null data: not wanted.
template <class T>
struct kv_part_gradient {
  heads_view<T> d_key;
  heads_view<T> d_value;
};

namespace detail {
template <class T>
T dot(const T* a, const T* b, index n) {
  T sum = 0;
  for (index i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
}  // namespace detail

///  out [tq, query_heads * head_dim] and lse [tq, query_heads] written;  q [tq, query_heads,
///  head_dim]
template <class T>
void attention_forward(matrix_view<T> out, matrix_view<T> lse, in_heads<T> q, index q_position,
                       std::span<const kv_part<std::type_identity_t<T>>> keys, attention_dims n) {
  const index group = n.query_heads / n.kv_heads;
  std::vector<T> scores;
  for (index t = 0; t < q.tokens; ++t)
    for (index h = 0; h < n.query_heads; ++h) {
      scores.clear();
      T largest = -std::numeric_limits<T>::infinity();
      for (const auto& part : keys)
        for (index j = 0; j < part.key.tokens && part.position + j <= q_position + t; ++j) {
          scores.push_back(T(n.scale) *
                           detail::dot(q.at(t, h), part.key.at(j, h / group), n.head_dim));
          largest = std::max(largest, scores.back());
        }
      T sum = 0;
      for (T& s : scores) sum += s = std::exp(s - largest);
      T* o = out.row(t) + h * n.head_dim;
      std::fill_n(o, n.head_dim, T(0));
      std::size_t next = 0;
      for (const auto& part : keys)
        for (index j = 0; j < part.key.tokens && part.position + j <= q_position + t; ++j, ++next)
          for (index c = 0; c < n.head_dim; ++c)
            o[c] += scores[next] / sum * part.value.at(j, h / group)[c];
      lse(t, h) = scores.empty() ? -std::numeric_limits<T>::infinity() : largest + std::log(sum);
    }
}

///  delta [tq, query_heads] written
template <class T>
void attention_delta(matrix_view<T> delta, in_matrix<T> d_out, in_matrix<T> out) {
  const index width = delta.cols > 0 ? out.cols / delta.cols : 0;
  for (index t = 0; t < delta.rows; ++t)
    for (index h = 0; h < delta.cols; ++h)
      delta(t, h) = detail::dot(d_out.row(t) + h * width, out.row(t) + h * width, width);
}

///  d_q +=, gradients of keys and values += where wanted;  lse and delta are those of the merged
///  result
template <class T>
void attention_backward(heads_view<T> d_q,
                        std::span<const kv_part_gradient<std::type_identity_t<T>>> d_keys,
                        in_matrix<T> d_out, in_matrix<T> lse, in_matrix<T> delta, in_heads<T> q,
                        index q_position, std::span<const kv_part<std::type_identity_t<T>>> keys,
                        attention_dims n) {
  const index group = n.query_heads / n.kv_heads;
  for (index t = 0; t < q.tokens; ++t)
    for (index h = 0; h < n.query_heads; ++h)
      for (std::size_t p = 0; p < keys.size(); ++p)
        for (index j = 0; j < keys[p].key.tokens && keys[p].position + j <= q_position + t; ++j) {
          const T* key = keys[p].key.at(j, h / group);
          const T* value = keys[p].value.at(j, h / group);
          const T* d_o = d_out.row(t) + h * n.head_dim;
          const T score = T(n.scale) * detail::dot(q.at(t, h), key, n.head_dim);
          const T weight = std::exp(score - lse(t, h));
          const T d_score =
              weight * (detail::dot(d_o, value, n.head_dim) - delta(t, h)) * T(n.scale);
          for (index c = 0; c < n.head_dim; ++c) d_q.at(t, h)[c] += d_score * key[c];
          if (d_keys.empty()) continue;
          if (d_keys[p].d_key.data)
            for (index c = 0; c < n.head_dim; ++c)
              d_keys[p].d_key.at(j, h / group)[c] += d_score * q.at(t, h)[c];
          if (d_keys[p].d_value.data)
            for (index c = 0; c < n.head_dim; ++c)
              d_keys[p].d_value.at(j, h / group)[c] += weight * d_o[c];
        }
}

/// One part's result, for merging.
template <class T>
struct attention_result {
  matrix_view<const T> out;  ///< [tq, query_heads * head_dim]
  matrix_view<const T> lse;  ///< [tq, query_heads]
};

template <class T>
void attention_merge(matrix_view<T> out, matrix_view<T> lse,
                     std::span<const attention_result<std::type_identity_t<T>>> parts) {
  const index width = lse.cols > 0 ? out.cols / lse.cols : 0;
  for (index t = 0; t < lse.rows; ++t)
    for (index h = 0; h < lse.cols; ++h) {
      T largest = -std::numeric_limits<T>::infinity();
      for (const auto& part : parts) largest = std::max(largest, part.lse(t, h));
      T* o = out.row(t) + h * width;
      std::fill_n(o, width, T(0));
      lse(t, h) = largest;
      if (std::isinf(largest)) continue;
      T sum = 0;
      for (const auto& part : parts) sum += std::exp(part.lse(t, h) - largest);
      for (const auto& part : parts)
        for (index c = 0; c < width; ++c)
          o[c] += std::exp(part.lse(t, h) - largest) / sum * part.out(t, h * width + c);
      lse(t, h) = largest + std::log(sum);
    }
}

///  out = x sigmoid(gate)
template <class T>
void sigmoid_gate_forward(heads_view<T> out, in_heads<T> x, in_heads<T> gate) {
  for (index t = 0; t < out.tokens; ++t)
    for (index h = 0; h < out.heads; ++h)
      for (index c = 0; c < out.width; ++c)
        out.at(t, h)[c] = x.at(t, h)[c] / (T(1) + std::exp(-gate.at(t, h)[c]));
}

///  d_x and d_gate written
template <class T>
void sigmoid_gate_backward(heads_view<T> d_x, heads_view<T> d_gate, in_heads<T> d_out,
                           in_heads<T> x, in_heads<T> gate) {
  for (index t = 0; t < d_x.tokens; ++t)
    for (index h = 0; h < d_x.heads; ++h)
      for (index c = 0; c < d_x.width; ++c) {
        const T s = T(1) / (T(1) + std::exp(-gate.at(t, h)[c]));
        const T d = d_out.at(t, h)[c], value = x.at(t, h)[c];
        d_x.at(t, h)[c] = d * s;
        d_gate.at(t, h)[c] = d * value * s * (T(1) - s);
      }
}

}  // namespace longstraw::kernels::reference
