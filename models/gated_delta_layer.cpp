#include <longstraw/kernels/causal_conv.hpp>
#include <longstraw/kernels/linear.hpp>
#include <longstraw/kernels/rms_norm.hpp>
#include <longstraw/models/exchange_parts.hpp>
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

state_spec gated_delta_layer::state(const rank_share& at) const {
  const kernels::gated_delta_dims n = own(at);
  return {0, n.state_floats() + (kernel_ - 1) * channels_of(n)};
}

kernels::gated_delta_dims gated_delta_layer::own(const rank_share& at) const {
  kernels::gated_delta_dims n = dims_;
  n.key_heads = at.part(dims_.key_heads).count();
  n.value_heads = n.key_heads * ratio();
  return n;
}

template <class F>
void gated_delta_layer::for_own_channels(const rank_share& at, F&& body) const {
  if (at.alone()) return body(index{0}, channels(), index{0});
  const token_range part = at.part(dims_.key_heads);
  if (part.count() == 0) return;
  index column = 0, row = 0;
  for (const index head_floats : {dims_.key_dim, dims_.key_dim, ratio() * dims_.value_dim}) {
    const index end = column + part.count() * head_floats;
    body(column, end, row + part.begin * head_floats);
    column = end;
    row += dims_.key_heads * head_floats;
  }
}

gated_delta_layer::views gated_delta_layer::carve(carver& from, index tokens, index all_tokens,
                                                  const rank_share& at) const {
  const kernels::gated_delta_dims n = own(at);
  const index own_channels = channels_of(n);
  views m;
  m.input = from.matrix(tokens, hidden_);
  m.rstd = from.matrix(tokens, 1);
  if (at.alone()) {
    m.projected = from.matrix(tokens, in_.w.rows);
  } else {
    m.z = split_heads(from.matrix(tokens, value_floats()), dims_.value_heads);
    m.in = {from.matrix(all_tokens, own_channels), from.matrix(all_tokens, n.value_heads),
            from.matrix(all_tokens, n.value_heads)};
  }
  m.convolved = from.matrix(all_tokens, own_channels);
  m.g = from.matrix(all_tokens, n.value_heads);
  m.beta = from.matrix(all_tokens, n.value_heads);
  m.out = from.matrix(tokens, value_floats());
  m.out_rstd = from.matrix(tokens, dims_.value_heads);
  m.chunk_states = from.floats(kernels::gated_delta_saved_floats(all_tokens, n));
  m.tail = from.matrix(kernel_ - 1, own_channels);
  m.state = from.floats(n.state_floats());
  ffn_.carve_kept(m.ffn, from, tokens);
  const index overlaid = from.mark();
  ffn_.carve_rest(m.ffn, from, tokens);
  from.rewind(overlaid);
  m.d_projected = from.matrix(tokens, in_.w.rows);
  m.d_out = from.matrix(tokens, value_floats());
  m.work =
      from.floats(std::max(tokens * std::max(hidden_, value_floats()), all_tokens * own_channels));
  m.d_g = from.matrix(all_tokens, n.value_heads);
  m.d_beta = from.matrix(all_tokens, n.value_heads);
  m.d_tail = from.matrix(kernel_ - 1, own_channels);
  if (at.alone()) return m;
  m.d_in = {from.matrix(all_tokens, own_channels), from.matrix(all_tokens, n.value_heads),
            from.matrix(all_tokens, n.value_heads)};
  // An output is given away before backward begins.
  m.own_out = m.d_own_out = from.matrix(all_tokens, n.value_heads * n.value_dim);
  return m;
}

gated_delta_layer::views gated_delta_layer::carve(const layer_pass& pass) const {
  carver from(pass.activations.data());
  views m = carve(from, pass.tokens(), pass.whole.count(), pass.at);
  LS_ASSERT(from.highest() <= static_cast<index>(pass.activations.size()),
            "a pass has the workspace that its program asked for");
  if (pass.at.alone()) {
    m.z = z(m.projected);
    m.in = inputs(m.projected);
    m.d_in = inputs(m.d_projected);
    m.own_out = m.out;
    m.d_own_out = m.d_out;
  } else {
    m.projected = m.d_projected;  // all but z is given away, and kept by the owners of the heads
  }
  return m;
}

index gated_delta_layer::activation_floats(index tokens, const rank_share& at) const {
  carver from(nullptr);
  carve(from, at.largest_part(tokens), tokens, at);
  return from.highest();
}

gated_delta_layer::head_inputs gated_delta_layer::inputs(mat projected) const {
  const index end = projected.cols, value_heads = dims_.value_heads;
  return {projected.col_range(0, channels()),
          projected.col_range(end - 2 * value_heads, end - value_heads),
          projected.col_range(end - value_heads, end)};
}
heads gated_delta_layer::z(mat projected) const {
  return split_heads(projected.col_range(channels(), channels() + value_floats()),
                     dims_.value_heads);
}
heads gated_delta_layer::q(mat convolved, const kernels::gated_delta_dims& n) {
  return split_heads(convolved.col_range(0, n.key_heads * n.key_dim), n.key_heads);
}
heads gated_delta_layer::k(mat convolved, const kernels::gated_delta_dims& n) {
  const index floats = n.key_heads * n.key_dim;
  return split_heads(convolved.col_range(floats, 2 * floats), n.key_heads);
}
heads gated_delta_layer::v(mat convolved, const kernels::gated_delta_dims& n) {
  return split_heads(convolved.col_range(2 * n.key_heads * n.key_dim, channels_of(n)),
                     n.value_heads);
}

