#pragma once
// The second half of a decoder layer, the same for every kind of layer:
//
//   hidden += down( silu(gate(n)) up(n) )       n = norm(hidden)
//
// with gate and up stacked to one product. Backward needs the input, its norm's rstd and the
// products; the normed input and silu(gate) up are elementwise and rebuilt.

#include <longstraw/models/parameters.hpp>
#include <longstraw/models/workspace.hpp>

namespace longstraw::models {

/// Views of a layer's workspace.
struct feed_forward_pass {
  mat input;    ///< [tokens, hidden] kept
  mat rstd;     ///< [tokens, 1] kept
  mat gate_up;  ///< [tokens, 2 intermediate] kept; backward leaves its gradient there
  mat scratch;  ///< [tokens, max(hidden, intermediate)]
};

class feed_forward {
 public:
  /// `layer`: its layer_prefix.
  feed_forward(const model_config& config, const std::string& layer, const parameter_store& store);

  /// Cuts what is kept, then what is not: the caller may overlay gate_up and scratch after
  /// backward.
  void carve_kept(feed_forward_pass& pass, carver& from, index tokens) const;
  void carve_rest(feed_forward_pass& pass, carver& from, index tokens) const;

  /// hidden [tokens, hidden] in and out. keep: backward will follow. of_tokens: of which they are a
  /// slice (kernels::linear_forward).
  void forward(mat hidden, const feed_forward_pass& pass, bool keep, index of_tokens,
               kernels::executor& on) const;
  /// d_hidden [tokens, hidden]: in, gradient of the output; out, of the input. gradients: of the pass.
  void backward(mat d_hidden, const feed_forward_pass& pass, std::span<float> gradients,
                kernels::executor& on) const;

 private:
  index hidden_, intermediate_;
  float eps_;
  kernels::norm_weight norm_kind_;
  vector_parameter norm_;
  matrix_parameter gate_up_, down_;
  vector_parameter gate_up_bias_, down_bias_;
};

/// Name on disk of a layer, with the dot: "model.layers.3.".
std::string layer_prefix(const model_config& config, index number);
/// Neighbouring vectors as one, such as the biases of q, k and v.
vector_parameter stacked_vector(const parameter_store& store, const std::string& first,
                                const std::string& last);

}  // namespace longstraw::models
