#include <longstraw/kernels/reference/attention.hpp>
#include <longstraw/kernels/reference/causal_conv.hpp>
#include <longstraw/kernels/reference/gated_delta.hpp>
#include <longstraw/kernels/reference/linear.hpp>
#include <longstraw/kernels/reference/rms_norm.hpp>
#include <longstraw/kernels/reference/rotary.hpp>
#include <longstraw/kernels/reference/swiglu.hpp>
#include <longstraw/models/reference/decoder_layer.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace longstraw::models::reference {

namespace ref = kernels::reference;
using kernels::norm_weight;

matrix_view<const double> named_weights::matrix(const std::string& name) const {
  const parameter& p = layout->at(name);
  return {weights + p.offset, p.shape[0], p.count / p.shape[0]};
}
matrix_view<double> named_weights::d_matrix(const std::string& name) const {
  const parameter& p = layout->at(name);
  return {gradients + p.offset, p.shape[0], p.count / p.shape[0]};
}
std::span<const double> named_weights::vector(const std::string& name) const {
  const parameter& p = layout->at(name);
  return {weights + p.offset, static_cast<std::size_t>(p.count)};
}
std::span<double> named_weights::d_vector(const std::string& name) const {
  const parameter& p = layout->at(name);
  return {gradients + p.offset, static_cast<std::size_t>(p.count)};
}

tensor linear(const named_weights& p, const std::string& name, bool bias, const tensor& x) {
  const auto weight = p.matrix(name + ".weight");
  tensor y(x.rows, weight.rows);
  ref::linear_forward<double>(y.m(), x.m(), weight,
                              bias ? p.vector(name + ".bias") : std::span<const double>{},
                              kernels::into::write);
  return y;
}

void linear_backward(tensor& d_x, const named_weights& p, const std::string& name, bool bias,
                     const tensor& d_y, const tensor& x) {
  ref::linear_backward_weight<double>(p.d_matrix(name + ".weight"),
                                      bias ? p.d_vector(name + ".bias") : std::span<double>{},
                                      d_y.m(), x.m());
  ref::linear_backward_input<double>(d_x.m(), d_y.m(), p.matrix(name + ".weight"),
                                     kernels::into::add);
}

namespace {
void add(tensor& to, const tensor& more) {
  for (std::size_t i = 0; i < to.values.size(); ++i) to.values[i] += more.values[i];
}
void add(std::vector<double>& to, const std::vector<double>& more) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += more[i];
}
void scale(tensor& x, double factor) {
  for (double& v : x.values) v *= factor;
}
template <class T>
std::vector<T> joined(const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

/// q_proj's rows are head by head: queries, then the gate if there is one.
template <class Tensor>
auto query_part(Tensor& raw, const model_config& c, bool gate) {
  auto h = raw.heads(c.query_heads);
  h.width = c.head_dim;
  if (gate) h.data += c.head_dim;
  return h;
}

template <class T>
void copy_heads(heads_view<double> to, heads_view<T> from) {
  for (index t = 0; t < to.tokens; ++t)
    for (index h = 0; h < to.heads; ++h) std::copy_n(from.at(t, h), to.width, to.at(t, h));
}

/// q, k and v of the convolved channels.
template <class Tensor>
auto delta_parts(Tensor& x, const model_config& c) {
  const index keys = c.delta_key_heads * c.delta_key_dim;
  auto m = x.m();
  return std::array{split_heads(m.col_range(0, keys), c.delta_key_heads),
                    split_heads(m.col_range(keys, 2 * keys), c.delta_key_heads),
                    split_heads(m.col_range(2 * keys, m.cols), c.delta_value_heads)};
}

kernels::gated_delta_dims delta_dims(const model_config& c) {
  return {c.delta_key_heads, c.delta_value_heads, c.delta_key_dim, c.delta_value_dim};
}
}  // namespace

std::string decoder_layer::name() const {
  return config->tensor_prefix + "layers." + std::to_string(number) + ".";
}

layer_trace decoder_layer::forward(tensor& hidden, layer_state* after) const {
  layer_trace t;
  t.input = hidden;
  t.normed = tensor(hidden.rows, hidden.cols);
  t.rstd = tensor(hidden.rows, 1);
  ref::rms_norm_forward<double>(t.normed.heads(1), t.rstd.m(), t.input.heads(1),
                                parameters.vector(name() + "input_layernorm.weight"),
                                config->rms_norm_eps, config->norm);
  if (config->layers[static_cast<std::size_t>(number)] == layer_kind::full_attention)
    attention(t, hidden, after);
  else
    gated_delta(t, hidden, after);
  feed_forward(t, hidden);
  return t;
}

