#include <longstraw/kernels/cpu/gated_delta_chunk.hpp>
#include <longstraw/kernels/cpu/tile_transpose.hpp>

#include <algorithm>

// Chunks from last to first, each rebuilt from the state before it. An item walks some key heads
// side by side. The value heads of a key head follow each other in order: they share its norms and
// products, and their parts of d_q and d_k are added in that order.

namespace longstraw::kernels {
namespace {

using namespace gated_delta;
using simd::lanes;
using simd::load;
using simd::store;
using simd::vec;

using simd::half_vec;
using simd::wide;
constexpr index half_lanes = lanes / 2;

struct arguments {
  heads d_q, d_k, d_v;
  mat d_g, d_beta;
  float* d_state;
  cheads d_out;
  const float* chunk_states;
  cheads q, k, v;
  cmat g, beta;
  gated_delta_dims n;

  index ratio() const { return n.value_heads / n.key_heads; }
  float query_scale() const { return 1.0f / std::sqrt(static_cast<float>(n.key_dim)); }
};

/// Scratch memory of one key head and chunk. Names are those of docs/numerics.md.
struct backward_tiles {
  // Shared by the value heads of the key head.
  mat k, q;             // [rows, key] normalized
  mat qk_transposed;    // [key, 2 rows]: q^T | k^T
  mat kk, qk;           // [rows, rows]
  mat d_qk_transposed;  // [key, 2 rows]: gradients of q^T | k^T through states, all value heads
  mat d_kk, d_qk;       // [rows, rows] gradients of kk, qk, all value heads
  mat d_rows;           // [2 rows, key] gradients of q above k
  float *k_norms, *q_norms;
  // Of one value head.
  decays d;
  float* beta;
  mat lower;             // [rows, rows] -exp(G_i - G_j) k_i . k_j
  mat attend;            // [rows, rows] exp(G_i - G_j) q_i . k_j
  mat state;             // [key, value] before the chunk
  mat u, w, x;           // [rows, value] what tokens wrote, and before beta; gradient of u
  mat d_out, y;          // [rows, value]
  mat outer;             // [2 rows, value]: exp(G) d_out above -exp(G) y
  mat outer_transposed;  // [value, 2 rows]
  mat u_transposed;      // [value, rows]
  mat from_state;        // [key, 2 rows]: S (exp(G) d_out)^T | -S (exp(G) y)^T
  mat from_d_state;      // [key, rows]: d_state u^T

