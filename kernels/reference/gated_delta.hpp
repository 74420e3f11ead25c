#pragma once
// The gated delta rule token by token, as kernels/gated_delta.hpp states it, and its gradient by
// walking the tokens backward through the kept states. In float or double.

#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/kernels/reference/views.hpp>

#include <cmath>
#include <span>
#include <vector>

namespace longstraw::kernels::reference {

template <class T>
T softplus(T x) {
  return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x));
}
template <class T>
T sigmoid(T x) {
  return T(1) / (T(1) + std::exp(-x));
}

///  g, beta [tokens, value_heads] written
template <class T>
void gated_delta_gates_forward(matrix_view<T> g, matrix_view<std::type_identity_t<T>> beta,
                               in_matrix<T> a, in_matrix<T> b, in_span<T> a_log,
                               in_span<T> dt_bias) {
  for (index t = 0; t < a.rows; ++t)
    for (index h = 0; h < a.cols; ++h) {
      g(t, h) = -std::exp(a_log[h]) * softplus(a(t, h) + dt_bias[h]);
      beta(t, h) = sigmoid(b(t, h));
    }
}

///  d_a, d_b written (=);  d_a_log, d_dt_bias +=
template <class T>
void gated_delta_gates_backward(matrix_view<T> d_a, matrix_view<std::type_identity_t<T>> d_b,
                                std::span<std::type_identity_t<T>> d_a_log,
                                std::span<std::type_identity_t<T>> d_dt_bias, in_matrix<T> d_g,
                                in_matrix<T> d_beta, in_matrix<T> a, in_matrix<T> b,
                                in_span<T> a_log, in_span<T> dt_bias) {
  for (index t = 0; t < a.rows; ++t)
    for (index h = 0; h < a.cols; ++h) {
      const T rate = -std::exp(a_log[h]), x = a(t, h) + dt_bias[h], s = sigmoid(b(t, h));
      d_a(t, h) = d_g(t, h) * rate * sigmoid(x);
      d_b(t, h) = d_beta(t, h) * s * (T(1) - s);
      d_a_log[h] += d_g(t, h) * rate * softplus(x);
      d_dt_bias[h] += d_a(t, h);
    }
}

/// x / sqrt(sum x^2 + 1e-6) * scale
template <class T>
std::vector<T> l2_normalized(const T* x, index width, std::type_identity_t<T> scale) {
  T squares = 0;
  for (index i = 0; i < width; ++i) squares += x[i] * x[i];
  std::vector<T> y(x, x + width);
  for (auto& v : y) v *= scale / std::sqrt(squares + T(1e-6));
  return y;
}

/// d_x += the gradient of l2_normalized at x, for the gradient d_y of its result
template <class T>
void l2_normalized_backward(T* d_x, const std::vector<T>& d_y, const T* x, index width,
                            std::type_identity_t<T> scale) {
  T squares = 0, dot = 0;
  for (index i = 0; i < width; ++i) squares += x[i] * x[i], dot += x[i] * d_y[i];
  const T r = T(1) / std::sqrt(squares + T(1e-6));
  for (index i = 0; i < width; ++i) d_x[i] += scale * r * (d_y[i] - r * r * dot * x[i]);
}

///  out [tokens, value_heads, value_dim] written;  state [value_heads, key_dim, value_dim] in and
///  out
template <class T>
void gated_delta_forward(heads_view<T> out, std::span<std::type_identity_t<T>> state, in_heads<T> q,
                         in_heads<T> k, in_heads<T> v, in_matrix<T> g, in_matrix<T> beta,
                         gated_delta_dims n) {
  const index ratio = n.value_heads / n.key_heads;
  const T q_scale = T(1) / std::sqrt(T(n.key_dim));
  for (index h = 0; h < n.value_heads; ++h) {
    const matrix_view<T> s{state.data() + h * n.key_dim * n.value_dim, n.key_dim, n.value_dim};
    for (index t = 0; t < q.tokens; ++t) {
      const auto qn = l2_normalized<T>(q.at(t, h / ratio), n.key_dim, q_scale);
      const auto kn = l2_normalized<T>(k.at(t, h / ratio), n.key_dim, T(1));
      for (index c = 0; c < n.value_dim; ++c) {
        T said = 0;  // what the decayed state says about this key
        for (index i = 0; i < n.key_dim; ++i) {
          s(i, c) *= std::exp(g(t, h));
          said += s(i, c) * kn[i];
        }
        const T u = beta(t, h) * (v.at(t, h)[c] - said);
        T o = 0;
        for (index i = 0; i < n.key_dim; ++i) {
          s(i, c) += kn[i] * u;
          o += s(i, c) * qn[i];
        }
        out.at(t, h)[c] = o;
      }
    }
  }
}