void decoder_layer::backward(tensor& d_hidden, const layer_trace& t, layer_state* d_before) const {
  feed_forward_backward(d_hidden, t);
  tensor d_normed(d_hidden.rows, d_hidden.cols);
  if (config->layers[static_cast<std::size_t>(number)] == layer_kind::full_attention)
    attention_backward(d_normed, d_hidden, t, d_before);
  else
    gated_delta_backward(d_normed, d_hidden, t, d_before);
  const std::string norm = name() + "input_layernorm.weight";
  ref::rms_norm_backward<double>(d_hidden.heads(1), parameters.d_vector(norm), d_normed.heads(1),
                                 t.input.heads(1), t.rstd.m(), parameters.vector(norm),
                                 config->norm);
}

void decoder_layer::attention(layer_trace& t, tensor& hidden, layer_state* after) const {
  const model_config& c = *config;
  const std::string self = name() + "self_attn.";
  const index tokens = hidden.rows, width = c.query_heads * c.head_dim;
  t.raw_q = linear(parameters, self + "q_proj", c.attention_bias, t.normed);
  t.raw_k = linear(parameters, self + "k_proj", c.attention_bias, t.normed);
  t.v = linear(parameters, self + "v_proj", c.attention_bias, t.normed);
  t.q = tensor(tokens, width);
  t.k = t.raw_k;
  copy_heads(t.q.heads(c.query_heads), query_part(t.raw_q, c, false));
  if (c.qk_norm) {
    t.q_rstd = tensor(tokens, c.query_heads);
    t.k_rstd = tensor(tokens, c.kv_heads);
    ref::rms_norm_forward<double>(
        t.q.heads(c.query_heads), t.q_rstd.m(), query_part(t.raw_q, c, false),
        parameters.vector(self + "q_norm.weight"), c.rms_norm_eps, c.norm);
    ref::rms_norm_forward<double>(t.k.heads(c.kv_heads), t.k_rstd.m(), t.raw_k.heads(c.kv_heads),
                                  parameters.vector(self + "k_norm.weight"), c.rms_norm_eps,
                                  c.norm);
  }
  ref::rotary_forward<double>(t.q.heads(c.query_heads), angles->m());
  ref::rotary_forward<double>(t.k.heads(c.kv_heads), angles->m());
  // The scale is applied here: the kernel's own is a float.
  scale(t.q, 1 / std::sqrt(static_cast<double>(c.head_dim)));

  tensor old_k(tokens_before, t.k.cols), old_v(tokens_before, t.k.cols);
  old_k.values = before->keys;
  old_v.values = before->values;
  const std::array<ref::kv_part<double>, 2> parts{{
      {old_k.heads(c.kv_heads), old_v.heads(c.kv_heads), 0},
      {t.k.heads(c.kv_heads), t.v.heads(c.kv_heads), tokens_before},
  }};
  t.attended = tensor(tokens, width);
  t.lse = tensor(tokens, c.query_heads);
  ref::attention_forward<double>(t.attended.m(), t.lse.m(), t.q.heads(c.query_heads), tokens_before,
                                 parts, {c.query_heads, c.kv_heads, c.head_dim, 1.0f});
  t.mixed = t.attended;
  if (c.attention_gate)
    ref::sigmoid_gate_forward<double>(t.mixed.heads(c.query_heads), t.attended.heads(c.query_heads),
                                      query_part(t.raw_q, c, true));
  add(hidden, linear(parameters, self + "o_proj", c.attention_bias, t.mixed));
  if (after) {
    after->keys = joined(before->keys, t.k.values);
    after->values = joined(before->values, t.v.values);
  }
}

