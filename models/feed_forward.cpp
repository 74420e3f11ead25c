#include <longstraw/kernels/linear.hpp>
#include <longstraw/kernels/rms_norm.hpp>
#include <longstraw/kernels/swiglu.hpp>
#include <longstraw/models/feed_forward.hpp>

#include <algorithm>

namespace longstraw::models {

using kernels::into;

std::string layer_prefix(const model_config& config, index number) {
  return config.tensor_prefix + "layers." + std::to_string(number) + ".";
}

vector_parameter stacked_vector(const parameter_store& store, const std::string& first,
                                const std::string& last) {
  const matrix_parameter m = stacked(store, first, last);
  LS_ASSERT(m.w.cols == 1, "only vectors stack to a vector");
  const auto count = static_cast<std::size_t>(m.w.rows);
  return {{m.w.data, count}, m.offset};
}

feed_forward::feed_forward(const model_config& config, const std::string& layer,
                           const parameter_store& store)
    : hidden_(config.hidden_size),
      intermediate_(config.intermediate_size),
      eps_(config.rms_norm_eps),
      norm_kind_(config.norm),
      norm_(vector_of(store, layer + "post_attention_layernorm.weight")),
      gate_up_(stacked(store, layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight")),
      down_(matrix_of(store, layer + "mlp.down_proj.weight")) {
  if (config.mlp_bias) {
    gate_up_bias_ = stacked_vector(store, layer + "mlp.gate_proj.bias", layer + "mlp.up_proj.bias");
    down_bias_ = vector_of(store, layer + "mlp.down_proj.bias");
  }
}

void feed_forward::carve_kept(feed_forward_pass& pass, carver& from, index tokens) const {
  pass.input = from.matrix(tokens, hidden_);
  pass.rstd = from.matrix(tokens, 1);
}

void feed_forward::carve_rest(feed_forward_pass& pass, carver& from, index tokens) const {
  pass.gate_up = from.matrix(tokens, 2 * intermediate_);
  pass.scratch = from.matrix(tokens, std::max(hidden_, intermediate_));
}

void feed_forward::forward(mat hidden, const feed_forward_pass& pass, bool keep, index of_tokens,
                           kernels::executor& on) const {
  if (keep) copy(pass.input, hidden, on);
  const mat normed(pass.scratch.data, hidden.rows, hidden_);
  kernels::rms_norm_forward(one_head(normed), pass.rstd, one_head(hidden), norm_.w, eps_,
                            norm_kind_, on);
  kernels::linear_forward(pass.gate_up, normed, gate_up_.w, gate_up_bias_.w, into::write, on,
                          of_tokens);

  const mat product(pass.scratch.data, hidden.rows, intermediate_);
  kernels::swiglu_forward(product, pass.gate_up.col_range(0, intermediate_),
                          pass.gate_up.col_range(intermediate_, 2 * intermediate_), on);
  kernels::linear_forward(hidden, product, down_.w, down_bias_.w, into::add, on, of_tokens);
}

void feed_forward::backward(mat d_hidden, const feed_forward_pass& pass, std::span<float> gradients,
                            kernels::executor& on) const {
  const mat gate = pass.gate_up.col_range(0, intermediate_);
  const mat up = pass.gate_up.col_range(intermediate_, 2 * intermediate_);

  const mat product(pass.scratch.data, d_hidden.rows, intermediate_);
  kernels::swiglu_forward(product, gate, up, on);
  kernels::linear_backward_weight(down_.d(gradients), down_bias_.d(gradients), d_hidden, product,
                                  on);
  const mat d_product = product;  // the product is not needed any more
  kernels::linear_backward_input(d_product, d_hidden, down_.w, into::write, on);
  kernels::swiglu_backward(gate, up, d_product, gate, up, on);

  const mat normed(pass.scratch.data, d_hidden.rows, hidden_);
  kernels::rms_norm_forward(one_head(normed), pass.rstd, one_head(pass.input), norm_.w, eps_,
                            norm_kind_, on);
  kernels::linear_backward_weight(gate_up_.d(gradients), gate_up_bias_.d(gradients), pass.gate_up,
                                  normed, on);
  const mat d_normed = normed;
  kernels::linear_backward_input(d_normed, pass.gate_up, gate_up_.w, into::write, on);
  kernels::rms_norm_backward(one_head(d_hidden), norm_.d(gradients), one_head(d_normed),
                             one_head(pass.input), pass.rstd, norm_.w, norm_kind_, on);
}

}  // namespace longstraw::models
