#pragma once
// One random problem of the gated delta rule, its truth in double, and the fast kernels' results.

#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/kernels/reference/gated_delta.hpp>

namespace longstraw::testing {

/// Inputs, rounded to float and kept in T. Decays exp(g) are uniform in [decay_low, decay_high].
template <class T>
struct delta_case {
  kernels::gated_delta_dims dims;
  index tokens = 0;
  std::vector<T> q, k, v, g, beta, state, d_out, d_state;

  heads_view<const T> q_view() const { return key_view(q); }
  heads_view<const T> k_view() const { return key_view(k); }
  heads_view<const T> v_view() const { return value_view(v); }
  heads_view<const T> d_out_view() const { return value_view(d_out); }
  matrix_view<const T> g_view() const { return {g.data(), tokens, dims.value_heads}; }
  matrix_view<const T> beta_view() const { return {beta.data(), tokens, dims.value_heads}; }
  index key_values() const { return tokens * dims.key_heads * dims.key_dim; }
  index value_values() const { return tokens * dims.value_heads * dims.value_dim; }
  index gate_values() const { return tokens * dims.value_heads; }

  heads_view<const T> key_view(const std::vector<T>& x) const {
    return split_heads(matrix_view<const T>(x.data(), tokens, dims.key_heads * dims.key_dim),
                       dims.key_heads);
  }
  heads_view<const T> value_view(const std::vector<T>& x) const {
    return split_heads(matrix_view<const T>(x.data(), tokens, dims.value_heads * dims.value_dim),
                       dims.value_heads);
  }

  /// The tokens [begin, end) of this case; state and d_state are copied as they are.
  delta_case part(index begin, index end) const {
    delta_case c = *this;
    c.tokens = end - begin;
    auto cut = [&](std::vector<T>& x) {
      const auto width = static_cast<std::ptrdiff_t>(x.size()) / std::max<index>(tokens, 1);
      x = std::vector<T>(x.begin() + begin * width, x.begin() + end * width);
    };
    for (auto* x : {&c.q, &c.k, &c.v, &c.g, &c.beta, &c.d_out}) cut(*x);
    return c;
  }
};

inline delta_case<float> make_delta_case(kernels::gated_delta_dims dims, index tokens,
                                         double decay_low = 0.8, double decay_high = 0.999,
                                         unsigned seed = 7) {
  delta_case<float> c;
  c.dims = dims;
  c.tokens = tokens;
  c.q = random_values<float>(c.key_values(), seed + 1);
  c.k = random_values<float>(c.key_values(), seed + 2);
  c.v = random_values<float>(c.value_values(), seed + 3);
  c.d_out = random_values<float>(c.value_values(), seed + 4);
  c.state = random_values<float>(dims.state_floats(), seed + 5, 0.3);
  c.d_state = random_values<float>(dims.state_floats(), seed + 6, 0.3);
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> decay(decay_low, decay_high), share(0.05, 0.98);
  for (index i = 0; i < c.gate_values(); ++i) {
    c.g.push_back(static_cast<float>(std::log(decay(engine))));
    c.beta.push_back(static_cast<float>(share(engine)));
  }
  return c;
}

inline delta_case<double> in_double(const delta_case<float>& c) {
  return {c.dims,
          c.tokens,
          as<double>(c.q),
          as<double>(c.k),
          as<double>(c.v),
          as<double>(c.g),
          as<double>(c.beta),
          as<double>(c.state),
          as<double>(c.d_out),
          as<double>(c.d_state)};
}

struct delta_truth {
  std::vector<double> out, state, d_q, d_k, d_v, d_g, d_beta, d_state;

  explicit delta_truth(const delta_case<double>& c)
      : out(c.v.size()),
        state(c.state),
        d_q(c.q.size()),
        d_k(c.k.size()),
        d_v(c.v.size()),
        d_g(c.g.size()),
        d_beta(c.beta.size()),
        d_state(c.d_state) {
    const auto keys = c.dims.key_heads, values = c.dims.value_heads;
    auto heads_of = [&](std::vector<double>& x, index heads) {
      const index width =
          heads == keys && (&x == &d_q || &x == &d_k) ? c.dims.key_dim : c.dims.value_dim;
      return split_heads(matrix_view<double>(x.data(), c.tokens, heads * width), heads);
    };
    auto gates = [&](std::vector<double>& x) {
      return matrix_view<double>(x.data(), c.tokens, values);
    };
    kernels::reference::gated_delta_forward<double>(heads_of(out, values), state, c.q_view(),
                                                    c.k_view(), c.v_view(), c.g_view(),
                                                    c.beta_view(), c.dims);
    kernels::reference::gated_delta_backward<double>(
        heads_of(d_q, keys), heads_of(d_k, keys), heads_of(d_v, values), gates(d_g), gates(d_beta),
        d_state, c.d_out_view(), c.state, c.q_view(), c.k_view(), c.v_view(), c.g_view(),
        c.beta_view(), c.dims);
  }
};

struct delta_results {
  guarded out, state, saved, d_q, d_k, d_v, d_g, d_beta, d_state;

  /// Forward and backward of the fast kernels. `start`: the state before the first token.
  delta_results(const delta_case<float>& c, kernels::executor& on)
      : out(c.value_values()),
        state(c.dims.state_floats()),
        saved(kernels::gated_delta_saved_floats(c.tokens, c.dims)),
        d_q(c.key_values()),
        d_k(c.key_values()),
        d_v(c.value_values()),
        d_g(c.gate_values()),
        d_beta(c.gate_values()),
        d_state(c.dims.state_floats()) {
    const auto& n = c.dims;
    const index keys = n.key_heads * n.key_dim, values = n.value_heads * n.value_dim;
    std::copy(c.state.begin(), c.state.end(), state.data());
    std::copy(c.d_state.begin(), c.d_state.end(), d_state.data());
    kernels::gated_delta_forward(split_heads(out.matrix(c.tokens, values), n.value_heads),
                                 state.values(), saved.values(), c.q_view(), c.k_view(), c.v_view(),
                                 c.g_view(), c.beta_view(), n, on);
    kernels::gated_delta_backward(split_heads(d_q.matrix(c.tokens, keys), n.key_heads),
                                  split_heads(d_k.matrix(c.tokens, keys), n.key_heads),
                                  split_heads(d_v.matrix(c.tokens, values), n.value_heads),
                                  d_g.matrix(c.tokens, n.value_heads),
                                  d_beta.matrix(c.tokens, n.value_heads), d_state.values(),
                                  c.d_out_view(), saved.values(), c.q_view(), c.k_view(),
                                  c.v_view(), c.g_view(), c.beta_view(), n, on);
  }

  /// Every result, by name.
  std::vector<std::pair<const char*, std::span<float>>> all() {
    return {{"out", out.values()},       {"state", state.values()},    {"d_q", d_q.values()},
            {"d_k", d_k.values()},       {"d_v", d_v.values()},        {"d_g", d_g.values()},
            {"d_beta", d_beta.values()}, {"d_state", d_state.values()}};
  }
};

}  // namespace longstraw::testing
