#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/cpu/simd_math.hpp>

#include <algorithm>
#include <limits>

namespace longstraw::kernels {
namespace {

constexpr index token_block = 16;
constexpr float none = -std::numeric_limits<float>::infinity();

template <class F>
void for_tokens(index tokens, executor& on, F&& body) {
  on.parallel_for(blocks_of(tokens, token_block), [&](index block, scratch&) {
    const index end = std::min(tokens, (block + 1) * token_block);
    for (index t = block * token_block; t < end; ++t) body(t);
  });
}

/// weights [parts, n] of n heads, and their lse: first the parts' in the place of the weights, then
/// the merged ones. Relative to the largest part nothing overflows; where no part has a key nothing
/// is subtracted, so that no NaN arises.
void merge_weights(mat weights, float* lse) {
  simd::for_each_vec(weights.cols, [=](index, auto load, auto store) {
    simd::vec largest = simd::splat(none), total{};
    for (index p = 0; p < weights.rows; ++p) largest = simd::max(largest, load(weights.row(p)));
    const auto empty = largest == simd::splat(none);
    const simd::vec base = empty ? simd::vec{} : largest;
    for (index p = 0; p < weights.rows; ++p) {
      const simd::vec e = simd::exp(load(weights.row(p)) - base);
      store(weights.row(p), e);
      total += e;
    }
    const simd::vec share = 1.0f / (empty ? simd::splat(1.0f) : total);
    for (index p = 0; p < weights.rows; ++p) store(weights.row(p), load(weights.row(p)) * share);
    store(lse, empty ? largest : base + simd::log_from_one(total));
  });
}

/// out = sum over parts of weight (one column) times the part's out, in columns [column, end) of one
/// token. Parts without a key are left out entirely, so that they change no bit.
void weighted_sum(float* out, std::span<const attention_part> parts, mat weight, index token,
                  index column, index end) {
  constexpr index step = 4 * simd::lanes;  // a part's weight and row are looked up once for these
  const auto for_parts = [&](auto&& add) {
    for (index p = 0; p < weight.rows; ++p)
      if (const float w = weight(p, 0); w != 0.0f)
        add(parts[static_cast<std::size_t>(p)].out.row(token) + column, w);
  };
  for (; column + step <= end; column += step) {
    simd::vec sum[4] = {};
    for_parts([&](const float* from, float w) {
      for (index u = 0; u < 4; ++u) sum[u] += simd::load(from + u * simd::lanes) * w;
    });
    for (index u = 0; u < 4; ++u) simd::store(out + column + u * simd::lanes, sum[u]);
  }
  simd::for_each_vec(end - column, [&](index, auto load, auto store) {
    simd::vec sum{};
    for_parts([&](const float* from, float w) { sum += load(from) * w; });
    store(out + column, sum);
  });
}

}  // namespace

void attention_delta(mat delta, cmat d_out, cmat out, executor& on) {
  if (delta.empty()) return;
  LS_ASSERT(d_out.rows == delta.rows && out.rows == delta.rows && d_out.cols == out.cols &&
                out.cols % delta.cols == 0,
            "delta [tq, query_heads], d_out and out [tq, query_heads * head_dim] must agree");
  const index width = out.cols / delta.cols;
  for_tokens(delta.rows, on, [&](index t) {
    for (index h = 0; h < delta.cols; ++h) {
      const float* a = d_out.row(t) + h * width;
      const float* b = out.row(t) + h * width;
      simd::vec sum{};
      simd::for_each_vec(width, [&](index, auto load, auto) { sum += load(a) * load(b); });
      delta(t, h) = simd::sum(sum);
    }
  });
}

void attention_merge(mat out, mat lse, std::span<const attention_part> parts, executor& on) {
  if (lse.empty()) return;
  LS_ASSERT(out.rows == lse.rows && out.cols % lse.cols == 0,
            "out [tq, query_heads * head_dim] and lse [tq, query_heads] must agree");
  const index heads = lse.cols, width = out.cols / heads;
  const auto count = static_cast<index>(parts.size());
  on.parallel_for(blocks_of(lse.rows, token_block), [&](index block, scratch& local) {
    const index begin = block * token_block, tokens = std::min(token_block, lse.rows - begin);
    // Tokens have few heads: those of all the block's tokens fill vectors.
    const mat weights = local.matrix(count, tokens * heads), merged = local.matrix(tokens, heads);
    for (index p = 0; p < count; ++p)
      for (index t = 0; t < tokens; ++t)
        simd::copy_row(weights.row(p) + t * heads,
                       parts[static_cast<std::size_t>(p)].lse.row(begin + t), heads);
    merge_weights(weights, merged.data);
    for (index t = 0; t < tokens; ++t) {
      simd::copy_row(lse.row(begin + t), merged.row(t), heads);
      for (index h = 0; h < heads; ++h)
        weighted_sum(out.row(begin + t), parts, weights.col_range(t * heads + h, t * heads + h + 1),
                     begin + t, h * width, (h + 1) * width);
    }
  });
}

void sigmoid_gate_forward(heads out, cheads x, cheads gate, executor& on) {
  for_tokens(out.tokens, on, [&](index t) {
    for (index h = 0; h < out.heads; ++h) {
      float* o = out.at(t, h);
      const float *a = x.at(t, h), *g = gate.at(t, h);
      simd::for_each_vec(out.width, [&](index, auto load, auto store) {
        store(o, load(a) * simd::sigmoid(load(g)));
      });
    }
  });
}

void sigmoid_gate_backward(heads d_x, heads d_gate, cheads d_out, cheads x, cheads gate,
                           executor& on) {
  for_tokens(d_x.tokens, on, [&](index t) {
    for (index h = 0; h < d_x.heads; ++h) {
      float *da = d_x.at(t, h), *dg = d_gate.at(t, h);
      const float *d = d_out.at(t, h), *a = x.at(t, h), *g = gate.at(t, h);
      simd::for_each_vec(d_x.width, [&](index, auto load, auto store) {
        const simd::vec value = load(a), s = simd::sigmoid(load(g)), d_value = load(d) * s;
        store(da, d_value);
        store(dg, d_value * value * (1.0f - s));
      });
    }
  });
}

}  // namespace longstraw::kernels
