#include <longstraw/kernels/causal_conv.hpp>
#include <longstraw/kernels/linear.hpp>
#include <longstraw/kernels/rms_norm.hpp>
#include <longstraw/models/gated_delta_layer.hpp>

#include <algorithm>
#include <array>

namespace longstraw::models {

using kernels::into;

namespace {
enum : std::size_t { segment_project, segment_recur, segment_output };
constexpr std::array<segment, 3> program{{
    {"project", exchange::tokens_to_heads, true},
    {"recur", exchange::heads_to_tokens, true},
    {"output", exchange::none, false},
}};
}  // namespace

gated_delta_layer::gated_delta_layer(const model_config& config, index number,
                                     const parameter_store& store)
    : hidden_(config.hidden_size),
      dims_{config.delta_key_heads, config.delta_value_heads, config.delta_key_dim,
            config.delta_value_dim},
      kernel_(config.conv_kernel),
      eps_(config.rms_norm_eps),
      norm_kind_(config.norm),
      ffn_(config, layer_prefix(config, number), store) {
  const std::string layer = layer_prefix(config, number), linear = layer + "linear_attn.";
  norm_ = vector_of(store, layer + "input_layernorm.weight");
  in_ = stacked(store, linear + "in_proj_qkv.weight", linear + "in_proj_a.weight");
  conv_ = matrix_of(store, linear + "conv1d.weight");
  a_log_ = vector_of(store, linear + "A_log");
  dt_bias_ = vector_of(store, linear + "dt_bias");
  out_norm_ = vector_of(store, linear + "norm.weight");
  out_ = matrix_of(store, linear + "out_proj.weight");
  LS_ASSERT(in_.w.rows == channels() + value_floats() + 2 * dims_.value_heads,
            "the input projections qkv, z, b and a follow each other");
  LS_ASSERT(conv_.w.cols == kernel_, "a convolution weight is [channels, 1, kernel]");
}

std::span<const segment> gated_delta_layer::segments() const { return program; }

gated_delta_layer::views gated_delta_layer::carve(carver& from, index tokens) const {
  views m;
  m.input = from.matrix(tokens, hidden_);
  m.rstd = from.matrix(tokens, 1);
  m.projected = from.matrix(tokens, in_.w.rows);
  m.convolved = from.matrix(tokens, channels());
  m.g = from.matrix(tokens, dims_.value_heads);
  m.beta = from.matrix(tokens, dims_.value_heads);
  m.out = from.matrix(tokens, value_floats());
  m.out_rstd = from.matrix(tokens, dims_.value_heads);
  m.chunk_states = from.floats(kernels::gated_delta_saved_floats(tokens, dims_));
  m.tail = from.matrix(kernel_ - 1, channels());
  m.state = from.floats(dims_.state_floats());
  ffn_.carve_kept(m.ffn, from, tokens);
  const index overlaid = from.mark();
  ffn_.carve_rest(m.ffn, from, tokens);
  from.rewind(overlaid);
  m.d_projected = from.matrix(tokens, in_.w.rows);
  m.d_out = from.matrix(tokens, value_floats());
  m.work = from.matrix(tokens, std::max(hidden_, channels()));
  m.d_g = from.matrix(tokens, dims_.value_heads);
  m.d_beta = from.matrix(tokens, dims_.value_heads);
  m.d_tail = from.matrix(kernel_ - 1, channels());
  return m;
}

gated_delta_layer::views gated_delta_layer::carve(const layer_pass& pass) const {
  carver from(pass.activations.data());
  const views m = carve(from, pass.tokens());
  LS_ASSERT(from.highest() <= static_cast<index>(pass.activations.size()),
            "a pass has the workspace that its program asked for");
  return m;
}

index gated_delta_layer::activation_floats(index tokens, const rank_share&) const {
  carver from(nullptr);
  carve(from, tokens);
  return from.highest();
}

heads gated_delta_layer::z(mat projected) const {
  return split_heads(projected.col_range(channels(), channels() + value_floats()),
                     dims_.value_heads);
}
mat gated_delta_layer::b(mat projected) const {
  return projected.col_range(in_.w.rows - 2 * dims_.value_heads, in_.w.rows - dims_.value_heads);
}
mat gated_delta_layer::a(mat projected) const {
  return projected.col_range(in_.w.rows - dims_.value_heads, in_.w.rows);
}
heads gated_delta_layer::q(mat convolved) const {
  return split_heads(convolved.col_range(0, key_floats()), dims_.key_heads);
}
heads gated_delta_layer::k(mat convolved) const {
  return split_heads(convolved.col_range(key_floats(), 2 * key_floats()), dims_.key_heads);
}
heads gated_delta_layer::v(mat convolved) const {
  return split_heads(convolved.col_range(2 * key_floats(), channels()), dims_.value_heads);
}

void gated_delta_layer::forward(std::size_t s, layer_pass& pass) const {
  switch (s) {
    case segment_project:
      return project(pass);
    case segment_recur:
      return recur(pass);
    case segment_output:
      return output(pass);
    default:
      LS_ASSERT(false, "the program has three segments");
  }
}

void gated_delta_layer::backward(std::size_t s, layer_pass& pass) const {
  LS_ASSERT(pass.keep, "backward follows a forward pass that kept what it needs");
  switch (s) {
    case segment_project:
      return project_backward(pass);
    case segment_recur:
      return recur_backward(pass);
    case segment_output:
      return output_backward(pass);
    default:
      LS_ASSERT(false, "the program has three segments");
  }
}

void gated_delta_layer::norm_input(mat normed, mat rstd, cmat hidden, kernels::executor& on) const {
  kernels::rms_norm_forward(one_head(normed), rstd, one_head(hidden), norm_.w, eps_, norm_kind_,
                            on);
}

void gated_delta_layer::norm_output(mat normed, const views& m, kernels::executor& on) const {
  kernels::gated_rms_norm_forward(split_heads(normed, dims_.value_heads), m.out_rstd,
                                  split_heads(m.out, dims_.value_heads), z(m.projected),
                                  out_norm_.w, eps_, on);
}

void gated_delta_layer::project(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  if (pass.keep) copy(m.input, pass.hidden, on);
  const mat normed(m.work.data, pass.tokens(), hidden_);
  norm_input(normed, m.rstd, pass.hidden, on);
  kernels::linear_forward(m.projected, normed, in_.w, {}, into::write, on);
}

void gated_delta_layer::project_backward(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  const mat normed(m.work.data, pass.tokens(), hidden_);
  norm_input(normed, m.rstd, m.input, on);
  kernels::linear_backward_weight(in_.d(pass.gradients), {}, m.d_projected, normed, on);
  const mat d_normed = normed;
  kernels::linear_backward_input(d_normed, m.d_projected, in_.w, into::write, on);
  kernels::rms_norm_backward(one_head(pass.d_hidden), norm_.d(pass.gradients), one_head(d_normed),
                             one_head(m.input), m.rstd, norm_.w, norm_kind_, on);
}

void gated_delta_layer::recur(layer_pass& pass) const {
  const auto state_floats = static_cast<std::size_t>(dims_.state_floats());
  LS_ASSERT(pass.recurrent_before.size() == state_floats + static_cast<std::size_t>(tail_floats()),
            "a pass has the recurrent state before its first token");
  LS_ASSERT(
      pass.recurrent_after.empty() || pass.recurrent_after.size() == pass.recurrent_before.size(),
      "the state after the pass is as large as the one before");
  const views m = carve(pass);
  kernels::executor& on = *pass.on;

  // The state after may take the place of the state before, so what backward needs of the latter is
  // set aside first.
  std::copy_n(pass.recurrent_before.data() + state_floats, tail_floats(), m.tail.data);
  kernels::causal_conv_forward(m.convolved, qkv(m.projected), m.tail, conv_.w, on);
  kernels::gated_delta_gates_forward(m.g, m.beta, a(m.projected), b(m.projected), a_log_.w,
                                     dt_bias_.w, on);

  std::span<float> state = m.state;
  if (!pass.recurrent_after.empty()) {
    state = pass.recurrent_after.first(state_floats);
    const mat next_tail(pass.recurrent_after.data() + state_floats, kernel_ - 1, channels());
    kernels::causal_conv_next_tail(next_tail, qkv(m.projected), m.tail);
  }
  if (state.data() != pass.recurrent_before.data())
    std::copy_n(pass.recurrent_before.data(), state_floats, state.data());
  kernels::gated_delta_forward(split_heads(m.out, dims_.value_heads), state,
                               pass.keep ? m.chunk_states : std::span<float>{}, q(m.convolved),
                               k(m.convolved), v(m.convolved), m.g, m.beta, dims_, on);
}

void gated_delta_layer::recur_backward(layer_pass& pass) const {
  const auto state_floats = static_cast<std::size_t>(dims_.state_floats());
  LS_ASSERT(pass.d_recurrent.empty() ||
                pass.d_recurrent.size() == state_floats + static_cast<std::size_t>(tail_floats()),
            "the gradient of the state is as large as the state");
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  const bool full = !pass.d_recurrent.empty();
  if (pass.state_only) {
    set_zero(m.d_out, on);
    set_zero(m.d_projected, on);  // the gate z is read by later segments only
  }

  std::span<float> d_state = m.state;
  if (full)
    d_state = pass.d_recurrent.first(state_floats);
  else
    std::fill(d_state.begin(), d_state.end(), 0.0f);
  const mat d_convolved(m.work.data, pass.tokens(), channels());
  kernels::gated_delta_backward(q(d_convolved), k(d_convolved), v(d_convolved), m.d_g, m.d_beta,
                                d_state, split_heads(m.d_out, dims_.value_heads), m.chunk_states,
                                q(m.convolved), k(m.convolved), v(m.convolved), m.g, m.beta, dims_,
                                on);
  kernels::gated_delta_gates_backward(a(m.d_projected), b(m.d_projected), a_log_.d(pass.gradients),
                                      dt_bias_.d(pass.gradients), m.d_g, m.d_beta, a(m.projected),
                                      b(m.projected), a_log_.w, dt_bias_.w, on);

  mat d_tail, d_next_tail;
  if (full) {
    d_tail = mat(pass.d_recurrent.data() + state_floats, kernel_ - 1, channels());
    d_next_tail = m.d_tail;
    copy(d_next_tail, d_tail, on);
  }
  kernels::causal_conv_backward(qkv(m.d_projected), d_tail, conv_.d(pass.gradients), d_convolved,
                                d_next_tail, qkv(m.projected), m.tail, conv_.w, on);
}

void gated_delta_layer::output(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  const mat normed(m.work.data, pass.tokens(), value_floats());
  norm_output(normed, m, on);
  kernels::linear_forward(pass.hidden, normed, out_.w, {}, into::add, on);
  ffn_.forward(pass.hidden, m.ffn, pass.keep, on);
}

void gated_delta_layer::output_backward(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  ffn_.backward(pass.d_hidden, m.ffn, pass.gradients, on);

  const mat normed(m.work.data, pass.tokens(), value_floats());
  norm_output(normed, m, on);
  kernels::linear_backward_weight(out_.d(pass.gradients), {}, pass.d_hidden, normed, on);
  const mat d_normed = normed;
  kernels::linear_backward_input(d_normed, pass.d_hidden, out_.w, into::write, on);
  kernels::gated_rms_norm_backward(
      split_heads(m.d_out, dims_.value_heads), z(m.d_projected), out_norm_.d(pass.gradients),
      split_heads(d_normed, dims_.value_heads), split_heads(m.out, dims_.value_heads),
      z(m.projected), m.out_rstd, out_norm_.w, on);
}

}  // namespace longstraw::models
