#pragma once
// A gated delta net layer (Qwen3.5's linear attention):
//
//   project   n = norm(hidden)    qkv | z | b | a = n W^T
//   recur     q | k | v = silu(conv(qkv))    g, beta = gates(a, b)
//             out, S = delta rule(q, k, v, g, beta; S)
//   output    hidden += (gated norm(out, z)) W_o^T    hidden += feed_forward(hidden)
//
// Its state has a fixed size: S [value_heads, key_dim, value_dim], then the convolution's tail
// [kernel - 1, channels], channels q | k | v.

#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/models/feed_forward.hpp>
#include <longstraw/models/layer_program.hpp>

namespace longstraw::models {

class gated_delta_layer final : public layer_program {
 public:
  /// `number`: of the layer in the model. The store must outlive the program.
  gated_delta_layer(const model_config& config, index number, const parameter_store& store);

  std::string_view kind() const override { return "gated_delta_net"; }
  std::span<const segment> segments() const override;
  state_spec state(const rank_share&) const override {
    return {0, dims_.state_floats() + tail_floats()};
  }
  index activation_floats(index tokens, const rank_share& at) const override;
  void forward(std::size_t s, layer_pass& pass) const override;
  void backward(std::size_t s, layer_pass& pass) const override;

 private:
  /// The parts of layer_pass::activations.
  struct views {
    mat input;                      ///< [tokens, hidden] kept
    mat rstd;                       ///< [tokens, 1] kept
    mat projected;                  ///< [tokens, qkv | z | b | a] kept
    mat convolved;                  ///< [tokens, q | k | v] kept
    mat g, beta;                    ///< [tokens, value_heads] kept
    mat out;                        ///< [tokens, value_floats] kept: before the gated norm
    mat out_rstd;                   ///< [tokens, value_heads] kept
    std::span<float> chunk_states;  ///< kept
    mat tail;  ///< [kernel - 1, channels] kept: the convolution's tail before the pass
    std::span<float>
        state;  ///< the running state; in backward its gradient, if the caller has none
    feed_forward_pass ffn;
    // Over the memory of ffn.gate_up and ffn.scratch: before them in forward, after them in
    // backward.
    mat d_projected;  ///< like projected
    mat d_out;        ///< like out
    mat work;  ///< [tokens, max(hidden, channels)]: normed input, gated output, or gradient of q |
               ///< k | v
    mat d_g, d_beta;  ///< [tokens, value_heads]
    mat d_tail;       ///< [kernel - 1, channels]
  };
  views carve(carver& from, index tokens) const;
  views carve(const layer_pass& pass) const;

  index key_floats() const { return dims_.key_heads * dims_.key_dim; }
  index value_floats() const { return dims_.value_heads * dims_.value_dim; }
  index channels() const { return 2 * key_floats() + value_floats(); }
  index tail_floats() const { return (kernel_ - 1) * channels(); }
  // Parts of `projected` and of its gradient ...
  mat qkv(mat projected) const { return projected.col_range(0, channels()); }
  heads z(mat projected) const;
  mat b(mat projected) const;
  mat a(mat projected) const;
  // ... and of `convolved` and its gradient.
  heads q(mat convolved) const;
  heads k(mat convolved) const;
  heads v(mat convolved) const;

  void project(layer_pass& pass) const;
  void recur(layer_pass& pass) const;
  void output(layer_pass& pass) const;
  void project_backward(layer_pass& pass) const;
  void recur_backward(layer_pass& pass) const;
  void output_backward(layer_pass& pass) const;
  void norm_input(mat normed, mat rstd, cmat hidden, kernels::executor& on) const;
  void norm_output(mat normed, const views& m, kernels::executor& on) const;

  index hidden_;
  kernels::gated_delta_dims dims_;
  index kernel_;
  float eps_;
  kernels::norm_weight norm_kind_;

  vector_parameter norm_, a_log_, dt_bias_, out_norm_;
  matrix_parameter in_, conv_, out_;
  feed_forward ffn_;
};

}  // namespace longstraw::models
