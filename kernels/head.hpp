#pragma once
// The language-model head: logits, log-softmax, the gathered log-probability of each target and the entropy, by blocks
// of tokens. Logits of more than one block never exist: at a vocabulary of 248,320 they take about 1 MB a token.
//
//   z = hidden weight^T / temperature     lse = log sum_v exp(z_v)
//   logp = z_target - lse                 entropy = lse - sum_v softmax(z)_v z_v
//   d_z_v = d_logp (1[v = target] - softmax(z)_v)

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

/// Tokens of a block: as many as keep a block of logits near 16 MiB, between 1 and 256. Depends on the vocabulary only,
/// so scoring and replay cut the same blocks and agree bit for bit.
index head_block_tokens(index vocabulary);
/// Floats of the logits workspace that both functions below need.
index head_workspace_floats(index tokens, index vocabulary);

///  logps, entropies [tokens] written;  hidden [tokens, hidden size];  weight [vocabulary, hidden size]
///  targets [tokens], inside the vocabulary
///  lse [tokens] written, for backward.
///  Sums run in double within a row: log-probabilities stay right (and at most 0) at any vocabulary.
///  If tokens <= head_block_tokens, `workspace` holds the scaled logits afterwards and backward may reuse them.
void head_forward(std::span<float> logps, std::span<float> entropies, std::span<float> lse,
                  cmat hidden, cmat weight, std::span<const token_id> targets, float temperature,
                  std::span<float> workspace, executor& on);

///  d_hidden [tokens, hidden size] written (=);  d_weight [vocabulary, hidden size] += ;  d_logps [tokens]
///  logits_kept: `workspace` is as head_forward left it (only if tokens <= head_block_tokens); else they are rebuilt.
void head_backward(mat d_hidden, mat d_weight, std::span<const float> d_logps,
                   std::span<const float> lse, cmat hidden, cmat weight,
                   std::span<const token_id> targets, float temperature, std::span<float> workspace,
                   bool logits_kept, executor& on);

///  logits [tokens, vocabulary] written, divided by nothing: for sampling.
void head_logits(mat logits, cmat hidden, cmat weight, executor& on);

}  // namespace longstraw::kernels
