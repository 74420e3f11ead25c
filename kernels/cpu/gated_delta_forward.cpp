#include <longstraw/kernels/cpu/gated_delta_chunk.hpp>
#include <longstraw/kernels/cpu/tile_transpose.hpp>

namespace longstraw::kernels {
namespace {

using namespace gated_delta;
using simd::lanes;
using simd::load;
using simd::store;
using simd::vec;

// Up to this many tokens the recurrence itself is faster than a padded chunk.
constexpr index direct_tokens_max = 4;

struct arguments {
  heads out;
  float* state;
  float* chunk_states;  // null: not wanted
  cheads q, k, v;
  cmat g, beta;
  gated_delta_dims n;

  index ratio() const { return n.value_heads / n.key_heads; }
  float query_scale() const { return 1.0f / std::sqrt(static_cast<float>(n.key_dim)); }
  mat state_of(index head) const {
    return {state + head * n.key_dim * n.value_dim, n.key_dim, n.value_dim};
  }
};

// --- A few tokens: the recurrence as it is written ---

/// One token, some columns of one head's state, `Vecs` vectors wide; both passes find the columns
/// in the first-level cache. Load and store are those of the last, possibly partial vector.
template <int Vecs, class Load, class Store>
void direct_columns(float* out, mat state, const float* q, const float* k, const float* v,
                    float decay, float beta, float query_key, Load&& get, Store&& put) {
  auto read = [&](const float* p, int i) {
    return i == Vecs - 1 ? get(p + i * lanes) : load(p + i * lanes);
  };
  auto write = [&](float* p, int i, vec x) {
    i == Vecs - 1 ? put(p + i * lanes, x) : store(p + i * lanes, x);
  };
  vec said[Vecs] = {}, asked[Vecs] = {};
  for (index r = 0; r < state.rows; ++r)
    for (int i = 0; i < Vecs; ++i) {
      const vec s = read(state.row(r), i);
      said[i] += k[r] * s;
      asked[i] += q[r] * s;
    }
  vec u[Vecs];
  for (int i = 0; i < Vecs; ++i) {
    u[i] = beta * (read(v, i) - decay * said[i]);
    write(out, i, decay * asked[i] + query_key * u[i]);
  }
  for (index r = 0; r < state.rows; ++r)
    for (int i = 0; i < Vecs; ++i)
      write(state.row(r), i, decay * read(state.row(r), i) + k[r] * u[i]);
}

void direct_head(const arguments& a, index head, scratch& local) {
  const gated_delta_dims& n = a.n;
  const index width = padded(n.key_dim), key_head = head / a.ratio();
  const mat q = local.matrix(1, width), k = local.matrix(1, width);
  const mat state = a.state_of(head);
  float norms[lanes] = {};
  if (a.chunk_states)
    std::copy_n(state.data, n.key_dim * n.value_dim,
                a.chunk_states + head * n.key_dim * n.value_dim);
  for (index t = 0; t < a.q.tokens; ++t) {
    load_normalized(q, norms, a.q.at(t, key_head), 0, 1, n.key_dim, a.query_scale());
    load_normalized(k, norms, a.k.at(t, key_head), 0, 1, n.key_dim, 1.0f);
    const float query_key = simd::dot(q.data, k.data, width);
    const float decay = std::exp(a.g(t, head)), beta = a.beta(t, head);
    const float* v = a.v.at(t, head);
    float* out = a.out.at(t, head);
    index c = 0;
    auto columns = [&]<int Vecs>(auto get, auto put) {
      direct_columns<Vecs>(out + c, state.col_range(c, n.value_dim), q.data, k.data, v + c, decay,
                           beta, query_key, get, put);
      c += Vecs * lanes;
    };
    auto get = [](const float* p) { return load(p); };
    auto put = [](float* p, vec x) { store(p, x); };
    while (c + 4 * lanes <= n.value_dim) columns.template operator()<4>(get, put);
    while (c + lanes <= n.value_dim) columns.template operator()<1>(get, put);
    if (const index rest = n.value_dim - c; rest > 0)
      columns.template operator()<1>([rest](const float* p) { return simd::load_part(p, rest); },
                                     [rest](float* p, vec x) { simd::store_part(p, x, rest); });
  }
}

// --- Chunks ---

/// Scratch memory of one item.
struct forward_tiles {
  mat states;               // [heads of the item * key, value]
  mat k, q, k_transposed;   // of one key head, for its value heads
  mat kk, qk;               // [rows, rows] likewise
  mat lower, attend, u, w;  // of one value head
  decays d;
  float *norms, *beta;