  backward_tiles(scratch& local, index rows, index key, index value)
      : k(local.matrix(rows, key)),
        q(local.matrix(rows, key)),
        qk_transposed(local.matrix(key, 2 * rows)),
        kk(local.matrix(rows, rows)),
        qk(local.matrix(rows, rows)),
        d_qk_transposed(local.matrix(key, 2 * rows)),
        d_kk(local.matrix(rows, rows)),
        d_qk(local.matrix(rows, rows)),
        d_rows(local.matrix(2 * rows, key)),
        k_norms(local.floats(rows).data()),
        q_norms(local.floats(rows).data()),
        d(decays::in(local, rows)),
        beta(local.floats(rows).data()),
        lower(local.matrix(rows, rows)),
        attend(local.matrix(rows, rows)),
        state(local.matrix(key, value)),
        u(local.matrix(rows, value)),
        w(local.matrix(rows, value)),
        x(local.matrix(rows, value)),
        d_out(local.matrix(rows, value)),
        y(local.matrix(rows, value)),
        outer(local.matrix(2 * rows, value)),
        outer_transposed(local.matrix(value, 2 * rows)),
        u_transposed(local.matrix(value, rows)),
        from_state(local.matrix(key, 2 * rows)),
        from_d_state(local.matrix(key, rows)) {}
};

void scale_rows(mat to, cmat from, const float* scale) {
  for (index r = 0; r < to.rows; ++r)
    for (index c = 0; c < to.cols; c += lanes)
      store(to.row(r) + c, load(from.row(r) + c) * scale[r]);
}

/// Gradients of the exponents, summed in double: in the running sum over tokens that makes d_g of
/// them, what enters a token as i and leaves it as j nearly cancels.
struct exponent_gradient {
  double rows[gated_delta_chunk_max] = {};     ///< of exp(G_i) and of exp(G_i - G_j), j < i, by i
  double cols[gated_delta_chunk_max] = {};     ///< of exp(G_i - G_j), by j
  double leaving[gated_delta_chunk_max] = {};  ///< of exp(G_last - G_j)
};

double sum(wide v) {
  for (index half = half_lanes / 2; half > 0; half /= 2)
    for (index l = 0; l < half; ++l) v[l] += v[l + half];
  return v[0];
}

/// Pairs (i, j) of the chunk:  d_qk += D dA,  d_kk += D dL, and their part of the gradients of the
/// exponents G_i - G_j
///  d_attend = d_out u^T,  y_u = y u^T = -dL  [rows, rows], on and below the diagonal blocks
void pair_gradients(exponent_gradient& e, const backward_tiles& t, cmat d_attend, cmat y_u,
                    const chunk_sizes& n) {
  simd::ivec lane;
  for (index l = 0; l < lanes; ++l) lane[l] = static_cast<std::int32_t>(l);
  for (index i = 0; i < n.rows; ++i) {
    wide row{};
    for (index j = 0; j < (i / block_rows + 1) * block_rows; j += lanes) {
      const vec decay = load(t.d.between.row(i) + j);
      const vec d_qk = load(d_attend.row(i) + j) * decay, d_kk = -load(y_u.row(i) + j) * decay;
      store(t.d_qk.row(i) + j, load(t.d_qk.row(i) + j) + d_qk);
      store(t.d_kk.row(i) + j, load(t.d_kk.row(i) + j) + d_kk);
      vec pair = d_qk * load(t.qk.row(i) + j) + d_kk * load(t.kk.row(i) + j);
      // exp(G_i - G_i) does not depend on G_i
      pair = lane == static_cast<std::int32_t>(i - j) ? vec{} : pair;
      half_vec halves[2];
      std::memcpy(halves, &pair, sizeof halves);
      for (index half = 0; half < 2; ++half) {
        double* cols = e.cols + j + half * half_lanes;
        const wide pairs = __builtin_convertvector(halves[half], wide);
        wide col;
        std::memcpy(&col, cols, sizeof col);
        col += pairs;
        std::memcpy(cols, &col, sizeof col);
        row += pairs;
      }
    }
    e.rows[i] += sum(row);
  }
}

///  d_state [key, value]: in, the gradient of the state after the chunk; out, of the one before
void backward_chunk_head(const arguments& a, backward_tiles& t, mat d_state, const chunk_sizes& n,
                         index begin, index head) {
  const index chunk = a.n.chunk_tokens(), earlier = begin - chunk;
  const index one_state = a.n.key_dim * a.n.value_dim;
  const float* state_before = a.chunk_states + (begin / chunk * a.n.value_heads + head) * one_state;
  load_rows(t.state, state_before, a.n.value_dim, a.n.key_dim, a.n.value_dim);
  for (index i = 0; i < n.rows; ++i) t.beta[i] = i < n.tokens ? a.beta(begin + i, head) : 0.0f;
  t.d.set(&a.g(begin, head), a.g.stride, n);
  weigh_pairs(t.lower, t.d, t.kk, -1.0f, n);
  weigh_pairs(t.attend, t.d, t.qk, 1.0f, n);
  prefetch_rows(a.d_v.at(begin, head), a.d_v.token_stride, n.tokens, a.n.value_dim);

  // Forward again, as far as w and u.
  load_rows(t.w, a.v.at(begin, head), a.v.token_stride, n.tokens, a.n.value_dim);
  solve_writes(t.w, t.u, solved::writes, t.state, t.k, t.lower, t.d, t.beta, n);

  // Gradient of u: from the state after the chunk, from the outputs, from later writes.
  load_rows(t.d_out, a.d_out.at(begin, head), a.d_out.token_stride, n.tokens, a.n.value_dim);
  for (index b = 0; b < n.blocks(); ++b) {
    const index first = b * block_rows;
    const cmat later = t.attend.row_range(first, n.rows).col_range(first, first + block_rows);
    product(block(t.x, b), {as_left(block(t.k, b)), d_state, t.d.to_end + first,
                            as_left_transposed(later), t.d_out.row_range(first, n.rows)});
  }
  solve_writes_transposed(t.y, t.x, t.lower, t.beta, n);
  store_rows(a.d_v.at(begin, head), a.d_v.token_stride, t.y, n.tokens, a.n.value_dim);
  float d_beta[gated_delta_chunk_max];
  row_dots(d_beta, t.x, t.w);
  for (index i = 0; i < n.tokens; ++i) a.d_beta(begin + i, head) = d_beta[i];
  if (earlier >= 0) {
    prefetch_rows(a.v.at(earlier, head), a.v.token_stride, chunk, a.n.value_dim);
    prefetch_rows(a.d_out.at(earlier, head), a.d_out.token_stride, chunk, a.n.value_dim);
  }

  // Pairs of tokens.
  tile_transpose(t.u_transposed, t.u);
  exponent_gradient e;
  const mat d_attend = t.attend, y_u = t.lower;  // both no longer needed
  lower_products(d_attend, t.d_out, t.u_transposed);
  lower_products(y_u, t.y, t.u_transposed);
  pair_gradients(e, t, d_attend, y_u, n);

  // Tokens against the states at both ends, transposed so that sums over the key dimension run down
  // the rows.
  scale_rows(t.outer.row_range(0, n.rows), t.d_out, t.d.from_start);
  scale_rows(t.outer.row_range(n.rows, 2 * n.rows), t.y, t.d.minus_from_start);
  tile_transpose(t.outer_transposed, t.outer);
  product(t.from_state, t.state, t.outer_transposed);
  product(t.from_d_state, d_state, t.u_transposed);
  for (index i = 0; i < n.rows; i += lanes) {
    const vec end = load(t.d.to_end + i);
    vec entering{}, leaving{};
    for (index r = 0; r < n.key; ++r) {
      const vec d_q = load(t.from_state.row(r) + i), d_k = load(t.from_state.row(r) + n.rows + i);
      const vec d_k_end = load(t.from_d_state.row(r) + i) * end;
      const vec key = load(t.qk_transposed.row(r) + n.rows + i);
      entering += d_q * load(t.qk_transposed.row(r) + i) + d_k * key;
      leaving += d_k_end * key;
      float *sum_q = t.d_qk_transposed.row(r) + i, *sum_k = sum_q + n.rows;
      store(sum_q, load(sum_q) + d_q);
      store(sum_k, load(sum_k) + (d_k + d_k_end));
    }
    for (index l = 0; l < lanes; ++l) {
      e.rows[i + l] += static_cast<double>(entering[l]);
      e.leaving[i + l] = static_cast<double>(leaving[l]);
    }
  }
  const float through_state = simd::dot(d_state.data, t.state.data, n.key * n.value);

  // g_t is part of G_i for i >= t, and of G_last - G_j for j < t.
  double after = static_cast<double>(t.d.whole * through_state), before = 0;
  for (index i = n.rows - 1; i >= 0; --i) e.rows[i] = after += e.rows[i] - e.cols[i];
  for (index i = 0; i < n.tokens; ++i) {
    a.d_g(begin + i, head) = static_cast<float>(e.rows[i] + before);
    before += e.leaving[i];
  }

  product_add(d_state, t.qk_transposed, t.outer, t.d.whole);
}

/// d_x = scale r (d - x_hat (x_hat . d)) with x_hat the unit vector, x = scale x_hat
void store_normalized_gradient(heads to, index begin, index head, cmat d, cmat x,
                               const float* norms, float scale, index tokens) {
  float along[gated_delta_chunk_max];
  row_dots(along, d, x);
  for (index t = 0; t < tokens; ++t) {
    const float *gradient = d.row(t), *normalized = x.row(t);
    const float part = along[t] / (scale * scale);
    float* result = to.at(begin + t, head);
    simd::for_each_vec(to.width, [&](index, auto get, auto put) {
      put(result, scale * norms[t] * (get(gradient) - get(normalized) * part));
    });
  }
}

void finish_key_head(const arguments& a, const backward_tiles& t, const chunk_sizes& n, index begin,
                     index key_head) {
  tile_transpose(t.d_rows, t.d_qk_transposed);
  const mat d_q = t.d_rows.row_range(0, n.rows), d_k = t.d_rows.row_range(n.rows, 2 * n.rows);
  for (index i = 0; i < n.rows; ++i) t.d_kk(i, i) = 0.0f;  // a token does not read its own write
  for (index b = 0; b < n.blocks(); ++b) {
    const index first = b * block_rows, end = first + block_rows;
    product_add(block(d_q, b), block(t.d_qk, b).col_range(0, end), t.k.row_range(0, end));
    product_add(block(d_k, b), block(t.d_kk, b).col_range(0, end), t.k.row_range(0, end));
    transposed_product_add(block(d_k, b), t.d_kk.row_range(first, n.rows).col_range(first, end),
                           t.k.row_range(first, n.rows));
    transposed_product_add(block(d_k, b), t.d_qk.row_range(first, n.rows).col_range(first, end),
                           t.q.row_range(first, n.rows));
  }
  store_normalized_gradient(a.d_q, begin, key_head, d_q, t.q, t.q_norms, a.query_scale(), n.tokens);
  store_normalized_gradient(a.d_k, begin, key_head, d_k, t.k, t.k_norms, 1.0f, n.tokens);
}

/// The key heads [key_begin, key_end), side by side from chunk to chunk.
void backward_key_heads(const arguments& a, index key_begin, index key_end, scratch& local) {
  const index tokens = a.q.tokens, ratio = a.ratio(), chunk = a.n.chunk_tokens();
  const index head_begin = key_begin * ratio, head_end = key_end * ratio;
  chunk_sizes n;
  n.key = padded(a.n.key_dim);
  n.value = padded(a.n.value_dim);
  const index one_state = a.n.key_dim * a.n.value_dim;
  const mat d_states = local.matrix((head_end - head_begin) * n.key, n.value);
  const auto d_state = [&](index head) {
    return d_states.row_range((head - head_begin) * n.key, (head - head_begin + 1) * n.key);
  };
  for (index head = head_begin; head < head_end; ++head)
    load_rows(d_state(head), a.d_state + head * one_state, a.n.value_dim, a.n.key_dim,
              a.n.value_dim);
  const index mark = local.mark();
  for (index begin = (blocks_of(tokens, chunk) - 1) * chunk; begin >= 0; begin -= chunk) {
    n.tokens = std::min(chunk, tokens - begin);
    n.rows = padded(n.tokens);
    local.rewind(mark);
    backward_tiles t(local, n.rows, n.key, n.value);
    const mat q_transposed = t.qk_transposed.col_range(0, n.rows),
              k_transposed = t.qk_transposed.col_range(n.rows, 2 * n.rows);
    for (index key_head = key_begin; key_head < key_end; ++key_head) {
      load_normalized(t.k, t.k_norms, a.k.at(begin, key_head), a.k.token_stride, n.tokens,
                      a.n.key_dim, 1.0f);
      load_normalized(t.q, t.q_norms, a.q.at(begin, key_head), a.q.token_stride, n.tokens,
                      a.n.key_dim, a.query_scale());
      tile_transpose(q_transposed, t.q);
      tile_transpose(k_transposed, t.k);
      lower_products(t.kk, t.k, k_transposed);
      lower_products(t.qk, t.q, k_transposed);
      std::fill_n(t.d_qk_transposed.data, n.key * 2 * n.rows, 0.0f);
      std::fill_n(t.d_kk.data, n.rows * n.rows, 0.0f);
      std::fill_n(t.d_qk.data, n.rows * n.rows, 0.0f);
      prefetch_rows(a.d_k.at(begin, key_head), a.d_k.token_stride, n.tokens, a.n.key_dim);
      prefetch_rows(a.d_q.at(begin, key_head), a.d_q.token_stride, n.tokens, a.n.key_dim);
      if (const index earlier = begin - chunk; earlier >= 0) {
        prefetch_rows(a.k.at(earlier, key_head), a.k.token_stride, chunk, a.n.key_dim);
        prefetch_rows(a.q.at(earlier, key_head), a.q.token_stride, chunk, a.n.key_dim);
      }
      for (index head = key_head * ratio; head < (key_head + 1) * ratio; ++head)
        backward_chunk_head(a, t, d_state(head), n, begin, head);
      finish_key_head(a, t, n, begin, key_head);
    }
  }
  for (index head = head_begin; head < head_end; ++head)
    store_rows(a.d_state + head * one_state, a.n.value_dim, d_state(head), a.n.key_dim,
               a.n.value_dim);
}

}  // namespace

void gated_delta_backward(heads d_q, heads d_k, heads d_v, mat d_g, mat d_beta,
                          std::span<float> d_state, cheads d_out,
                          std::span<const float> chunk_states, cheads q, cheads k, cheads v, cmat g,
                          cmat beta, gated_delta_dims n, executor& on) {
  LS_ASSERT(n.value_heads % n.key_heads == 0, "value heads split evenly over key heads");
  LS_ASSERT(static_cast<index>(d_state.size()) == n.state_floats(),
            "one state gradient a value head");
  LS_ASSERT(static_cast<index>(chunk_states.size()) >= gated_delta_saved_floats(q.tokens, n),
            "backward needs the states that forward left");
  const arguments a{d_q, d_k, d_v, d_g,  d_beta, d_state.data(), d_out, chunk_states.data(), q,
                    k,   v,   g,   beta, n};
  const index heads_of_item = key_heads_of_item(n, on.threads());
  on.parallel_for(n.key_heads / heads_of_item, [&](index item, scratch& local) {
    backward_key_heads(a, item * heads_of_item, (item + 1) * heads_of_item, local);
  });
}

}  // namespace longstraw::kernels
