#pragma once
// A decoder layer with full attention: Llama, Qwen3 (q/k norm) and the attention layers of Qwen3.5
// (q/k norm, partial rotary, output gate).
//
//   project   n = norm(hidden)    q | k | v = n W^T    q, k = rotary(norm(q)), rotary(norm(k))
//             k, v to pages
//   attend    out, lse = attention(q, keys and values of pages and pass)
//   output    hidden += (out sigmoid(gate)) W_o^T    hidden += feed_forward(hidden)
//
// Its state is one key and one value per kv head and token (kv_pages.hpp). On several ranks each
// keeps those of its tokens, attends with the queries of all tokens, and the results are merged
// (kernels/attention.hpp).

#include <longstraw/kernels/attention.hpp>
#include <longstraw/models/feed_forward.hpp>
#include <longstraw/models/kv_pages.hpp>

namespace longstraw::models {

class attention_layer final : public layer_program {
 public:
  /// `number`: of the layer in the model. The store must outlive the program.
  attention_layer(const model_config& config, index number, const parameter_store& store);

  std::string_view kind() const override { return "attention"; }
  std::span<const segment> segments() const override;
  bool gives_state_gradient() const override { return true; }
  bool runs_on_ranks() const override { return true; }
  state_spec state(const rank_share&) const override { return {kv_.floats_per_token(), 0}; }
  index activation_floats(index tokens, const rank_share& at) const override;
  void forward(std::size_t s, layer_pass& pass) const override;
  void backward(std::size_t s, layer_pass& pass) const override;
  index given_floats(std::size_t s, direction d, index tokens, const rank_share& at) const override;
  index give(std::size_t s, direction d, const layer_pass& pass,
             std::span<float> to) const override;
  void take(std::size_t s, direction d, layer_pass& pass,
            std::span<const std::span<const float>> given) const override;

 private:
  /// What attention reads and writes: all tokens of the pass, against this rank's keys. On one rank
  /// these are parts of `views`; on several they live from one exchange to the next.
  struct gathered {
    heads q, d_q;    ///< [all tokens, query_heads, head_dim]
    mat out, d_out;  ///< [all tokens, query_heads * head_dim]; out: of these keys alone
    mat lse;         ///< [all tokens, query_heads]; forward, of these keys; backward, merged
    mat delta;       ///< [all tokens, query_heads]
  };
  /// The parts of layer_pass::activations. tokens: of this rank.
  struct views {
    mat input;      ///< [tokens, hidden] kept
    mat rstd;       ///< [tokens, 1] kept
    mat projected;  ///< [tokens, row_floats()] kept: q (each head with its gate) | k | v, then,
                    ///< with q/k norm, the q and k that attention sees; without, those are turned
                    ///< in place
    mat q_rstd, k_rstd;  ///< [tokens, heads] kept
    mat attended;        ///< [tokens, query_heads * head_dim] kept: before the gate
    mat lse;             ///< [tokens, query_heads] kept
    feed_forward_pass ffn;
    // Over the memory of ffn.gate_up and ffn.scratch: before them in forward, after them in
    // backward.
    mat d_projected;  ///< like projected
    mat work;         ///< [tokens, max(hidden, query_heads * head_dim)]
    mat delta;        ///< [tokens, query_heads]
    gathered all;
  };
  views carve(carver& from, index tokens, index all_tokens, const rank_share& at) const;
  views carve(const layer_pass& pass) const;

  index row_floats() const;
  /// Queries are no part of the state: without them the product starts at the keys.
  index first_column(const layer_pass& pass) const { return pass.state_only ? q_floats_ : 0; }
  index attended_floats() const { return dims_.query_heads * dims_.head_dim; }
  index product_floats() const { return q_floats_ + 2 * kv_floats_; }
  // Parts of `projected` and, alike, of its gradient. raw: as the product gave it.
  heads raw_q(mat m) const;
  heads gate(mat m) const;
  heads raw_k(mat m) const;
  heads v(mat m) const;
  heads q(mat m) const;
  heads k(mat m) const;

  void project(layer_pass& pass) const;
  void attend(layer_pass& pass) const;
  void output(layer_pass& pass) const;
  void project_backward(layer_pass& pass) const;
  void attend_backward(layer_pass& pass) const;
  void output_backward(layer_pass& pass) const;

  /// In backward, from `output` to `attend`: the gradient of `attended`.
  mat d_attended(const views& m) const { return {m.work.data, m.work.rows, attended_floats()}; }
  std::vector<kernels::kv_piece> pieces(const layer_pass& pass, const views& m) const;
  void read_page_gradients(const layer_pass& pass, const views& m) const;
  void norm_input(mat normed, mat rstd, cmat hidden, kernels::executor& on) const;

  index hidden_;
  kernels::attention_dims dims_;
  bool gated_, qk_norm_;
  index q_floats_, kv_floats_;  ///< of a row: q with gate; k alone
  float eps_;
  kernels::norm_weight norm_kind_;
  kv_pages kv_;

  vector_parameter norm_, q_norm_, k_norm_;
  matrix_parameter qkv_, out_;
  vector_parameter qkv_bias_, out_bias_;
  feed_forward ffn_;
};

}  // namespace longstraw::models
