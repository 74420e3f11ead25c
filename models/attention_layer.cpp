#include <longstraw/kernels/linear.hpp>
#include <longstraw/kernels/rms_norm.hpp>
#include <longstraw/kernels/rotary.hpp>
#include <longstraw/models/attention_layer.hpp>
#include <longstraw/models/exchange_parts.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace longstraw::models {

using kernels::into;

namespace {
enum : std::size_t { segment_project, segment_attend, segment_output };
constexpr std::array<segment, 3> program{{
    {"project", exchange::gather_queries, true},
    {"attend", exchange::merge_partials, false},
    {"output", exchange::none, false},
}};

/// A bias from that column on; no bias stays none.
template <class T>
std::span<T> from_column(std::span<T> bias, index first) {
  return bias.empty() ? bias : bias.subspan(static_cast<std::size_t>(first));
}
}  // namespace

attention_layer::attention_layer(const model_config& config, index number,
                                 const parameter_store& store)
    : hidden_(config.hidden_size),
      dims_{config.query_heads, config.kv_heads, config.head_dim,
            static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)))},
      gated_(config.attention_gate),
      qk_norm_(config.qk_norm),
      q_floats_(config.query_heads * config.head_dim * (config.attention_gate ? 2 : 1)),
      kv_floats_(config.kv_heads * config.head_dim),
      eps_(config.rms_norm_eps),
      norm_kind_(config.norm),
      kv_{config.kv_heads, config.head_dim},
      ffn_(config, layer_prefix(config, number), store) {
  const std::string layer = layer_prefix(config, number), self = layer + "self_attn.";
  norm_ = vector_of(store, layer + "input_layernorm.weight");
  qkv_ = stacked(store, self + "q_proj.weight", self + "v_proj.weight");
  out_ = matrix_of(store, self + "o_proj.weight");
  if (config.attention_bias) {
    qkv_bias_ = stacked_vector(store, self + "q_proj.bias", self + "v_proj.bias");
    out_bias_ = vector_of(store, self + "o_proj.bias");
  }
  if (qk_norm_) {
    q_norm_ = vector_of(store, self + "q_norm.weight");
    k_norm_ = vector_of(store, self + "k_norm.weight");
  }
  LS_ASSERT(qkv_.w.rows == product_floats(), "q, k and v projections follow each other");
}

std::span<const segment> attention_layer::segments() const { return program; }

index attention_layer::row_floats() const {
  const index turned = qk_norm_ ? dims_.query_heads * dims_.head_dim + kv_floats_ : 0;
  return product_floats() + turned;
}

attention_layer::views attention_layer::carve(carver& from, index tokens, index all_tokens,
                                              const rank_share& at) const {
  views m;
  m.input = from.matrix(tokens, hidden_);
  m.rstd = from.matrix(tokens, 1);
  m.projected = from.matrix(tokens, row_floats());
  m.q_rstd = from.matrix(tokens, qk_norm_ ? dims_.query_heads : 0);
  m.k_rstd = from.matrix(tokens, qk_norm_ ? dims_.kv_heads : 0);
  m.attended = from.matrix(tokens, attended_floats());
  m.lse = from.matrix(tokens, dims_.query_heads);
  ffn_.carve_kept(m.ffn, from, tokens);
  const index overlaid = from.mark();
  ffn_.carve_rest(m.ffn, from, tokens);
  from.rewind(overlaid);
  m.d_projected = from.matrix(tokens, row_floats());
  m.work = from.matrix(tokens, std::max(hidden_, attended_floats()));
  m.delta = from.matrix(tokens, dims_.query_heads);
  if (at.alone()) return m;
  m.all.q = split_heads(from.matrix(all_tokens, attended_floats()), dims_.query_heads);
  m.all.d_q = split_heads(from.matrix(all_tokens, attended_floats()), dims_.query_heads);
  // A partial result is given away before backward begins.
  m.all.out = m.all.d_out = from.matrix(all_tokens, attended_floats());
  m.all.lse = from.matrix(all_tokens, dims_.query_heads);
  m.all.delta = from.matrix(all_tokens, dims_.query_heads);
  return m;
}

