#pragma once
// The decoder layers of decoder.hpp, forward and backward, over tensors that own their
// memory.

#include <longstraw/memory/view.hpp>
#include <longstraw/models/reference/decoder.hpp>

#include <string>
#include <vector>

namespace longstraw::models::reference {

/// [rows, cols], zero at first.
struct tensor {
  index rows = 0, cols = 0;
  std::vector<double> values;

  tensor() = default;
  tensor(index r, index c) : rows(r), cols(c), values(static_cast<std::size_t>(r * c)) {}
  matrix_view<double> m() { return {values.data(), rows, cols}; }
  matrix_view<const double> m() const { return {values.data(), rows, cols}; }
  heads_view<double> heads(index count) { return split_heads(m(), count); }
  heads_view<const double> heads(index count) const { return split_heads(m(), count); }
};

/// Weights by name and, for backward, where their gradients are added.
struct named_weights {
  const parameter_layout* layout;
  const double* weights;
  double* gradients = nullptr;

  matrix_view<const double> matrix(const std::string& name) const;
  matrix_view<double> d_matrix(const std::string& name) const;
  std::span<const double> vector(const std::string& name) const;
  std::span<double> d_vector(const std::string& name) const;
};

/// x weight^T + bias; `name` without ".weight" and ".bias".
tensor linear(const named_weights& p, const std::string& name, bool bias, const tensor& x);
/// d_x +=
void linear_backward(tensor& d_x, const named_weights& p, const std::string& name, bool bias,
                     const tensor& d_y, const tensor& x);

/// All that a layer computed; unused parts are empty.
struct layer_trace {
  tensor input, rstd, normed;
  // attention
  tensor raw_q, raw_k, v, q, k, q_rstd, k_rstd, attended, lse, mixed;
  // gated delta net
  tensor qkv, z, b, a, convolved, g, beta, out, out_rstd;
  // feed-forward
  tensor middle, middle_rstd, middle_normed, gate, up, product;
};

/// One layer of one run of tokens.
struct decoder_layer {
  const model_config* config;
  index number;
  named_weights parameters;
  const tensor* angles;  ///< [tokens, rotary width]
  const layer_state* before;
  index tokens_before;

  /// hidden in and out; after: the state after the run, may be null.
  layer_trace forward(tensor& hidden, layer_state* after) const;
  /// d_hidden in and out; d_before += , may be null.
  void backward(tensor& d_hidden, const layer_trace& t, layer_state* d_before) const;

 private:
  std::string name() const;
  void attention(layer_trace& t, tensor& hidden, layer_state* after) const;
  void attention_backward(tensor& d_normed, const tensor& d_hidden, const layer_trace& t,
                          layer_state* d_before) const;
  void gated_delta(layer_trace& t, tensor& hidden, layer_state* after) const;
  void gated_delta_backward(tensor& d_normed, const tensor& d_hidden, const layer_trace& t,
                            layer_state* d_before) const;
  void feed_forward(layer_trace& t, tensor& hidden) const;
  void feed_forward_backward(tensor& d_hidden, const layer_trace& t) const;
};

}  // namespace longstraw::models::reference
