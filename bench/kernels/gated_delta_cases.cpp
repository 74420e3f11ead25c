// The gated delta rule over a chunk of a response and over a long stretch of prompt.

#include "tensor.hpp"

#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/kernels/reference/gated_delta.hpp>

namespace longstraw::bench {
namespace {

using namespace kernels;
namespace ref = kernels::reference;

struct problem {
  problem(place p, gated_delta_dims dims, index count)
      : n(dims),
        tokens(count),
        q(p, count * n.key_heads * n.key_dim, 1),
        k(p, q.count(), 2),
        v(p, count * n.value_heads * n.value_dim, 3),
        d_out(p, v.count(), 4),
        g(p, count * n.value_heads, 5, 0.05f),
        beta(p, g.count(), 6, 0.2f),
        start(p, n.state_floats(), 7, 0.1f),
        d_end(p, n.state_floats(), 8, 0.1f),
        out(p, v.count()),
        state(p, n.state_floats()),
        saved(p, gated_delta_saved_floats(count, n)),
        d_q(p, q.count()),
        d_k(p, q.count()),
        d_v(p, v.count()),
        d_g(p, g.count()),
        d_beta(p, g.count()),
        d_state(p, n.state_floats()) {
    for (float& x : g.span()) x = -std::abs(x);  // decays of trained models: close to 1
    for (float& x : beta.span()) x = 1.0f / (1.0f + std::exp(-x));
  }
  heads keys(const tensor& t) const { return t.as_heads(tokens, n.key_heads); }
  heads values(const tensor& t) const { return t.as_heads(tokens, n.value_heads); }