void decoder_layer::attention_backward(tensor& d_normed, const tensor& d_hidden,
                                       const layer_trace& t, layer_state* d_before) const {
  const model_config& c = *config;
  const std::string self = name() + "self_attn.";
  const index tokens = d_hidden.rows, width = c.query_heads * c.head_dim;
  tensor d_mixed(tokens, width);
  linear_backward(d_mixed, parameters, self + "o_proj", c.attention_bias, d_hidden, t.mixed);
  tensor d_attended = d_mixed, d_raw_q(tokens, t.raw_q.cols);
  if (c.attention_gate)
    ref::sigmoid_gate_backward<double>(
        d_attended.heads(c.query_heads), query_part(d_raw_q, c, true), d_mixed.heads(c.query_heads),
        t.attended.heads(c.query_heads), query_part(t.raw_q, c, true));

  tensor delta(tokens, c.query_heads), d_q(tokens, width), d_k(tokens, t.k.cols),
      d_v(tokens, t.k.cols);
  ref::attention_delta<double>(delta.m(), d_attended.m(), t.attended.m());
  tensor old_k(tokens_before, t.k.cols), old_v(tokens_before, t.k.cols);
  tensor d_old_k(tokens_before, t.k.cols), d_old_v(tokens_before, t.k.cols);
  old_k.values = before->keys;
  old_v.values = before->values;
  const std::array<ref::kv_part<double>, 2> parts{{
      {old_k.heads(c.kv_heads), old_v.heads(c.kv_heads), 0},
      {t.k.heads(c.kv_heads), t.v.heads(c.kv_heads), tokens_before},
  }};
  const std::array<ref::kv_part_gradient<double>, 2> gradients{{
      {d_old_k.heads(c.kv_heads), d_old_v.heads(c.kv_heads)},
      {d_k.heads(c.kv_heads), d_v.heads(c.kv_heads)},
  }};
  ref::attention_backward<double>(d_q.heads(c.query_heads), gradients, d_attended.m(), t.lse.m(),
                                  delta.m(), t.q.heads(c.query_heads), tokens_before, parts,
                                  {c.query_heads, c.kv_heads, c.head_dim, 1.0f});
  if (d_before) {
    add(d_before->keys, d_old_k.values);
    add(d_before->values, d_old_v.values);
  }

  scale(d_q, 1 / std::sqrt(static_cast<double>(c.head_dim)));
  ref::rotary_backward<double>(d_q.heads(c.query_heads), angles->m());
  ref::rotary_backward<double>(d_k.heads(c.kv_heads), angles->m());
  tensor d_raw_k = d_k;
  if (c.qk_norm) {
    std::fill(d_raw_k.values.begin(), d_raw_k.values.end(), 0.0);
    ref::rms_norm_backward<double>(query_part(d_raw_q, c, false),
                                   parameters.d_vector(self + "q_norm.weight"),
                                   d_q.heads(c.query_heads), query_part(t.raw_q, c, false),
                                   t.q_rstd.m(), parameters.vector(self + "q_norm.weight"), c.norm);
    ref::rms_norm_backward<double>(d_raw_k.heads(c.kv_heads),
                                   parameters.d_vector(self + "k_norm.weight"),
                                   d_k.heads(c.kv_heads), t.raw_k.heads(c.kv_heads), t.k_rstd.m(),
                                   parameters.vector(self + "k_norm.weight"), c.norm);
  } else {
    copy_heads(query_part(d_raw_q, c, false), d_q.heads(c.query_heads));
  }
  linear_backward(d_normed, parameters, self + "q_proj", c.attention_bias, d_raw_q, t.normed);
  linear_backward(d_normed, parameters, self + "k_proj", c.attention_bias, d_raw_k, t.normed);
  linear_backward(d_normed, parameters, self + "v_proj", c.attention_bias, d_v, t.normed);
}

void decoder_layer::gated_delta(layer_trace& t, tensor& hidden, layer_state* after) const {
  const model_config& c = *config;
  const std::string self = name() + "linear_attn.";
  const index tokens = hidden.rows;
  t.qkv = linear(parameters, self + "in_proj_qkv", false, t.normed);
  t.z = linear(parameters, self + "in_proj_z", false, t.normed);
  t.b = linear(parameters, self + "in_proj_b", false, t.normed);
  t.a = linear(parameters, self + "in_proj_a", false, t.normed);

  tensor tail(c.conv_kernel - 1, t.qkv.cols), next_tail = tail;
  tail.values = before->tail;
  t.convolved = tensor(tokens, t.qkv.cols);
  ref::causal_conv_forward<double>(t.convolved.m(), t.qkv.m(), tail.m(),
                                   parameters.matrix(self + "conv1d.weight"));
  ref::causal_conv_next_tail<double>(next_tail.m(), t.qkv.m(), tail.m());
  t.g = tensor(tokens, c.delta_value_heads);
  t.beta = t.g;
  ref::gated_delta_gates_forward<double>(t.g.m(), t.beta.m(), t.a.m(), t.b.m(),
                                         parameters.vector(self + "A_log"),
                                         parameters.vector(self + "dt_bias"));
  std::vector<double> state = before->recurrent;
  t.out = tensor(tokens, t.z.cols);
  const auto [q, k, v] = delta_parts(t.convolved, c);
  ref::gated_delta_forward<double>(t.out.heads(c.delta_value_heads), state, q, k, v, t.g.m(),
                                   t.beta.m(), delta_dims(c));
  t.mixed = tensor(tokens, t.z.cols);
  t.out_rstd = t.g;
  ref::gated_rms_norm_forward<double>(
      t.mixed.heads(c.delta_value_heads), t.out_rstd.m(), t.out.heads(c.delta_value_heads),
      t.z.heads(c.delta_value_heads), parameters.vector(self + "norm.weight"), c.rms_norm_eps);
  add(hidden, linear(parameters, self + "out_proj", false, t.mixed));
  if (after) {
    after->recurrent = state;
    after->tail = next_tail.values;
  }
}