attention_layer::views attention_layer::carve(const layer_pass& pass) const {
  carver from(pass.activations.data());
  views m = carve(from, pass.tokens(), pass.whole.count(), pass.at);
  if (pass.at.alone())
    m.all = {q(m.projected), q(m.d_projected), m.attended, d_attended(m), m.lse, m.delta};
  LS_ASSERT(from.highest() <= static_cast<index>(pass.activations.size()),
            "a pass has the workspace that its program asked for");
  return m;
}

index attention_layer::activation_floats(index tokens, const rank_share& at) const {
  carver from(nullptr);
  carve(from, at.largest_part(tokens), tokens, at);
  return from.highest();
}

heads attention_layer::raw_q(mat m) const {
  const index head_stride = dims_.head_dim * (gated_ ? 2 : 1);
  return {m.data, m.rows, dims_.query_heads, dims_.head_dim, m.stride, head_stride};
}
heads attention_layer::gate(mat m) const {
  heads g = raw_q(m);
  g.data += dims_.head_dim;
  return g;
}
heads attention_layer::raw_k(mat m) const {
  return split_heads(m.col_range(q_floats_, q_floats_ + kv_floats_), dims_.kv_heads);
}
heads attention_layer::v(mat m) const {
  return split_heads(m.col_range(q_floats_ + kv_floats_, product_floats()), dims_.kv_heads);
}
heads attention_layer::q(mat m) const {
  if (!qk_norm_) return raw_q(m);
  return split_heads(m.col_range(product_floats(), row_floats() - kv_floats_), dims_.query_heads);
}
heads attention_layer::k(mat m) const {
  if (!qk_norm_) return raw_k(m);
  return split_heads(m.col_range(row_floats() - kv_floats_, row_floats()), dims_.kv_heads);
}

void attention_layer::forward(std::size_t s, layer_pass& pass) const {
  switch (s) {
    case segment_project:
      return project(pass);
    case segment_attend:
      return attend(pass);
    case segment_output:
      return output(pass);
    default:
      LS_ASSERT(false, "the program has three segments");
  }
}

void attention_layer::backward(std::size_t s, layer_pass& pass) const {
  LS_ASSERT(pass.keep, "backward follows a forward pass that kept what it needs");
  switch (s) {
    case segment_project:
      return project_backward(pass);
    case segment_attend:
      return attend_backward(pass);
    case segment_output:
      return output_backward(pass);
    default:
      LS_ASSERT(false, "the program has three segments");
  }
}

void attention_layer::norm_input(mat normed, mat rstd, cmat hidden, kernels::executor& on) const {
  kernels::rms_norm_forward(one_head(normed), rstd, one_head(hidden), norm_.w, eps_, norm_kind_,
                            on);
}

void attention_layer::project(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  if (pass.keep) copy(m.input, pass.hidden, on);
  const mat normed(m.work.data, pass.tokens(), hidden_);
  norm_input(normed, m.rstd, pass.hidden, on);

  const index first = first_column(pass);
  kernels::linear_forward(m.projected.col_range(first, product_floats()), normed,
                          qkv_.w.row_range(first, product_floats()),
                          from_column(qkv_bias_.w, first), into::write, on, pass.whole.count());

  if (qk_norm_)
    kernels::rms_norm_forward(k(m.projected), m.k_rstd, raw_k(m.projected), k_norm_.w, eps_,
                              norm_kind_, on);
  kernels::rotary_forward(k(m.projected), pass.angles, on);
  if (pass.writes_pages) kv_.write(pass.pages, pass.positions, k(m.projected), v(m.projected), on);
  if (pass.state_only) return;

  if (qk_norm_)
    kernels::rms_norm_forward(q(m.projected), m.q_rstd, raw_q(m.projected), q_norm_.w, eps_,
                              norm_kind_, on);
  kernels::rotary_forward(q(m.projected), pass.angles, on);
}

