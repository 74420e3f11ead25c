#pragma once
// A gated delta net layer (Qwen3.5's linear attention):
//
//   project   n = norm(hidden)    qkv | z | b | a = n W^T
//   recur     q | k | v = silu(conv(qkv))    g, beta = gates(a, b)
//             out, S = delta rule(q, k, v, g, beta; S)
//   output    hidden += (gated norm(out, z)) W_o^T    hidden += feed_forward(hidden)
//
// Its state has a fixed size: S [value_heads, key_dim, value_dim], then the convolution's tail
// [kernel - 1, channels], channels q | k | v. On several ranks each has the state of its heads, for
// which it runs `recur` over all tokens; the rest is by tokens.

#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/models/feed_forward.hpp>
#include <longstraw/models/layer_program.hpp>

#include <array>

namespace longstraw::models {

class gated_delta_layer final : public layer_program {
 public:
  /// `number`: of the layer in the model. The store must outlive the program.
  gated_delta_layer(const model_config& config, index number, const parameter_store& store);

  std::string_view kind() const override { return "gated_delta_net"; }
  std::span<const segment> segments() const override;
  bool gives_state_gradient() const override { return true; }
  bool runs_on_ranks() const override { return true; }
  state_spec state(const rank_share& at) const override;
  index activation_floats(index tokens, const rank_share& at) const override;
  void forward(std::size_t s, layer_pass& pass) const override;
  void backward(std::size_t s, layer_pass& pass) const override;
  index given_floats(std::size_t s, direction d, index tokens, const rank_share& at) const override;
  index give(std::size_t s, direction d, const layer_pass& pass,
             std::span<float> to) const override;
  void take(std::size_t s, direction d, layer_pass& pass,
            std::span<const std::span<const float>> given) const override;

 private:
  /// What the convolution and the gates read of some heads: key heads, and the value heads that
  /// read them.
  struct head_inputs {
    mat qkv;   ///< [tokens, q | k | v]
    mat b, a;  ///< [tokens, value heads]
  };
  /// The parts of layer_pass::activations. tokens: of this rank; all: of all ranks; own: of this
  /// rank's heads.
  struct views {
    mat input;                      ///< [tokens, hidden] kept
    mat rstd;                       ///< [tokens, 1] kept
    mat projected;                  ///< [tokens, qkv | z | b | a]; on one rank kept
    heads z;                        ///< [tokens, value_heads, value_dim] kept
    head_inputs in;                 ///< [all, own ...] kept; on one rank parts of `projected`
    mat convolved;                  ///< [all, own q | k | v] kept
    mat g, beta;                    ///< [all, own value_heads] kept
    mat out;                        ///< [tokens, value_floats] kept: before the gated norm
    mat out_rstd;                   ///< [tokens, value_heads] kept
    std::span<float> chunk_states;  ///< of own heads, kept
    mat tail;  ///< [kernel - 1, own channels] kept: the convolution's tail before the pass
    /// Of own heads: the running state; in backward its gradient, if the caller has none.
    std::span<float> state;
    feed_forward_pass ffn;
    // Over the memory of ffn.gate_up and ffn.scratch: before them in forward, after them in
    // backward.
    mat d_projected;  ///< like projected, whose memory it is on several ranks
    mat d_out;        ///< like out
    /// Normed input or gated output [tokens, hidden or value_floats], or gradient of own q | k | v
    /// [all, own channels].
    std::span<float> work;
    mat d_g, d_beta;         ///< [all, own value_heads]
    mat d_tail;              ///< [kernel - 1, own channels]
    head_inputs d_in;        ///< like in; on one rank parts of `d_projected`
    mat own_out, d_own_out;  ///< [all, own value heads * value_dim]; on one rank `out` and `d_out`
  };
  views carve(carver& from, index tokens, index all_tokens, const rank_share& at) const;
  views carve(const layer_pass& pass) const;

  index value_floats() const { return dims_.value_heads * dims_.value_dim; }
  index channels() const { return channels_of(dims_); }
  static index channels_of(const kernels::gated_delta_dims& n) {
    return 2 * n.key_heads * n.key_dim + n.value_heads * n.value_dim;
  }
  index ratio() const { return dims_.value_heads / dims_.key_heads; }
  /// The heads of one rank: whole key heads, each with its value heads.
  kernels::gated_delta_dims own(const rank_share& at) const;
  /// This rank's part of a vector over value heads.
  template <class T>
  std::span<T> own_value_heads(std::span<T> all, const rank_share& at) const {
    return all.subspan(static_cast<std::size_t>(at.part(dims_.key_heads).begin * ratio()),
                       static_cast<std::size_t>(own(at).value_heads));
  }
  /// Calls body(first, end, row) for the runs of own channels whose weights are rows from `row` on.
  template <class F>
  void for_own_channels(const rank_share& at, F&& body) const;

  // Parts of `projected` and of its gradient ...
  head_inputs inputs(mat projected) const;
  heads z(mat projected) const;
  // ... and of `convolved` and its gradient, by heads: n.
  static heads q(mat convolved, const kernels::gated_delta_dims& n);
  static heads k(mat convolved, const kernels::gated_delta_dims& n);
  static heads v(mat convolved, const kernels::gated_delta_dims& n);
  /// What is exchanged of them: matrices, each with so many columns a key head.
  struct head_columns {
    mat m;
    index head_floats;
  };
  std::array<head_columns, 5> columns(const head_inputs& in,
                                      const kernels::gated_delta_dims& n) const;

  void project(layer_pass& pass) const;
  void recur(layer_pass& pass) const;
  void output(layer_pass& pass) const;
  void project_backward(layer_pass& pass) const;
  void recur_backward(layer_pass& pass) const;
  void output_backward(layer_pass& pass) const;
  void norm_input(mat normed, mat rstd, cmat hidden, kernels::executor& on) const;
  void norm_output(mat normed, const views& m, kernels::executor& on) const;
  mat gated_output(const views& m) const { return {m.work.data(), m.out.rows, value_floats()}; }

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
