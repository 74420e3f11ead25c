#pragma once
// Token embedding: out[t] = table[ids[t]].

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

///  out [tokens, hidden] written;  table [vocabulary, hidden];  every id is inside the vocabulary (the caller checked).
void embedding_forward(mat out, std::span<const token_id> ids, cmat table, executor& on);

///  d_table [vocabulary, hidden] +=: rows of repeated ids add up, in token order.
void embedding_backward(mat d_table, cmat d_out, std::span<const token_id> ids, executor& on);

}  // namespace longstraw::kernels