void attention_layer::project_backward(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  // Without the later segments, keys and values have the gradient that is in the pages, and queries
  // have none.
  if (pass.state_only) {
    set_zero(m.d_projected, on);
    read_page_gradients(pass, m);
  }
  kernels::rotary_backward(k(m.d_projected), pass.angles, on);
  if (qk_norm_)
    kernels::rms_norm_backward(raw_k(m.d_projected), k_norm_.d(pass.gradients), k(m.d_projected),
                               raw_k(m.projected), m.k_rstd, k_norm_.w, norm_kind_, on);
  if (!pass.state_only) {
    kernels::rotary_backward(q(m.d_projected), pass.angles, on);
    if (qk_norm_)
      kernels::rms_norm_backward(raw_q(m.d_projected), q_norm_.d(pass.gradients), q(m.d_projected),
                                 raw_q(m.projected), m.q_rstd, q_norm_.w, norm_kind_, on);
  }

  const index first = first_column(pass);
  const mat d_product = m.d_projected.col_range(first, product_floats());
  const mat normed(m.work.data, pass.tokens(), hidden_);
  norm_input(normed, m.rstd, m.input, on);
  kernels::linear_backward_weight(qkv_.d(pass.gradients).row_range(first, product_floats()),
                                  from_column(qkv_bias_.d(pass.gradients), first), d_product,
                                  normed, on);
  const mat d_normed = normed;
  kernels::linear_backward_input(d_normed, d_product, qkv_.w.row_range(first, product_floats()),
                                 into::write, on);
  kernels::rms_norm_backward(one_head(pass.d_hidden), norm_.d(pass.gradients), one_head(d_normed),
                             one_head(m.input), m.rstd, norm_.w, norm_kind_, on);
}

void attention_layer::read_page_gradients(const layer_pass& pass, const views& m) const {
  LS_ASSERT(pass.writes_pages && pass.page_gradients.size() == pass.pages.size(),
            "a pass whose keys lie in pages gets their gradient from gradient pages");
  kv_.read(k(m.d_projected), v(m.d_projected), pass.page_gradients, pass.positions, *pass.on);
}

/// All keys that the pass may see, in order of position. Its own are in the pages if it writes them
/// there.
std::vector<kernels::kv_piece> attention_layer::pieces(const layer_pass& pass,
                                                       const views& m) const {
  std::vector<kernels::kv_piece> all;
  all.reserve(pass.pages.size() + 1);
  for (const state_page& page : pass.pages) all.push_back(kv_.piece(page));
  if (!pass.writes_pages) {
    const heads own_k = k(m.projected), own_v = v(m.projected);
    all.push_back({own_k.data, own_v.data, pass.tokens(), pass.positions.begin, own_k.token_stride,
                   own_k.head_stride});
  }
  return all;
}

void attention_layer::attend(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::attention_forward(m.all.out, m.all.lse, m.all.q, pass.whole.begin, pieces(pass, m),
                             dims_, *pass.on);
}

void attention_layer::attend_backward(layer_pass& pass) const {
  LS_ASSERT(pass.page_gradients.empty() || pass.page_gradients.size() == pass.pages.size(),
            "every page has a gradient page, or none has");
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  if (!pass.at.alone()) set_zero(mat(m.all.d_q.data, pass.whole.count(), attended_floats()), on);

  std::vector<kernels::kv_piece_gradient> gradients(pass.page_gradients.empty() ? pass.pages.size()
                                                                                : 0);
  for (const state_page& page : pass.page_gradients) gradients.push_back(kv_.gradient(page));
  if (!pass.writes_pages) gradients.push_back({k(m.d_projected).data, v(m.d_projected).data});
  kernels::attention_backward(m.all.d_q, gradients, m.all.d_out, m.all.lse, m.all.delta, m.all.q,
                              pass.whole.begin, pieces(pass, m), dims_, on);
  // Later tokens and, just now, those of the pass have added to the gradient of its own keys: it is
  // complete.
  if (pass.writes_pages) read_page_gradients(pass, m);
}