std::array<gated_delta_layer::head_columns, 5> gated_delta_layer::columns(
    const head_inputs& in, const kernels::gated_delta_dims& n) const {
  const index floats = n.key_heads * n.key_dim;
  return {{{in.qkv.col_range(0, floats), n.key_dim},
           {in.qkv.col_range(floats, 2 * floats), n.key_dim},
           {in.qkv.col_range(2 * floats, channels_of(n)), ratio() * n.value_dim},
           {in.b, ratio()},
           {in.a, ratio()}}};
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
                                  split_heads(m.out, dims_.value_heads), m.z, out_norm_.w, eps_,
                                  on);
}

void gated_delta_layer::project(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  if (pass.keep) copy(m.input, pass.hidden, on);
  const mat normed(m.work.data(), pass.tokens(), hidden_);
  norm_input(normed, m.rstd, pass.hidden, on);
  kernels::linear_forward(m.projected, normed, in_.w, {}, into::write, on, pass.whole.count());
  if (!pass.at.alone() && !pass.state_only) copy(m.z, z(m.projected), on);
}

void gated_delta_layer::project_backward(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  const mat normed(m.work.data(), pass.tokens(), hidden_);
  norm_input(normed, m.rstd, m.input, on);
  kernels::linear_backward_weight(in_.d(pass.gradients), {}, m.d_projected, normed, on);
  const mat d_normed = normed;
  kernels::linear_backward_input(d_normed, m.d_projected, in_.w, into::write, on);
  kernels::rms_norm_backward(one_head(pass.d_hidden), norm_.d(pass.gradients), one_head(d_normed),
                             one_head(m.input), m.rstd, norm_.w, norm_kind_, on);
}

void gated_delta_layer::recur(layer_pass& pass) const {
  const kernels::gated_delta_dims n = own(pass.at);
  const auto state_floats = static_cast<std::size_t>(n.state_floats());
  const index own_channels = channels_of(n);
  LS_ASSERT(static_cast<index>(pass.recurrent_before.size()) == state(pass.at).recurrent_floats,
            "a pass has the recurrent state before its first token");
  LS_ASSERT(
      pass.recurrent_after.empty() || pass.recurrent_after.size() == pass.recurrent_before.size(),
      "the state after the pass is as large as the one before");
  if (n.key_heads == 0) return;
  const views m = carve(pass);
  kernels::executor& on = *pass.on;

  // The state after may take the place of the state before, so what backward needs of the latter is
  // set aside first.
  std::copy_n(pass.recurrent_before.data() + state_floats, (kernel_ - 1) * own_channels,
              m.tail.data);
  for_own_channels(pass.at, [&](index first, index end, index row) {
    kernels::causal_conv_forward(m.convolved.col_range(first, end), m.in.qkv.col_range(first, end),
                                 m.tail.col_range(first, end),
                                 conv_.w.row_range(row, row + end - first), on);
  });
  kernels::gated_delta_gates_forward(m.g, m.beta, m.in.a, m.in.b,
                                     own_value_heads(a_log_.w, pass.at),
                                     own_value_heads(dt_bias_.w, pass.at), on);

  std::span<float> state = m.state;
  if (!pass.recurrent_after.empty()) {
    state = pass.recurrent_after.first(state_floats);
    const mat next_tail(pass.recurrent_after.data() + state_floats, kernel_ - 1, own_channels);
    kernels::causal_conv_next_tail(next_tail, m.in.qkv, m.tail);
  }
  if (state.data() != pass.recurrent_before.data())
    std::copy_n(pass.recurrent_before.data(), state_floats, state.data());
  kernels::gated_delta_forward(split_heads(m.own_out, n.value_heads), state,
                               pass.keep ? m.chunk_states : std::span<float>{}, q(m.convolved, n),
                               k(m.convolved, n), v(m.convolved, n), m.g, m.beta, n, on);
}

