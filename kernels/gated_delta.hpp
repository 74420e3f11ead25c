#pragma once
// The gated delta rule (Yang et al. 2024, "Gated Delta Networks"): a recurrent state S [key_dim, value_dim] for each
// value head, updated token by token,
//
//   S <- exp(g_t) S                          decay, g_t <= 0
//   S <- S + k_t (beta_t (v_t - S^T k_t))^T  delta rule: write what the state does not already say about k_t
//   o_t = S^T q_t
//
// with k_t = l2norm(key), q_t = l2norm(query) / sqrt(key_dim), l2norm(x) = x / sqrt(sum x^2 + 1e-6). Value head h reads
// key head h / (value_heads / key_heads).
//
// Computed in chunks of `chunk_tokens()` tokens (WY form; docs/numerics.md derives it): within a chunk everything is
// matrix products and one unit lower-triangular solve, and only the state passes from chunk to chunk. Decays enter as
// exp(G_i - G_j) with i >= j, G the running sum of g, so the largest exponent is 0 and g = -50 a token stays finite.

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

struct gated_delta_dims {
  index key_heads = 0;
  index value_heads = 0;
  index key_dim = 0;
  index value_dim = 0;
  index state_floats() const { return value_heads * key_dim * value_dim; }

  /// The scratch memory of a thread holds the states of all value heads of a key head, in whole
  /// vectors, and tiles of their width.
  static constexpr index head_dim_max = 512;
  static constexpr index key_head_state_floats_max = index{1} << 20;
  index key_head_state_floats() const {
    return value_heads / key_heads * ((key_dim + 15) / 16 * 16) * ((value_dim + 15) / 16 * 16);
  }

  /// Tokens of a chunk, and the distance of the states that forward leaves for backward. Short
  /// chunks cost less work on pairs of tokens, long ones less traffic and memory for states: it
  /// is the size of a state that decides.
  index chunk_tokens() const { return key_dim * value_dim <= 64 * 64 ? 32 : 64; }
};

/// The longest chunk.
inline constexpr index gated_delta_chunk_max = 64;

///  g = -exp(a_log) softplus(a + dt_bias)     beta = sigmoid(b)
///  g, beta, a, b [tokens, value_heads];  a_log, dt_bias [value_heads]
void gated_delta_gates_forward(mat g, mat beta, cmat a, cmat b, std::span<const float> a_log,
                               std::span<const float> dt_bias, executor& on);
///  d_a, d_b written (=);  d_a_log, d_dt_bias +=
void gated_delta_gates_backward(mat d_a, mat d_b, std::span<float> d_a_log,
                                std::span<float> d_dt_bias, cmat d_g, cmat d_beta, cmat a, cmat b,
                                std::span<const float> a_log, std::span<const float> dt_bias,
                                executor& on);

/// Number of floats of `chunk_states` for that many tokens.
index gated_delta_saved_floats(index tokens, gated_delta_dims n);

///  out [tokens, value_heads, value_dim] written;  q, k [tokens, key_heads, key_dim] raw, v [tokens, value_heads,
///  value_dim];  g, beta [tokens, value_heads]
///  state [value_heads, key_dim, value_dim]: in, the state before the first token; out, the state after the last.
///  chunk_states [gated_delta_saved_floats] written with the state before each chunk; empty: no backward will follow.
void gated_delta_forward(heads out, std::span<float> state, std::span<float> chunk_states, cheads q,
                         cheads k, cheads v, cmat g, cmat beta, gated_delta_dims n, executor& on);

///  d_q, d_k, d_v, d_g, d_beta written (=), with the shapes of q, k, v, g, beta.
///  d_state [value_heads, key_dim, value_dim]: in, the gradient of the state after the last token (zero if none
///  enters); out, the gradient of the state before the first token.
void gated_delta_backward(heads d_q, heads d_k, heads d_v, mat d_g, mat d_beta,
                          std::span<float> d_state, cheads d_out,
                          std::span<const float> chunk_states, cheads q, cheads k, cheads v, cmat g,
                          cmat beta, gated_delta_dims n, executor& on);

}  // namespace longstraw::kernels