void attention_layer::output(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  mat gated = m.attended;
  if (gated_) {
    gated = mat(m.work.data, pass.tokens(), m.attended.cols);
    kernels::sigmoid_gate_forward(split_heads(gated, dims_.query_heads),
                                  split_heads(m.attended, dims_.query_heads), gate(m.projected),
                                  on);
  }
  kernels::linear_forward(pass.hidden, gated, out_.w, out_bias_.w, into::add, on,
                          pass.whole.count());
  ffn_.forward(pass.hidden, m.ffn, pass.keep, pass.whole.count(), on);
}

void attention_layer::output_backward(layer_pass& pass) const {
  const views m = carve(pass);
  kernels::executor& on = *pass.on;
  ffn_.backward(pass.d_hidden, m.ffn, pass.gradients, on);

  const mat work = d_attended(m);
  const heads work_heads = split_heads(work, dims_.query_heads);
  const heads attended = split_heads(m.attended, dims_.query_heads);
  if (gated_) kernels::sigmoid_gate_forward(work_heads, attended, gate(m.projected), on);
  kernels::linear_backward_weight(out_.d(pass.gradients), out_bias_.d(pass.gradients),
                                  pass.d_hidden, gated_ ? work : m.attended, on);
  kernels::linear_backward_input(work, pass.d_hidden, out_.w, into::write, on);
  set_zero(m.d_projected, on);  // attention and the norms add to it
  if (gated_)
    kernels::sigmoid_gate_backward(work_heads, gate(m.d_projected), work_heads, attended,
                                   gate(m.projected), on);
  // Every part of the keys needs the delta of the merged result, which this rank alone has.
  kernels::attention_delta(m.delta, work, m.attended, on);
}

index attention_layer::given_floats(std::size_t s, direction d, index tokens,
                                    const rank_share& at) const {
  const bool forward = d == direction::forward;
  const index own = at.largest_part(tokens), row = attended_floats();
  if (s == segment_project) return (forward ? own : tokens) * row;
  LS_ASSERT(s == segment_attend, "no exchange follows the last segment");
  return forward ? tokens * (row + dims_.query_heads) : own * 2 * (row + dims_.query_heads);
}

index attention_layer::give(std::size_t s, direction d, const layer_pass& pass,
                            std::span<float> to) const {
  const views m = carve(pass);
  given_parts parts(to, *pass.on);
  if (s == segment_project) {
    parts.add(d == direction::forward ? q(m.projected) : m.all.d_q);
  } else if (d == direction::forward) {
    parts.add(m.all.out);
    parts.add(m.all.lse);
  } else {
    // The queries go along once more, so that nobody keeps those of all ranks until backward.
    parts.add(q(m.projected));
    parts.add(d_attended(m));
    parts.add(m.lse);
    parts.add(m.delta);
  }
  return parts.floats();
}

void attention_layer::take(std::size_t s, direction d, layer_pass& pass,
                           std::span<const std::span<const float>> given) const {
  const views m = carve(pass);
  taken_parts parts(given, pass.at, pass.whole.count(), *pass.on);
  if (s == segment_project) {
    if (d == direction::forward)
      parts.rows(m.all.q);
    else
      parts.sum_of_rows(q(m.d_projected));
  } else if (d == direction::forward) {
    const auto outs = parts.own_rows(attended_floats());
    const auto lses = parts.own_rows(dims_.query_heads);
    std::vector<kernels::attention_part> partials;
    for (std::size_t r = 0; r < outs.size(); ++r) partials.push_back({outs[r], lses[r]});
    kernels::attention_merge(m.attended, m.lse, partials, *pass.on);
  } else {
    parts.rows(m.all.q);
    parts.rows(m.all.d_out);
    parts.rows(m.all.lse);
    parts.rows(m.all.delta);
  }
}

}  // namespace longstraw::models
