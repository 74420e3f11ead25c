// Attention over a prompt's pages and the pass's own tokens. A page holds a head's keys together,
// as pages of conditional state do; the pass's own tokens lie in the projections.

#include "tensor.hpp"

#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/reference/attention.hpp>

namespace longstraw::bench {
namespace {

using namespace kernels;
namespace ref = kernels::reference;

constexpr index page_tokens = 256;

struct dims_of {
  const char* name;
  attention_dims n;
};
const dims_of models[] = {
    {"s", {4, 2, 64, 0.125f}}, {"m", {12, 2, 64, 0.125f}}, {"16x128", {16, 4, 128, 0.088388348f}}};

enum class pass { forward, backward_frozen, backward_wanted };

/// Everything of one problem. The first `prior` positions are pages, the queries' own follow.
struct problem {
  problem(place p, attention_dims dims, index own, index earlier)
      : n(dims),
        queries(own),
        prior(earlier),
        q(p, own * n.query_heads * n.head_dim, 1),
        d_out(p, own * n.query_heads * n.head_dim, 2),
        key(p, (own + earlier) * n.kv_heads * n.head_dim, 3),
        value(p, (own + earlier) * n.kv_heads * n.head_dim, 4),
        out(p, q.count()),
        lse(p, own * n.query_heads),
        delta(p, own * n.query_heads),
        d_q(p, q.count()) {
    const index width = n.kv_heads * n.head_dim;
    for (index t = 0; t < prior; t += page_tokens) {
      const index count = std::min(page_tokens, prior - t);
      pieces.push_back({key.data() + t * width, value.data() + t * width, count, t, n.head_dim,
                        count * n.head_dim});
    }
    pieces.push_back({key.data() + prior * width, value.data() + prior * width, queries, prior,
                      width, n.head_dim});
  }
  void want_keys(place p) {
    d_key = tensor(p, key.count());
    d_value = tensor(p, value.count());
    for (const kv_piece& piece : pieces)
      gradients.push_back(
          {d_key.data() + (piece.key - key.data()), d_value.data() + (piece.value - value.data())});
  }
  /// The frozen pass wants the gradients of its own tokens only.
  void want_own_keys(place p) {
    want_keys(p);
    for (std::size_t i = 0; i + 1 < gradients.size(); ++i) gradients[i] = {};
  }
  cheads queries_view() const { return q.as_heads(queries, n.query_heads); }
  double pairs() const {
    return static_cast<double>(queries) * static_cast<double>(prior) +
           static_cast<double>(queries) * static_cast<double>(queries + 1) / 2;
  }
  double own_pairs() const {
    return static_cast<double>(queries) * static_cast<double>(queries + 1) / 2;
  }