void decoder_layer::gated_delta_backward(tensor& d_normed, const tensor& d_hidden,
                                         const layer_trace& t, layer_state* d_before) const {
  const model_config& c = *config;
  const std::string self = name() + "linear_attn.";
  const index tokens = d_hidden.rows, values = t.z.cols;
  tensor d_mixed(tokens, values), d_out(tokens, values), d_z(tokens, values);
  linear_backward(d_mixed, parameters, self + "out_proj", false, d_hidden, t.mixed);
  ref::gated_rms_norm_backward<double>(
      d_out.heads(c.delta_value_heads), d_z.heads(c.delta_value_heads),
      parameters.d_vector(self + "norm.weight"), d_mixed.heads(c.delta_value_heads),
      t.out.heads(c.delta_value_heads), t.z.heads(c.delta_value_heads), t.out_rstd.m(),
      parameters.vector(self + "norm.weight"));

  tensor d_convolved(tokens, t.qkv.cols), d_g(tokens, c.delta_value_heads), d_beta = d_g;
  std::vector<double> d_state(before->recurrent.size());
  const auto [q, k, v] = delta_parts(t.convolved, c);
  const auto [d_q, d_k, d_v] = delta_parts(d_convolved, c);
  ref::gated_delta_backward<double>(d_q, d_k, d_v, d_g.m(), d_beta.m(), d_state,
                                    d_out.heads(c.delta_value_heads), before->recurrent, q, k, v,
                                    t.g.m(), t.beta.m(), delta_dims(c));
  tensor d_a = d_g, d_b = d_g;
  ref::gated_delta_gates_backward<double>(
      d_a.m(), d_b.m(), parameters.d_vector(self + "A_log"), parameters.d_vector(self + "dt_bias"),
      d_g.m(), d_beta.m(), t.a.m(), t.b.m(), parameters.vector(self + "A_log"),
      parameters.vector(self + "dt_bias"));
  tensor tail(c.conv_kernel - 1, t.qkv.cols), d_tail = tail, d_qkv(tokens, t.qkv.cols);
  tail.values = before->tail;
  ref::causal_conv_backward<double>(
      d_qkv.m(), d_tail.m(), parameters.d_matrix(self + "conv1d.weight"), d_convolved.m(), {},
      t.qkv.m(), tail.m(), parameters.matrix(self + "conv1d.weight"));
  if (d_before) {
    add(d_before->recurrent, d_state);
    add(d_before->tail, d_tail.values);
  }
  linear_backward(d_normed, parameters, self + "in_proj_qkv", false, d_qkv, t.normed);
  linear_backward(d_normed, parameters, self + "in_proj_z", false, d_z, t.normed);
  linear_backward(d_normed, parameters, self + "in_proj_b", false, d_b, t.normed);
  linear_backward(d_normed, parameters, self + "in_proj_a", false, d_a, t.normed);
}

void decoder_layer::feed_forward(layer_trace& t, tensor& hidden) const {
  const bool bias = config->mlp_bias;
  t.middle = hidden;
  t.middle_normed = tensor(hidden.rows, hidden.cols);
  t.middle_rstd = tensor(hidden.rows, 1);
  ref::rms_norm_forward<double>(t.middle_normed.heads(1), t.middle_rstd.m(), t.middle.heads(1),
                                parameters.vector(name() + "post_attention_layernorm.weight"),
                                config->rms_norm_eps, config->norm);
  t.gate = linear(parameters, name() + "mlp.gate_proj", bias, t.middle_normed);
  t.up = linear(parameters, name() + "mlp.up_proj", bias, t.middle_normed);
  t.product = t.gate;
  ref::swiglu_forward<double>(t.product.m(), t.gate.m(), t.up.m());
  add(hidden, linear(parameters, name() + "mlp.down_proj", bias, t.product));
}

void decoder_layer::feed_forward_backward(tensor& d_hidden, const layer_trace& t) const {
  const bool bias = config->mlp_bias;
  tensor d_product(t.product.rows, t.product.cols), d_gate = d_product, d_up = d_product;
  linear_backward(d_product, parameters, name() + "mlp.down_proj", bias, d_hidden, t.product);
  ref::swiglu_backward<double>(d_gate.m(), d_up.m(), d_product.m(), t.gate.m(), t.up.m());
  tensor d_normed(d_hidden.rows, d_hidden.cols);
  linear_backward(d_normed, parameters, name() + "mlp.gate_proj", bias, d_gate, t.middle_normed);
  linear_backward(d_normed, parameters, name() + "mlp.up_proj", bias, d_up, t.middle_normed);
  const std::string norm = name() + "post_attention_layernorm.weight";
  ref::rms_norm_backward<double>(d_hidden.heads(1), parameters.d_vector(norm), d_normed.heads(1),
                                 t.middle.heads(1), t.middle_rstd.m(), parameters.vector(norm),
                                 config->norm);
}

}  // namespace longstraw::models::reference
