// Everything that touches each value a few times: norms, gates, rotary, convolution, embedding,
// merging.

#include "tensor.hpp"

#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/causal_conv.hpp>
#include <longstraw/kernels/embedding.hpp>
#include <longstraw/kernels/gated_delta.hpp>
#include <longstraw/kernels/reference/attention.hpp>
#include <longstraw/kernels/reference/causal_conv.hpp>
#include <longstraw/kernels/reference/embedding.hpp>
#include <longstraw/kernels/reference/gated_delta.hpp>
#include <longstraw/kernels/reference/rms_norm.hpp>
#include <longstraw/kernels/reference/rotary.hpp>
#include <longstraw/kernels/reference/swiglu.hpp>
#include <longstraw/kernels/rms_norm.hpp>
#include <longstraw/kernels/rotary.hpp>
#include <longstraw/kernels/swiglu.hpp>

namespace longstraw::bench {
namespace {

using namespace kernels;
namespace ref = kernels::reference;
using doubles = std::vector<double>;
using cdmat = matrix_view<const double>;
using cdheads = heads_view<const double>;

/// Sizes of one model's elementwise work on a pass of `tokens`.
struct sizes {
  const char* name;
  index hidden, intermediate, heads, head_dim, value_heads, value_dim, channels, vocabulary;
};
constexpr sizes models[] = {{"s", 256, 768, 4, 64, 8, 32, 512, 1024},
                            {"m", 768, 2048, 12, 64, 12, 64, 1536, 8192},
                            {"4096", 4096, 12288, 32, 128, 32, 128, 8192, 65536}};

constexpr float eps = 1e-6f;

/// Bytes, and per value of a result the operations that work counts.
struct per_value {
  double exps = 0, products = 0, quotients = 0;
};
work cost_of(index values, double bytes_read, double bytes_written, per_value each,
             bool in_place = false) {
  const auto n = static_cast<double>(values);
  work w;
  w.bytes_read = bytes_read;
  w.bytes_written = bytes_written;
  w.in_place = in_place;
  w.exps = n * each.exps;
  w.products = n * each.products;
  w.quotients = n * each.quotients;
  return w;
}

/// What every case of this file has: a pass of tokens, named results, and a reference that fills as
/// many vectors. Results start at zero, so += and = compare alike.
prepared make(json shape, work cost, std::vector<tensor> results, std::function<void()> run,
              std::function<std::vector<doubles>()> reference, index terms) {
  prepared c;
  c.shape = std::move(shape);
  c.cost = cost;
  c.run = std::move(run);
  c.error = [results, reference = std::move(reference), run = c.run] {
    const std::vector<doubles> want = reference();  // before the run: some work in place
    run();
    double e = 0;
    for (std::size_t i = 0; i < results.size(); ++i) {
      difference d;
      d.add(results[i], want[i]);
      e = worst({e, d.value()});
    }
    return e;
  };
  c.error_bound = float32_bound(terms);
  return c;
}

doubles zeros(const tensor& like) { return doubles(static_cast<std::size_t>(like.count())); }

prepared norm(place p, const sizes& n, index tokens, bool gradient) {
  const index width = n.hidden;
  const tensor x(p, tokens * width, 1), w(p, width, 2, 0.1f), d_out(p, tokens * width, 3),
      out(p, tokens * width), rstd(p, tokens), d_x(p, tokens * width), d_w(p, width);
  executor& on = p.on;
  const json shape = {{"tokens", tokens}, {"width", width}};
  const auto forward = [=, &on] {
    rms_norm_forward(out.as_heads(tokens, 1), rstd.matrix(tokens), x.as_heads(tokens, 1), w.span(),
                     eps, norm_weight::one_plus, on);
  };
  if (!gradient)
    return make(
        shape, cost_of(x.count(), bytes_of({x.count()}), bytes_of({out.count()}), {.products = 3}),
        {out, rstd}, forward,
        [=] {
          std::vector<doubles> want{zeros(out), zeros(rstd)};
          const doubles xs = x.in_double();
          ref::rms_norm_forward<double>(heads_of(want[0], tokens, 1), matrix_of(want[1], tokens),
                                        heads_of(xs, tokens, 1), w.in_double(), eps,
                                        norm_weight::one_plus);
          return want;
        },
        width);
  forward();
  return make(
      shape,
      cost_of(x.count(), bytes_of({x.count(), d_out.count(), d_x.count()}), bytes_of({d_x.count()}),
              {.products = 5}, true),
      {d_x, d_w},
      [=, &on] {
        rms_norm_backward(d_x.as_heads(tokens, 1), d_w.span(), d_out.as_heads(tokens, 1),
                          x.as_heads(tokens, 1), rstd.matrix(tokens), w.span(),
                          norm_weight::one_plus, on);
      },
      [=] {
        std::vector<doubles> want{zeros(d_x), zeros(d_w)};
        const doubles xs = x.in_double(), d = d_out.in_double(), r = rstd.in_double();
        ref::rms_norm_backward<double>(heads_of(want[0], tokens, 1), want[1],
                                       heads_of(d, tokens, 1), heads_of(xs, tokens, 1),
                                       matrix_of(r, tokens), w.in_double(), norm_weight::one_plus);
        return want;
      },
      std::max(width, tokens));
}

prepared gated_norm(place p, const sizes& n, index tokens, bool gradient) {
  const index h = n.value_heads, width = h * n.value_dim;
  const tensor x(p, tokens * width, 1), z(p, tokens * width, 2), w(p, n.value_dim, 3),
      d_out(p, tokens * width, 4), out(p, tokens * width), rstd(p, tokens * h),
      d_x(p, tokens * width), d_z(p, tokens * width), d_w(p, n.value_dim);
  executor& on = p.on;
  const json shape = {{"tokens", tokens}, {"heads", h}, {"width", n.value_dim}};
  const auto forward = [=, &on] {
    gated_rms_norm_forward(out.as_heads(tokens, h), rstd.matrix(tokens), x.as_heads(tokens, h),
                           z.as_heads(tokens, h), w.span(), eps, on);
  };
  if (!gradient)
    return make(
        shape,
        cost_of(x.count(), bytes_of({x.count(), z.count()}), bytes_of({out.count()}),
                {.exps = 1, .products = 4, .quotients = 1}),
        {out, rstd}, forward,
        [=] {
          std::vector<doubles> want{zeros(out), zeros(rstd)};
          const doubles xs = x.in_double(), zs = z.in_double();
          ref::gated_rms_norm_forward<double>(heads_of(want[0], tokens, h),
                                              matrix_of(want[1], tokens), heads_of(xs, tokens, h),
                                              heads_of(zs, tokens, h), w.in_double(), eps);
          return want;
        },
        n.value_dim);
  forward();
  return make(
      shape,
      cost_of(x.count(), bytes_of({x.count(), z.count(), d_out.count()}),
              bytes_of({d_x.count(), d_z.count()}), {.exps = 1, .products = 12, .quotients = 1}),
      {d_x, d_z, d_w},
      [=, &on] {
        gated_rms_norm_backward(d_x.as_heads(tokens, h), d_z.as_heads(tokens, h), d_w.span(),
                                d_out.as_heads(tokens, h), x.as_heads(tokens, h),
                                z.as_heads(tokens, h), rstd.matrix(tokens), w.span(), on);
      },
      [=] {
        std::vector<doubles> want{zeros(d_x), zeros(d_z), zeros(d_w)};
        const doubles xs = x.in_double(), zs = z.in_double(), d = d_out.in_double(),
                      r = rstd.in_double();
        ref::gated_rms_norm_backward<double>(
            heads_of(want[0], tokens, h), heads_of(want[1], tokens, h), want[2],
            heads_of(d, tokens, h), heads_of(xs, tokens, h), heads_of(zs, tokens, h),
            matrix_of(r, tokens), w.in_double());
        return want;
      },
      tokens * h);
}

prepared swiglu(place p, const sizes& n, index tokens, bool gradient) {
  const index width = n.intermediate;
  const tensor gate(p, tokens * width, 1), up(p, tokens * width, 2), d_out(p, tokens * width, 3),
      out(p, tokens * width), d_gate(p, tokens * width), d_up(p, tokens * width);
  executor& on = p.on;
  const json shape = {{"tokens", tokens}, {"width", width}};
  const double one = bytes_of({tokens * width});
  if (!gradient)
    return make(
        shape, cost_of(out.count(), 2 * one, one, {.exps = 1, .products = 1, .quotients = 1}),
        {out},
        [=, &on] {
          swiglu_forward(out.matrix(tokens), gate.matrix(tokens), up.matrix(tokens), on);
        },
        [=] {
          std::vector<doubles> want{zeros(out)};
          const doubles g = gate.in_double(), u = up.in_double();
          ref::swiglu_forward<double>(matrix_of(want[0], tokens), matrix_of(g, tokens),
                                      matrix_of(u, tokens));
          return want;
        },
        4);
  return make(
      shape, cost_of(out.count(), 3 * one, 2 * one, {.exps = 1, .products = 5, .quotients = 1}),
      {d_gate, d_up},
      [=, &on] {
        swiglu_backward(d_gate.matrix(tokens), d_up.matrix(tokens), d_out.matrix(tokens),
                        gate.matrix(tokens), up.matrix(tokens), on);
      },
      [=] {
        std::vector<doubles> want{zeros(d_gate), zeros(d_up)};
        const doubles g = gate.in_double(), u = up.in_double(), d = d_out.in_double();
        ref::swiglu_backward<double>(matrix_of(want[0], tokens), matrix_of(want[1], tokens),
                                     matrix_of(d, tokens), matrix_of(g, tokens),
                                     matrix_of(u, tokens));
        return want;
      },
      4);
}

prepared sigmoid_gate(place p, const sizes& n, index tokens, bool gradient) {
  const index h = n.heads, width = h * n.head_dim;
  const tensor x(p, tokens * width, 1), gate(p, tokens * width, 2), d_out(p, tokens * width, 3),
      out(p, tokens * width), d_x(p, tokens * width), d_gate(p, tokens * width);
  executor& on = p.on;
  const json shape = {{"tokens", tokens}, {"heads", h}, {"width", n.head_dim}};
  const double one = bytes_of({tokens * width});
  if (!gradient)
    return make(
        shape, cost_of(out.count(), 2 * one, one, {.exps = 1, .quotients = 1}), {out},
        [=, &on] {
          sigmoid_gate_forward(out.as_heads(tokens, h), x.as_heads(tokens, h),
                               gate.as_heads(tokens, h), on);
        },
        [=] {
          std::vector<doubles> want{zeros(out)};
          const doubles xs = x.in_double(), g = gate.in_double();
          ref::sigmoid_gate_forward<double>(heads_of(want[0], tokens, h), heads_of(xs, tokens, h),
                                            heads_of(g, tokens, h));
          return want;
        },
        4);
  return make(
      shape, cost_of(out.count(), 3 * one, 2 * one, {.exps = 1, .products = 3, .quotients = 1}),
      {d_x, d_gate},
      [=, &on] {
        sigmoid_gate_backward(d_x.as_heads(tokens, h), d_gate.as_heads(tokens, h),
                              d_out.as_heads(tokens, h), x.as_heads(tokens, h),
                              gate.as_heads(tokens, h), on);
      },
      [=] {
        std::vector<doubles> want{zeros(d_x), zeros(d_gate)};
        const doubles xs = x.in_double(), g = gate.in_double(), d = d_out.in_double();
        ref::sigmoid_gate_backward<double>(heads_of(want[0], tokens, h),
                                           heads_of(want[1], tokens, h), heads_of(d, tokens, h),
                                           heads_of(xs, tokens, h), heads_of(g, tokens, h));
        return want;
      },
      4);
}

prepared rotary(place p, const sizes& n, index tokens, bool gradient) {
  const index h = n.heads, turned = n.head_dim / 4;
  const tensor x(p, tokens * h * n.head_dim, 1), angles(p, tokens * turned);
  executor& on = p.on;
  rotary_spec spec;
  spec.width = turned;
  rotary_angles(angles.matrix(tokens), {1000, 1000 + tokens}, rotary_frequencies(spec), on);
  const double touched = bytes_of({tokens * h * turned});
  work cost = cost_of(tokens * h * turned, touched + bytes_of({angles.count()}), touched,
                      {.products = 2}, true);
  cost.quarter_lines = turned / 16;  // a quarter of each head turns
  return make(
      {{"tokens", tokens}, {"heads", h}, {"width", n.head_dim}, {"turned", turned}}, cost, {x},
      [=, &on] {
        if (gradient)
          rotary_backward(x.as_heads(tokens, h), angles.matrix(tokens), on);
        else
          rotary_forward(x.as_heads(tokens, h), angles.matrix(tokens), on);
      },
      [=] {
        std::vector<doubles> want{x.in_double()};
        const doubles a = angles.in_double();
        ref::rotary<double>(heads_of(want[0], tokens, h), matrix_of(a, tokens), gradient ? -1 : 1);
        return want;
      },
      4);
}

prepared convolution(place p, const sizes& n, index tokens, bool gradient) {
  constexpr index kernel = 4;
  const index width = n.channels;
  const tensor x(p, tokens * width, 1), tail(p, (kernel - 1) * width, 2),
      w(p, width * kernel, 3, 0.5f), d_out(p, tokens * width, 4), out(p, tokens * width),
      d_x(p, tokens * width), d_w(p, width * kernel);
  executor& on = p.on;
  const json shape = {{"tokens", tokens}, {"channels", width}, {"kernel", kernel}};
  const double one = bytes_of({tokens * width});
  if (!gradient)
    return make(
        shape, cost_of(out.count(), one, one, {.exps = 1, .products = kernel, .quotients = 1}),
        {out},
        [=, &on] {
          causal_conv_forward(out.matrix(tokens), x.matrix(tokens), tail.matrix(kernel - 1),
                              w.matrix(width), on);
        },
        [=] {
          std::vector<doubles> want{zeros(out)};
          const doubles xs = x.in_double(), t = tail.in_double(), ws = w.in_double();
          ref::causal_conv_forward<double>(matrix_of(want[0], tokens), matrix_of(xs, tokens),
                                           matrix_of(t, kernel - 1), matrix_of(ws, width));
          return want;
        },
        8);
  return make(
      shape,
      cost_of(out.count(), 2 * one, one, {.exps = 1, .products = 3 * kernel + 3, .quotients = 1}),
      {d_x, d_w},
      [=, &on] {
        causal_conv_backward(d_x.matrix(tokens), {}, d_w.matrix(width), d_out.matrix(tokens), {},
                             x.matrix(tokens), tail.matrix(kernel - 1), w.matrix(width), on);
      },
      [=] {
        std::vector<doubles> want{zeros(d_x), zeros(d_w)};
        doubles d_tail = zeros(tail);
        const doubles xs = x.in_double(), t = tail.in_double(), ws = w.in_double(),
                      d = d_out.in_double();
        ref::causal_conv_backward<double>(matrix_of(want[0], tokens), matrix_of(d_tail, kernel - 1),
                                          matrix_of(want[1], width), matrix_of(d, tokens), cdmat(),
                                          matrix_of(xs, tokens), matrix_of(t, kernel - 1),
                                          matrix_of(ws, width));
        return want;
      },
      tokens);
}

prepared gates(place p, const sizes& n, index tokens, bool gradient) {
  const index h = n.value_heads;
  const tensor a(p, tokens * h, 1), b(p, tokens * h, 2), a_log(p, h, 3), dt(p, h, 4),
      d_g(p, tokens * h, 5), d_beta(p, tokens * h, 6), g(p, tokens * h), beta(p, tokens * h),
      d_a(p, tokens * h), d_b(p, tokens * h), d_a_log(p, h), d_dt(p, h);
  executor& on = p.on;
  const json shape = {{"tokens", tokens}, {"value_heads", h}};
  const double one = bytes_of({tokens * h});
  // The softplus and its derivative share an exponential.
  work cost =
      cost_of(tokens * h, (gradient ? 4 : 2) * one, 2 * one,
              {.exps = 2, .products = gradient ? 5.0 : 1.0, .quotients = gradient ? 2.0 : 1.0});
  cost.logs = static_cast<double>(tokens * h);
  if (!gradient)
    return make(
        shape, cost, {g, beta},
        [=, &on] {
          gated_delta_gates_forward(g.matrix(tokens), beta.matrix(tokens), a.matrix(tokens),
                                    b.matrix(tokens), a_log.span(), dt.span(), on);
        },
        [=] {
          std::vector<doubles> want{zeros(g), zeros(beta)};
          const doubles as = a.in_double(), bs = b.in_double();
          ref::gated_delta_gates_forward<double>(
              matrix_of(want[0], tokens), matrix_of(want[1], tokens), matrix_of(as, tokens),
              matrix_of(bs, tokens), a_log.in_double(), dt.in_double());
          return want;
        },
        8);
  return make(
      shape, cost, {d_a, d_b, d_a_log, d_dt},
      [=, &on] {
        gated_delta_gates_backward(d_a.matrix(tokens), d_b.matrix(tokens), d_a_log.span(),
                                   d_dt.span(), d_g.matrix(tokens), d_beta.matrix(tokens),
                                   a.matrix(tokens), b.matrix(tokens), a_log.span(), dt.span(), on);
      },
      [=] {
        std::vector<doubles> want{zeros(d_a), zeros(d_b), zeros(d_a_log), zeros(d_dt)};
        const doubles as = a.in_double(), bs = b.in_double(), dg = d_g.in_double(),
                      db = d_beta.in_double();
        ref::gated_delta_gates_backward<double>(
            matrix_of(want[0], tokens), matrix_of(want[1], tokens), want[2], want[3],
            matrix_of(dg, tokens), matrix_of(db, tokens), matrix_of(as, tokens),
            matrix_of(bs, tokens), a_log.in_double(), dt.in_double());
        return want;
      },
      tokens);
}

prepared delta(place p, const sizes& n, index tokens) {
  const index width = n.heads * n.head_dim;
  const tensor d_out(p, tokens * width, 1), out(p, tokens * width, 2), result(p, tokens * n.heads);
  executor& on = p.on;
  return make(
      {{"tokens", tokens}, {"heads", n.heads}, {"width", n.head_dim}},
      cost_of(out.count(), bytes_of({d_out.count(), out.count()}), bytes_of({result.count()}),
              {.products = 1}),
      {result},
      [=, &on] {
        attention_delta(result.matrix(tokens), d_out.matrix(tokens), out.matrix(tokens), on);
      },
      [=] {
        std::vector<doubles> want{zeros(result)};
        const doubles d = d_out.in_double(), o = out.in_double();
        ref::attention_delta<double>(matrix_of(want[0], tokens), matrix_of(d, tokens),
                                     matrix_of(o, tokens));
        return want;
      },
      n.head_dim);
}

prepared merge(place p, const sizes& n, index tokens) {
  constexpr index parts = 4;
  const index width = n.heads * n.head_dim;
  const tensor outs(p, parts * tokens * width, 1), lses(p, parts * tokens * n.heads, 2),
      out(p, tokens * width), lse(p, tokens * n.heads);
  executor& on = p.on;
  std::vector<attention_part> all;
  for (index i = 0; i < parts; ++i)
    all.push_back({outs.matrix(parts * tokens).row_range(i * tokens, (i + 1) * tokens),
                   lses.matrix(parts * tokens).row_range(i * tokens, (i + 1) * tokens)});
  work cost = cost_of(out.count(), bytes_of({outs.count(), lses.count()}),
                      bytes_of({out.count(), lse.count()}), {.products = parts});
  cost.exps = static_cast<double>(lses.count());
  cost.logs = cost.quotients = static_cast<double>(lse.count());
  return make(
      {{"tokens", tokens}, {"heads", n.heads}, {"width", n.head_dim}, {"parts", parts}}, cost,
      {out, lse}, [=, &on] { attention_merge(out.matrix(tokens), lse.matrix(tokens), all, on); },
      [=] {
        std::vector<doubles> want{zeros(out), zeros(lse)};
        const doubles o = outs.in_double(), l = lses.in_double();
        std::vector<ref::attention_result<double>> in;
        for (index i = 0; i < parts; ++i)
          in.push_back({cdmat(o.data() + i * tokens * width, tokens, width),
                        cdmat(l.data() + i * tokens * n.heads, tokens, n.heads)});
        ref::attention_merge<double>(matrix_of(want[0], tokens), matrix_of(want[1], tokens), in);
        return want;
      },
      16);
}

prepared embedding(place p, const sizes& n, index tokens, bool gradient) {
  const tensor table(p, n.vocabulary * n.hidden, 1), d_out(p, tokens * n.hidden, 2),
      out(p, tokens * n.hidden);
  const tensor d_table = gradient ? tensor(p, table.count()) : tensor(p, 1);
  executor& on = p.on;
  std::vector<token_id> ids;
  for (index t = 0; t < tokens; ++t)
    ids.push_back(static_cast<token_id>((t * 7919 + 13) % n.vocabulary));
  const json shape = {{"tokens", tokens}, {"hidden", n.hidden}, {"vocabulary", n.vocabulary}};
  const double one = bytes_of({tokens * n.hidden});
  if (!gradient)
    return make(
        shape, cost_of(out.count(), one, one, {}), {out},
        [=, &on] { embedding_forward(out.matrix(tokens), ids, table.matrix(n.vocabulary), on); },
        [=] {
          std::vector<doubles> want{zeros(out)};
          const doubles t = table.in_double();
          ref::embedding_forward<double>(matrix_of(want[0], tokens), ids,
                                         matrix_of(t, n.vocabulary));
          return want;
        },
        1);
  return make(
      shape, cost_of(out.count(), 2 * one, one, {}, true), {d_table},
      [=, &on] { embedding_backward(d_table.matrix(n.vocabulary), d_out.matrix(tokens), ids, on); },
      [=] {
        std::vector<doubles> want{zeros(d_table)};
        const doubles d = d_out.in_double();
        ref::embedding_backward<double>(matrix_of(want[0], n.vocabulary), matrix_of(d, tokens),
                                        ids);
        return want;
      },
      8);
}

prepared angles(place p, const sizes& n, index tokens) {
  const index width = n.head_dim / 4;
  const tensor out(p, tokens * width);
  rotary_spec spec;
  spec.width = width;
  const std::vector<double> frequencies = rotary_frequencies(spec);
  executor& on = p.on;
  work cost = cost_of(out.count(), 0, bytes_of({out.count()}), {});
  cost.sin_cos = 0.5 * static_cast<double>(out.count());
  return make(
      {{"tokens", tokens}, {"width", width}}, cost, {out},
      [=, &on] {
        rotary_angles(out.matrix(tokens), {1000, 1000 + tokens}, frequencies, on);
      },
      [=] {
        std::vector<doubles> want{zeros(out)};
        ref::rotary_angles<double>(matrix_of(want[0], tokens), {1000, 1000 + tokens}, frequencies);
        return want;
      },
      1);
}

}  // namespace

void add_elementwise_cases(case_list& to) {
  using both = prepared (*)(place, const sizes&, index, bool);
  using single = prepared (*)(place, const sizes&, index);
  const std::pair<const char*, both> pairs[] = {
      {"rms_norm", norm},           {"gated_rms_norm", gated_norm},
      {"swiglu", swiglu},           {"sigmoid_gate", sigmoid_gate},
      {"rotary", rotary},           {"causal_conv", convolution},
      {"gated_delta_gates", gates}, {"embedding", embedding}};
  const std::pair<const char*, single> singles[] = {
      {"attention_delta", delta}, {"attention_merge", merge}, {"rotary_angles", angles}};
  for (const sizes& n : models)
    for (index tokens : {64, 1024}) {
      const std::string suffix = std::string("/") + n.name + "/" + std::to_string(tokens);
      for (const auto& [name, prepare] : pairs)
        for (bool gradient : {false, true})
          to.push_back({name + std::string(gradient ? "_backward" : "_forward") + suffix,
                        [=, f = prepare](place p) { return f(p, n, tokens, gradient); }});
      for (const auto& [name, prepare] : singles)
        to.push_back({name + suffix, [=, f = prepare](place p) { return f(p, n, tokens); }});
    }
}

}  // namespace longstraw::bench