  attention_dims n;
  index queries, prior;
  tensor q, d_out, key, value, out, lse, delta, d_q, d_key, d_value;
  std::vector<kv_piece> pieces;
  std::vector<kv_piece_gradient> gradients;
};

void forward(const problem& a, executor& on) {
  attention_forward(a.out.matrix(a.queries), a.lse.matrix(a.queries), a.queries_view(), a.prior,
                    a.pieces, a.n, on);
}
void backward(const problem& a, executor& on) {
  attention_backward(a.d_q.as_heads(a.queries, a.n.query_heads), a.gradients,
                     a.d_out.matrix(a.queries), a.lse.matrix(a.queries), a.delta.matrix(a.queries),
                     a.queries_view(), a.prior, a.pieces, a.n, on);
}

// Some queries against all keys, by the double reference.
double row_errors(const problem& a, bool gradient) {
  const auto key = a.key.in_double(), value = a.value.in_double(), q = a.q.in_double(),
             d_out = a.d_out.in_double();
  std::vector<ref::kv_part<double>> parts;
  for (const kv_piece& piece : a.pieces) {
    const auto view = [&](const std::vector<double>& v) {
      return heads_view<const double>(v.data() + (piece.key - a.key.data()), piece.tokens,
                                      a.n.kv_heads, a.n.head_dim, piece.token_stride,
                                      piece.head_stride);
    };
    parts.push_back({view(key), view(value), piece.position});
  }
  const index width = a.n.query_heads * a.n.head_dim;
  difference out_error, lse_error, d_q_error;
  for (index t : spread_over(a.queries, 4)) {
    std::vector<double> out(static_cast<std::size_t>(width)),
        lse(static_cast<std::size_t>(a.n.query_heads)), delta(lse.size()), d_q(out.size());
    const auto row =
        split_heads(matrix_view<const double>(q.data() + t * width, 1, width), a.n.query_heads);
    ref::attention_forward(matrix_of(out, 1), matrix_of(lse, 1), row, a.prior + t,
                           std::span<const ref::kv_part<double>>(parts), a.n);
    for (index i = 0; i < width; ++i)
      out_error.add(a.out.data()[t * width + i], out[static_cast<std::size_t>(i)]);
    for (index h = 0; h < a.n.query_heads; ++h)
      lse_error.add(a.lse.data()[t * a.n.query_heads + h], lse[static_cast<std::size_t>(h)]);
    if (!gradient) continue;
    const matrix_view<const double> d(d_out.data() + t * width, 1, width);
    ref::attention_delta(matrix_of(delta, 1), d, matrix_view<const double>(out.data(), 1, width));
    const std::vector<ref::kv_part_gradient<double>> none(parts.size());
    ref::attention_backward(split_heads(matrix_of(d_q, 1), a.n.query_heads),
                            std::span<const ref::kv_part_gradient<double>>(none), d,
                            matrix_view<const double>(matrix_of(lse, 1)),
                            matrix_view<const double>(matrix_of(delta, 1)), row, a.prior + t,
                            std::span<const ref::kv_part<double>>(parts), a.n);
    for (index i = 0; i < width; ++i)
      d_q_error.add(a.d_q.data()[t * width + i], d_q[static_cast<std::size_t>(i)]);
  }
  return worst({out_error.value(), lse_error.value(), gradient ? d_q_error.value() : 0});
}

// Some keys' gradients, summed in double over all queries with the lse and delta of the fast
// kernels.
double key_errors(const problem& a) {
  difference d_key, d_value;
  const index group = a.n.query_heads / a.n.kv_heads;
  for (std::size_t i : {std::size_t{0}, a.pieces.size() - 1}) {
    const kv_piece& piece = a.pieces[i];
    if (!a.gradients[i].d_key) continue;
    for (index j : spread_over(piece.tokens, 3))
      for (index h = 0; h < a.n.kv_heads; ++h) {
        const index at = j * piece.token_stride + h * piece.head_stride;
        std::vector<double> dk(static_cast<std::size_t>(a.n.head_dim)), dv(dk.size());
        for (index t = std::max<index>(0, piece.position + j - a.prior); t < a.queries; ++t)
          for (index qh = h * group; qh < (h + 1) * group; ++qh) {
            const float *q = a.queries_view().at(t, qh),
                        *d = cheads(a.d_out.as_heads(a.queries, a.n.query_heads)).at(t, qh);
            double score = 0, d_p = 0;
            for (index c = 0; c < a.n.head_dim; ++c)
              score += double(q[c]) * piece.key[at + c], d_p += double(d[c]) * piece.value[at + c];
            const index row = t * a.n.query_heads + qh;
            const double p = std::exp(a.n.scale * score - a.lse.data()[row]);
            const double d_s = p * (d_p - a.delta.data()[row]) * a.n.scale;
            for (index c = 0; c < a.n.head_dim; ++c)
              dk[static_cast<std::size_t>(c)] += d_s * q[c],
                  dv[static_cast<std::size_t>(c)] += p * d[c];
          }
        for (index c = 0; c < a.n.head_dim; ++c) {
          d_key.add(a.gradients[i].d_key[at + c], dk[static_cast<std::size_t>(c)]);
          d_value.add(a.gradients[i].d_value[at + c], dv[static_cast<std::size_t>(c)]);
        }
      }
  }
  return worst({d_key.value(), d_value.value()});
}

prepared prepare(place p, attention_dims n, index queries, index prior, pass which) {
  const auto a = std::make_shared<problem>(p, n, queries, prior);
  executor& on = p.on;
  prepared c;
  c.shape = {{"queries", queries},
             {"earlier_keys", prior},
             {"query_heads", n.query_heads},
             {"kv_heads", n.kv_heads},
             {"head_dim", n.head_dim}};
  const double product = 2.0 * static_cast<double>(n.query_heads * n.head_dim);  // flops a pair
  c.cost.bytes_read = bytes_of({a->q.count(), a->key.count(), a->value.count()});
  if (which == pass::forward) {
    c.cost.flops = 2 * product * a->pairs();
    c.cost.bytes_written = bytes_of({a->out.count()});
    c.run = [a, &on] { forward(*a, on); };
    c.error = [a, run = c.run] {
      run();
      return row_errors(*a, false);
    };
  } else {
    if (which == pass::backward_wanted)
      a->want_keys(p);
    else
      a->want_own_keys(p);
    const bool wanted = which == pass::backward_wanted;
    c.cost.flops = 3 * product * a->pairs() + 2 * product * (wanted ? a->pairs() : a->own_pairs());
    c.cost.bytes_read += bytes_of({a->d_out.count(), a->d_q.count()});
    c.cost.bytes_written = bytes_of({a->d_q.count()});
    if (wanted) c.cost.bytes_written += bytes_of({a->key.count(), a->value.count()});
    c.run = [a, &on] { backward(*a, on); };
    c.error = [a, &on, run = c.run] {
      forward(*a, on);
      attention_delta(a->delta.matrix(a->queries), a->d_out.matrix(a->queries),
                      a->out.matrix(a->queries), on);
      for (const tensor& t : {a->d_q, a->d_key, a->d_value}) t.zero();
      run();
      return worst({row_errors(*a, true), key_errors(*a)});
    };
  }
  c.error_bound = float32_bound(queries + prior);
  return c;
}

}  // namespace

void add_attention_cases(case_list& to) {
  struct size {
    index queries, prior;
  };
  const auto add = [&](const char* name, const dims_of& d, size s, pass which) {
    to.push_back({std::string(name) + "/" + d.name + "/" + std::to_string(s.queries) + "x" +
                      std::to_string(s.prior),
                  [=, n = d.n](place p) { return prepare(p, n, s.queries, s.prior, which); }});
  };
  for (const dims_of& d : models) {
    for (size s :
         {size{1024, 4096}, size{1024, 16384}, size{64, 4096}, size{64, 16384}, size{1, 16384}})
      add("attention_forward", d, s, pass::forward);
    for (size s : {size{64, 4096}, size{64, 16384}, size{1024, 4096}})
      add("attention_backward_frozen", d, s, pass::backward_frozen);
    for (size s : {size{64, 4096}, size{1024, 4096}})
      add("attention_backward_wanted", d, s, pass::backward_wanted);
  }
}

}  // namespace longstraw::bench