void gated_delta_layer::recur_backward(layer_pass& pass) const {
  const kernels::gated_delta_dims n = own(pass.at);
  const auto state_floats = static_cast<std::size_t>(n.state_floats());
  const index own_channels = channels_of(n);
  LS_ASSERT(pass.d_recurrent.empty() ||
                static_cast<index>(pass.d_recurrent.size()) == state(pass.at).recurrent_floats,
            "the gradient of the state is as large as the state");
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  const bool full = !pass.d_recurrent.empty();
  if (pass.state_only) {
    set_zero(m.d_own_out, on);
    set_zero(m.d_projected, on);  // the gate z is read by later segments only
  }
  if (n.key_heads == 0) return;

  std::span<float> d_state = m.state;
  if (full)
    d_state = pass.d_recurrent.first(state_floats);
  else
    std::fill(d_state.begin(), d_state.end(), 0.0f);
  const mat d_convolved(m.work.data(), pass.whole.count(), own_channels);
  kernels::gated_delta_backward(q(d_convolved, n), k(d_convolved, n), v(d_convolved, n), m.d_g,
                                m.d_beta, d_state, split_heads(m.d_own_out, n.value_heads),
                                m.chunk_states, q(m.convolved, n), k(m.convolved, n),
                                v(m.convolved, n), m.g, m.beta, n, on);
  kernels::gated_delta_gates_backward(
      m.d_in.a, m.d_in.b, own_value_heads(a_log_.d(pass.gradients), pass.at),
      own_value_heads(dt_bias_.d(pass.gradients), pass.at), m.d_g, m.d_beta, m.in.a, m.in.b,
      own_value_heads(a_log_.w, pass.at), own_value_heads(dt_bias_.w, pass.at), on);

  mat d_tail, d_next_tail;
  if (full) {
    d_tail = mat(pass.d_recurrent.data() + state_floats, kernel_ - 1, own_channels);
    d_next_tail = m.d_tail;
    copy(d_next_tail, d_tail, on);
  }
  for_own_channels(pass.at, [&](index first, index end, index row) {
    const auto part = [&](mat x) { return x.empty() ? x : x.col_range(first, end); };
    kernels::causal_conv_backward(part(m.d_in.qkv), part(d_tail),
                                  conv_.d(pass.gradients).row_range(row, row + end - first),
                                  part(d_convolved), part(d_next_tail), part(m.in.qkv),
                                  part(m.tail), conv_.w.row_range(row, row + end - first), on);
  });
}

void gated_delta_layer::output(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  const mat normed = gated_output(m);
  norm_output(normed, m, on);
  kernels::linear_forward(pass.hidden, normed, out_.w, {}, into::add, on, pass.whole.count());
  ffn_.forward(pass.hidden, m.ffn, pass.keep, pass.whole.count(), on);
}

void gated_delta_layer::output_backward(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  ffn_.backward(pass.d_hidden, m.ffn, pass.gradients, on);

  const mat normed = gated_output(m);
  norm_output(normed, m, on);
  kernels::linear_backward_weight(out_.d(pass.gradients), {}, pass.d_hidden, normed, on);
  const mat d_normed = normed;
  kernels::linear_backward_input(d_normed, pass.d_hidden, out_.w, into::write, on);
  kernels::gated_rms_norm_backward(
      split_heads(m.d_out, dims_.value_heads), z(m.d_projected), out_norm_.d(pass.gradients),
      split_heads(d_normed, dims_.value_heads), split_heads(m.out, dims_.value_heads), m.z,
      m.out_rstd, out_norm_.w, on);
}

// To the heads go q | k | v, b and a, and the gradient of the output; to the tokens the reverse.
index gated_delta_layer::given_floats(std::size_t s, direction d, index tokens,
                                      const rank_share& at) const {
  LS_ASSERT(s != segment_output, "no exchange follows the last segment");
  const bool inputs = s == segment_project;
  const bool to_heads = inputs == (d == direction::forward);
  const kernels::gated_delta_dims n = to_heads ? dims_ : own(at);
  const index row = inputs ? channels_of(n) + 2 * n.value_heads : n.value_heads * n.value_dim;
  return (to_heads ? at.largest_part(tokens) : tokens) * row;
}

index gated_delta_layer::give(std::size_t s, direction d, const layer_pass& pass,
                              std::span<float> to) const {
  const views m = carve(pass);
  given_parts parts(to, *pass.on);
  if (s == segment_project) {
    const bool forward = d == direction::forward;
    for (const head_columns& c :
         forward ? columns(inputs(m.projected), dims_) : columns(m.d_in, own(pass.at)))
      parts.add(c.m);
  } else {
    parts.add(d == direction::forward ? m.own_out : m.d_out);
  }
  return parts.floats();
}

void gated_delta_layer::take(std::size_t s, direction d, layer_pass& pass,
                             std::span<const std::span<const float>> given) const {
  const views m = carve(pass);
  taken_parts parts(given, pass.at, pass.whole.count(), *pass.on);
  const index output_floats = ratio() * dims_.value_dim;
  if (s == segment_project) {
    if (d == direction::forward)
      for (const head_columns& c : columns(m.in, own(pass.at)))
        parts.own_heads(c.m, dims_.key_heads, c.head_floats);
    else
      for (const head_columns& c : columns(inputs(m.d_projected), dims_))
        parts.all_heads(c.m, dims_.key_heads, c.head_floats);
  } else if (d == direction::forward) {
    parts.all_heads(m.out, dims_.key_heads, output_floats);
  } else {
    parts.own_heads(m.d_own_out, dims_.key_heads, output_floats);
  }
}

}  // namespace longstraw::models
