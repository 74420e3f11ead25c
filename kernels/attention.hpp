#pragma once
// Causal grouped-query attention over keys that lie in pieces: earlier pages of the prompt and the pass's own tokens.
//
//   S_ij = scale q_i . k_j  for position(j) <= position(i), else -inf
//   lse_i = log sum_j exp(S_ij)          out_i = sum_j exp(S_ij - lse_i) v_j
//
// Computed by tiles of queries and keys with a running maximum (FlashAttention, Dao 2022), never a whole row of scores.
// Key positions may be split in parts that are attended apart and merged afterwards:
//
//   lse = log sum_p exp(lse_p)           out = sum_p exp(lse_p - lse) out_p
//
// A part in which a query sees no key has lse_p = -inf, out_p = 0 and changes nothing. Backward of a part needs only the
// MERGED lse and delta_i = sum_c d_out_ic out_ic, so parts simply add up:
//
//   P_ij = exp(S_ij - lse_i)    dV_j += P_ij d_out_i    dS_ij = P_ij (d_out_i . v_j - delta_i) scale
//   dQ_i += dS_ij k_j           dK_j += dS_ij q_i
//
// Query head h reads key head h / (query_heads / kv_heads). Natural logarithm throughout.

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

/// Tiles of longer heads, or of more query heads to a key head, do not fit the scratch memory of a
/// thread.
inline constexpr index attention_head_dim_max = 1024;
inline constexpr index attention_group_max = 128;

struct attention_dims {
  index query_heads = 0;
  index kv_heads = 0;
  index head_dim = 0;
  float scale = 0;
};

/// A piece of keys and values: head h of token t is at data + t * token_stride + h * head_stride, head_dim values.
/// Token t has position `position + t`.
struct kv_piece {
  const float* key = nullptr;
  const float* value = nullptr;
  index tokens = 0;
  index position = 0;
  index token_stride = 0;
  index head_stride = 0;
};

/// Where the gradient of the piece of the same number goes, in the layout of that piece; null: not wanted (a frozen
/// page), and then not computed.
struct kv_piece_gradient {
  float* d_key = nullptr;
  float* d_value = nullptr;
};

///  out [tq, query_heads * head_dim] written;  lse [tq, query_heads] written;  q [tq, query_heads, head_dim]
///  Query t has position q_position + t. A query that sees no key gives out 0 and lse -inf.
void attention_forward(mat out, mat lse, cheads q, index q_position, std::span<const kv_piece> keys,
                       attention_dims n, executor& on);

///  delta [tq, query_heads] written: rowsum(d_out * out) a head
void attention_delta(mat delta, cmat d_out, cmat out, executor& on);

///  d_q [tq, query_heads, head_dim] += ;  gradients of keys and values += where wanted;  d_keys empty: none wanted
///  The order of all sums depends on the shapes alone.
void attention_backward(heads d_q, std::span<const kv_piece_gradient> d_keys, cmat d_out, cmat lse,
                        cmat delta, cheads q, index q_position, std::span<const kv_piece> keys,
                        attention_dims n, executor& on);

/// One part's result, for merging.
struct attention_part {
  cmat out;  ///< [tq, query_heads * head_dim]
  cmat lse;  ///< [tq, query_heads]
};

///  out, lse written;  parts in any number, also none (then out 0, lse -inf)
void attention_merge(mat out, mat lse, std::span<const attention_part> parts, executor& on);

///  Output gate of Qwen3.5: out = x sigmoid(gate), a head at a time; out and x may be the same memory.
void sigmoid_gate_forward(heads out, cheads x, cheads gate, executor& on);
///  d_x and d_gate written (=);  d_x and d_out may be the same memory
void sigmoid_gate_backward(heads d_x, heads d_gate, cheads d_out, cheads x, cheads gate,
                           executor& on);

}  // namespace longstraw::kernels