///  d_q, d_k, d_v, d_g, d_beta written (=);  d_state in and out;  state: the one before the first
///  token
template <class T>
void gated_delta_backward(heads_view<T> d_q, heads_view<std::type_identity_t<T>> d_k,
                          heads_view<std::type_identity_t<T>> d_v,
                          matrix_view<std::type_identity_t<T>> d_g,
                          matrix_view<std::type_identity_t<T>> d_beta,
                          std::span<std::type_identity_t<T>> d_state, in_heads<T> d_out,
                          in_span<T> state, in_heads<T> q, in_heads<T> k, in_heads<T> v,
                          in_matrix<T> g, in_matrix<T> beta, gated_delta_dims n) {
  const index ratio = n.value_heads / n.key_heads, tokens = q.tokens;
  const index one_state = n.key_dim * n.value_dim;
  const T q_scale = T(1) / std::sqrt(T(n.key_dim));
  for (index t = 0; t < tokens; ++t)
    for (index h = 0; h < n.key_heads; ++h)
      for (index i = 0; i < n.key_dim; ++i) d_q.at(t, h)[i] = d_k.at(t, h)[i] = T(0);

  for (index h = 0; h < n.value_heads; ++h) {
    const index kh = h / ratio;
    // The state before every token, and what each token writes before beta scales it: v - S^T k.
    std::vector<std::vector<T>> before(static_cast<std::size_t>(tokens) + 1);
    std::vector<std::vector<T>> residual(static_cast<std::size_t>(tokens));
    before[0].assign(state.data() + h * one_state, state.data() + (h + 1) * one_state);
    for (index t = 0; t < tokens; ++t) {
      const auto kn = l2_normalized<T>(k.at(t, kh), n.key_dim, T(1));
      auto s = before[t];
      for (auto& x : s) x *= std::exp(g(t, h));
      residual[t].assign(v.at(t, h), v.at(t, h) + n.value_dim);
      for (index i = 0; i < n.key_dim; ++i)
        for (index c = 0; c < n.value_dim; ++c) residual[t][c] -= kn[i] * s[i * n.value_dim + c];
      for (index i = 0; i < n.key_dim; ++i)
        for (index c = 0; c < n.value_dim; ++c)
          s[i * n.value_dim + c] += kn[i] * beta(t, h) * residual[t][c];
      before[t + 1] = s;
    }

    const matrix_view<T> ds{d_state.data() + h * one_state, n.key_dim, n.value_dim};
    for (index t = tokens - 1; t >= 0; --t) {
      const auto qn = l2_normalized<T>(q.at(t, kh), n.key_dim, q_scale);
      const auto kn = l2_normalized<T>(k.at(t, kh), n.key_dim, T(1));
      const T decay = std::exp(g(t, h)), b = beta(t, h);
      std::vector<T> d_qn(n.key_dim, T(0)), d_kn(n.key_dim, T(0));
      // o = S^T q
      for (index i = 0; i < n.key_dim; ++i)
        for (index c = 0; c < n.value_dim; ++c) {
          d_qn[i] += before[t + 1][i * n.value_dim + c] * d_out.at(t, h)[c];
          ds(i, c) += qn[i] * d_out.at(t, h)[c];
        }
      // S = S' + k u^T with u = b r, r = v - S'^T k, S' = decay S_before
      T d_b = 0, d_decay = 0;
      for (index c = 0; c < n.value_dim; ++c) {
        T d_u = 0;
        for (index i = 0; i < n.key_dim; ++i) d_u += kn[i] * ds(i, c);
        const T r = residual[t][c], d_r = b * d_u;
        d_b += d_u * r;
        d_v.at(t, h)[c] = d_r;
        for (index i = 0; i < n.key_dim; ++i) {
          const T s = before[t][i * n.value_dim + c];
          d_kn[i] += b * r * ds(i, c) - decay * s * d_r;
          const T d_decayed = ds(i, c) - kn[i] * d_r;
          d_decay += d_decayed * s;
          ds(i, c) = decay * d_decayed;
        }
      }
      d_beta(t, h) = d_b;
      d_g(t, h) = d_decay * decay;
      l2_normalized_backward<T>(d_q.at(t, kh), d_qn, q.at(t, kh), n.key_dim, q_scale);
      l2_normalized_backward<T>(d_k.at(t, kh), d_kn, k.at(t, kh), n.key_dim, T(1));
    }
  }
}

}  // namespace longstraw::kernels::reference