  gated_delta_dims n;
  index tokens;
  tensor q, k, v, d_out, g, beta, start, d_end, out, state, saved, d_q, d_k, d_v, d_g, d_beta,
      d_state;
};

void forward(const problem& a, executor& on) {
  gated_delta_forward(a.values(a.out), a.state.span(), a.saved.span(), a.keys(a.q), a.keys(a.k),
                      a.values(a.v), a.g.matrix(a.tokens), a.beta.matrix(a.tokens), a.n, on);
}
void backward(const problem& a, executor& on) {
  gated_delta_backward(a.keys(a.d_q), a.keys(a.d_k), a.values(a.d_v), a.d_g.matrix(a.tokens),
                       a.d_beta.matrix(a.tokens), a.d_state.span(), a.values(a.d_out),
                       a.saved.span(), a.keys(a.q), a.keys(a.k), a.values(a.v),
                       a.g.matrix(a.tokens), a.beta.matrix(a.tokens), a.n, on);
}
void copy(const tensor& to, const tensor& from) {
  std::copy_n(from.data(), from.count(), to.data());
}

// The first key head and its value heads by the double recurrence.
double error_of(const problem& a, bool gradient) {
  const index ratio = a.n.value_heads / a.n.key_heads, T = a.tokens;
  const gated_delta_dims one{1, ratio, a.n.key_dim, a.n.value_dim};
  const auto part = [&](const tensor& t, index width) {
    std::vector<double> v;
    const index stride = t.count() / T;
    for (index i = 0; i < T; ++i)
      v.insert(v.end(), t.data() + i * stride, t.data() + i * stride + width);
    return v;
  };
  const index keys = a.n.key_dim, values = ratio * a.n.value_dim;
  const auto q = part(a.q, keys), k = part(a.k, keys), v = part(a.v, values), g = part(a.g, ratio),
             beta = part(a.beta, ratio), d_out = part(a.d_out, values);
  const auto head = [&](const tensor& t) {
    return std::vector<double>(t.data(), t.data() + one.state_floats());
  };
  const auto compare = [&](const tensor& got, const std::vector<double>& want, index width) {
    difference d;
    const index stride = got.count() / T;
    for (index i = 0; i < T; ++i)
      for (index c = 0; c < width; ++c)
        d.add(got.data()[i * stride + c], want[static_cast<std::size_t>(i * width + c)]);
    return d.value();
  };
  if (!gradient) {
    std::vector<double> out(v.size()), state = head(a.start);
    ref::gated_delta_forward<double>(heads_of(out, T, ratio), state, heads_of(q, T, 1),
                                     heads_of(k, T, 1), heads_of(v, T, ratio), matrix_of(g, T),
                                     matrix_of(beta, T), one);
    difference end;
    for (index i = 0; i < one.state_floats(); ++i)
      end.add(a.state.data()[i], state[static_cast<std::size_t>(i)]);
    return worst({compare(a.out, out, values), end.value()});
  }
  std::vector<double> d_q(q.size()), d_k(k.size()), d_v(v.size()), d_g(g.size()), d_beta(g.size()),
      d_state = head(a.d_end);
  const std::vector<double> start = head(a.start);
  ref::gated_delta_backward<double>(
      heads_of(d_q, T, 1), heads_of(d_k, T, 1), heads_of(d_v, T, ratio), matrix_of(d_g, T),
      matrix_of(d_beta, T), d_state, heads_of(d_out, T, ratio), start, heads_of(q, T, 1),
      heads_of(k, T, 1), heads_of(v, T, ratio), matrix_of(g, T), matrix_of(beta, T), one);
  return worst({compare(a.d_q, d_q, keys), compare(a.d_k, d_k, keys), compare(a.d_v, d_v, values),
                compare(a.d_g, d_g, ratio), compare(a.d_beta, d_beta, ratio)});
}

prepared prepare(place p, gated_delta_dims n, index tokens, bool gradient) {
  const auto a = std::make_shared<problem>(p, n, tokens);
  executor& on = p.on;
  prepared c;
  c.shape = {{"tokens", tokens},
             {"key_heads", n.key_heads},
             {"value_heads", n.value_heads},
             {"key_dim", n.key_dim},
             {"value_dim", n.value_dim}};
  // Per value head and chunk of C tokens, r value heads a key head: docs/numerics.md.
  const double C = static_cast<double>(n.chunk_tokens()), K = static_cast<double>(n.key_dim),
               V = static_cast<double>(n.value_dim),
               r = static_cast<double>(n.value_heads / n.key_heads);
  const double chunks = static_cast<double>(blocks_of(tokens, n.chunk_tokens()) * n.value_heads);
  c.cost.flops = chunks * (gradient ? 14 * C * K * V + 5 * C * C * V + 6 * C * C * K / r
                                    : 6 * C * K * V + 2 * C * C * V + 2 * C * C * K / r);
  c.cost.bytes_read = bytes_of(
      {a->q.count(), a->k.count(), a->v.count(), a->g.count(), a->beta.count(), a->state.count()});
  if (gradient) {
    c.cost.bytes_read += bytes_of({a->d_out.count(), a->saved.count()});
    c.cost.bytes_written = bytes_of({a->d_q.count(), a->d_k.count(), a->d_v.count(), a->d_g.count(),
                                     a->d_beta.count(), a->d_state.count()});
    c.run = [a, &on] { backward(*a, on); };
  } else {
    c.cost.bytes_written = bytes_of({a->out.count(), a->state.count(), a->saved.count()});
    c.run = [a, &on] { forward(*a, on); };
  }
  c.error = [a, &on, gradient] {
    copy(a->state, a->start);
    forward(*a, on);
    if (!gradient) return error_of(*a, false);
    copy(a->d_state, a->d_end);
    backward(*a, on);
    return error_of(*a, true);
  };
  // Errors of earlier chunks come in through the state.
  c.error_bound = float32_bound(n.chunk_tokens() + n.key_dim) * (gradient ? 4 : 2);
  return c;
}

}  // namespace

void add_gated_delta_cases(case_list& to) {
  const std::pair<const char*, gated_delta_dims> models[] = {
      {"s", {4, 8, 32, 32}}, {"m", {6, 12, 64, 64}}, {"16-32x128", {16, 32, 128, 128}}};
  for (const auto& [name, n] : models)
    for (index tokens : {64, 2048})
      for (bool gradient : {false, true})
        to.push_back({std::string(gradient ? "gated_delta_backward/" : "gated_delta_forward/") +
                          name + "/" + std::to_string(tokens),
                      [=, dims = n](place p) { return prepare(p, dims, tokens, gradient); }});
}

}  // namespace longstraw::bench