  forward_tiles(scratch& local, index heads, index rows, index key, index value)
      : states(local.matrix(heads * key, value)),
        k(local.matrix(rows, key)),
        q(local.matrix(rows, key)),
        k_transposed(local.matrix(key, rows)),
        kk(local.matrix(rows, rows)),
        qk(local.matrix(rows, rows)),
        lower(local.matrix(rows, rows)),
        attend(local.matrix(rows, rows)),
        u(local.matrix(rows, value)),
        w(local.matrix(rows, value)),
        d(decays::in(local, rows)),
        norms(local.floats(rows).data()),
        beta(local.floats(rows).data()) {}
};

///  state [key, value]: in, before the chunk; out, after it
void forward_chunk_head(const arguments& a, forward_tiles& t, mat state, const chunk_sizes& n,
                        index begin, index head) {
  if (a.chunk_states) {
    const index states_before = begin / a.n.chunk_tokens() * a.n.value_heads + head;
    store_rows(a.chunk_states + states_before * a.n.key_dim * a.n.value_dim, a.n.value_dim, state,
               a.n.key_dim, a.n.value_dim);
  }
  for (index i = 0; i < n.rows; ++i) t.beta[i] = i < n.tokens ? a.beta(begin + i, head) : 0.0f;
  t.d.set(&a.g(begin, head), a.g.stride, n);
  weigh_pairs(t.lower, t.d, t.kk, -1.0f, n);
  weigh_pairs(t.attend, t.d, t.qk, 1.0f, n);
  prefetch_rows(a.out.at(begin, head), a.out.token_stride, n.tokens, a.n.value_dim);

  const mat u = t.u.row_range(0, n.rows), w = t.w.row_range(0, n.rows);
  load_rows(w, a.v.at(begin, head), a.v.token_stride, n.tokens, a.n.value_dim);
  solve_writes(w, u, solved::leaving, state, t.k, t.lower, t.d, t.beta, n);
  for (index b = 0; b < n.blocks(); ++b) {
    const index first = b * block_rows, known = first + block_rows;
    const index count = std::min(block_rows, n.tokens - first);
    const mat out{a.out.at(begin + first, head), count, a.n.value_dim, a.out.token_stride};
    product(out, {as_left(block(t.q, b)), state, t.d.from_start + first,
                  as_left(block(t.attend, b)), u.row_range(0, known)});
  }
  // exp(G_last) S + sum_j exp(G_last - G_j) k_j u_j^T
  product_add(state, t.k_transposed.col_range(0, n.rows), w, t.d.whole);
}

/// The value heads [head_begin, head_end), side by side from chunk to chunk.
void forward_heads(const arguments& a, index head_begin, index head_end, scratch& local) {
  const index tokens = a.q.tokens, ratio = a.ratio(), chunk = a.n.chunk_tokens();
  const index key_begin = head_begin / ratio, key_end = blocks_of(head_end, ratio);
  chunk_sizes n;
  n.key = padded(a.n.key_dim);
  n.value = padded(a.n.value_dim);
  forward_tiles t(local, head_end - head_begin, padded(std::min(tokens, chunk)), n.key, n.value);
  const auto state = [&](index head) {
    return t.states.row_range((head - head_begin) * n.key, (head - head_begin + 1) * n.key);
  };
  for (index head = head_begin; head < head_end; ++head)
    load_rows(state(head), a.state_of(head).data, a.n.value_dim, a.n.key_dim, a.n.value_dim);
  for (index begin = 0; begin < tokens; begin += chunk) {
    n.tokens = std::min(chunk, tokens - begin);
    n.rows = padded(n.tokens);
    const mat k = t.k.row_range(0, n.rows), q = t.q.row_range(0, n.rows),
              k_transposed = t.k_transposed.col_range(0, n.rows);
    const index later = begin + chunk, later_tokens = std::min(chunk, tokens - later);
    for (index key_head = key_begin; key_head < key_end; ++key_head) {
      load_normalized(k, t.norms, a.k.at(begin, key_head), a.k.token_stride, n.tokens, a.n.key_dim,
                      1.0f);
      load_normalized(q, t.norms, a.q.at(begin, key_head), a.q.token_stride, n.tokens, a.n.key_dim,
                      a.query_scale());
      prefetch_rows(a.k.at(later, key_head), a.k.token_stride, later_tokens, a.n.key_dim);
      prefetch_rows(a.q.at(later, key_head), a.q.token_stride, later_tokens, a.n.key_dim);
      tile_transpose(k_transposed, k);
      lower_products(t.kk.row_range(0, n.rows), k, k_transposed);
      lower_products(t.qk.row_range(0, n.rows), q, k_transposed);
      for (index head = std::max(head_begin, key_head * ratio);
           head < std::min(head_end, (key_head + 1) * ratio); ++head) {
        forward_chunk_head(a, t, state(head), n, begin, head);
        prefetch_rows(a.v.at(later, head), a.v.token_stride, later_tokens, a.n.value_dim);
      }
    }
  }
  for (index head = head_begin; head < head_end; ++head)
    store_rows(a.state_of(head).data, a.n.value_dim, state(head), a.n.key_dim, a.n.value_dim);
}

}  // namespace

index gated_delta_saved_floats(index tokens, gated_delta_dims n) {
  return blocks_of(tokens, n.chunk_tokens()) * n.state_floats();
}

void gated_delta_forward(heads out, std::span<float> state, std::span<float> chunk_states, cheads q,
                         cheads k, cheads v, cmat g, cmat beta, gated_delta_dims n, executor& on) {
  LS_ASSERT(n.value_heads % n.key_heads == 0, "value heads split evenly over key heads");
  LS_ASSERT(static_cast<index>(state.size()) == n.state_floats(), "one state a value head");
  LS_ASSERT(chunk_states.empty() ||
                static_cast<index>(chunk_states.size()) >= gated_delta_saved_floats(q.tokens, n),
            "chunk_states must hold a state for each chunk");
  if (q.tokens == 0) return;
  const arguments a{
      out, state.data(), chunk_states.empty() ? nullptr : chunk_states.data(), q, k, v, g, beta, n};
  if (q.tokens <= direct_tokens_max) {
    on.parallel_for(n.value_heads,
                    [&](index head, scratch& local) { direct_head(a, head, local); });
    return;
  }
  // A key head's norms and products serve all its value heads, unless that leaves threads idle. The
  // arithmetic of a head is the same either way.
  const bool even = n.key_heads % on.threads() == 0 || n.key_heads >= 4 * on.threads();
  const index heads_of_item = even ? a.ratio() * key_heads_of_item(n, on.threads()) : 1;
  on.parallel_for(n.value_heads / heads_of_item, [&](index item, scratch& local) {
    forward_heads(a, item * heads_of_item, (item + 1) * heads_of_item, local);
  });
}

}  // namespace longstraw::kernels
