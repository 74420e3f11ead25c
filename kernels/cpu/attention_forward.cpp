#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/cpu/attention_few_rows.hpp>

#include <cmath>

namespace longstraw::kernels {
namespace {

using namespace attention_tile;

// Few query blocks leave threads idle while keys are many: then keys are cut into spans, and the
// spans' results are merged. Everything depends on shapes only.
struct forward_plan {
  query_blocks blocks;
  index spans = 1;
  index span_tokens = 0;
  index padded_dim = 0;

  forward_plan(index queries, index key_tokens, attention_dims n) : blocks(queries, n) {
    padded_dim = whole_vecs(n.head_dim);
    const index items = blocks.count * n.kv_heads;
    const index partial_floats = std::max<index>(1, queries * n.query_heads * (padded_dim + 2));
    spans = std::min({blocks_of(items_wanted, std::max<index>(items, 1)),
                      std::max<index>(1, key_tokens / span_tokens_min),
                      std::max<index>(1, partial_floats_max / partial_floats)});
    span_tokens = blocks_of(blocks_of(key_tokens, key_block), spans) * key_block;
  }

  static constexpr index items_wanted = 16;
  static constexpr index span_tokens_min = 1024;
  static constexpr index partial_floats_max = index{1} << 19;
};

// Running maximum and sum of one row of scores; the sum stays spread over lanes until the end.
struct running {
  float* maximum;  // [rows]
  float* sums;     // [rows, lanes]
};

// scores become probabilities relative to the running maximum; earlier results are rescaled to it.
void soften(mat scores, mat out, running at, const key_tile& next, index head_dim) {
  for (index r = 0; r < scores.rows; ++r) {
    fetch_share(next, r, scores.rows, head_dim);
    float* s = scores.row(r);
    vec high = simd::load(s);
    for (index j = lanes; j < scores.cols; j += lanes) high = simd::max(simd::load(s + j), high);
    const float before = at.maximum[r];
    const float maximum = std::max(before, simd::largest(high));
    vec sum = simd::load(at.sums + r * lanes);
    if (maximum > before && before > -std::numeric_limits<float>::infinity()) {
      const float factor = std::exp2(before - maximum);
      sum *= factor;
      float* o = out.row(r);
      for (index c = 0; c < out.cols; c += lanes) simd::store(o + c, simd::load(o + c) * factor);
    }
    at.maximum[r] = maximum;
    // A row that has seen no key yet: any finite number in place of -inf gives probabilities of
    // zero.
    const vec shift =
        simd::splat(maximum == -std::numeric_limits<float>::infinity() ? 0.0f : maximum);
    for (index j = 0; j < scores.cols; j += lanes) {
      const vec p = exp2(simd::load(s + j) - shift);
      sum += p;
      simd::store(s + j, p);
    }
    simd::store(at.sums + r * lanes, sum);
  }
}

}  // namespace

void attention_forward(mat out, mat lse, cheads q, index q_position, std::span<const kv_piece> keys,
                       attention_dims n, executor& on) {
  LS_ASSERT(n.kv_heads > 0 && n.query_heads % n.kv_heads == 0 && q.heads == n.query_heads &&
                q.width == n.head_dim,
            "query heads must be a multiple of kv heads");
  LS_ASSERT(out.rows == q.tokens && out.cols == n.query_heads * n.head_dim &&
                lse.rows == q.tokens && lse.cols == n.query_heads,
            "out [tq, query_heads * head_dim] and lse [tq, query_heads] must fit q");
  const index key_tokens = key_cursor::tokens(keys, {}, pieces::all);
  const forward_plan plan(q.tokens, key_tokens, n);
  const query_blocks& blocks = plan.blocks;
  const index group = blocks.group, rows_max = blocks.rows(), width = plan.padded_dim;

  // Results of spans: [span][query head][tq] rows of out, then of lse.
  const index mark = on.local().mark();
  const index span_rows = q.tokens * n.query_heads;
  std::span<float> part_out, part_lse;
  if (plan.spans > 1) {
    part_out = on.local().floats(plan.spans * span_rows * width);
    part_lse = on.local().floats(plan.spans * span_rows);
  }

  const index items = blocks.count * n.kv_heads * plan.spans;
  on.parallel_for(items, [&](index item, scratch& local) {
    // Late blocks see the most keys: they go first, so that no thread starts a long item at the
    // end.
    const index block = blocks.count - 1 - item / (n.kv_heads * plan.spans);
    // All heads of a span go one after the other: what lies between their keys comes along anyway.
    const index span = item / n.kv_heads % plan.spans, kv_head = item % n.kv_heads;
    const index begin = block * blocks.tokens, end = std::min(q.tokens, begin + blocks.tokens);
    const index rows = (end - begin) * group;

    const mat packed_q = local.matrix(rows_max, width).row_range(0, rows);
    const mat sums = local.matrix(rows_max, width).row_range(0, rows);
    // A row's length off a power of two keeps its column from falling into few cache sets.
    const index score_stride = key_block + lanes;
    float* score_data = local.floats(rows_max * score_stride).data();
    float* packed_k = local.floats(key_block * width).data();
    float* packed_v = local.floats(key_block * width).data();
    const running state{local.floats(rows_max).data(), local.floats(rows_max * lanes).data()};
    pack_queries(packed_q, q.token_range(begin, end), kv_head, group, n.scale * log2_e);
    std::fill_n(sums.data, rows * width, 0.0f);
    std::fill_n(state.maximum, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(state.sums, rows * lanes, 0.0f);

    key_cursor cursor(keys, {}, pieces::all, kv_head, span * plan.span_tokens,
                      std::min(key_tokens, (span + 1) * plan.span_tokens), q_position + begin,
                      q_position + end - 1);
    for_tiles(cursor, [&](const key_tile& tile, const key_tile& next) {
      const index r0 = tile.first_row * group;
      const mat scores(score_data, rows, tile.width, score_stride);
      const mat seen = scores.row_range(r0, rows), results = sums.row_range(r0, rows);
      const cmat seeing = packed_q.row_range(r0, rows);
      const running seen_state{state.maximum + r0, state.sums + r0 * lanes};
      if (rows <= few_rows_max) {
        few_rows_scores(seen, seeing, tile, next, n.head_dim);
        mask(scores, tile, tile.first_row, group);
        soften(seen, results, seen_state, key_tile{}, n.head_dim);
        few_rows_add_values(results, seen, tile, next, n.head_dim);
        return;
      }
      pack_transposed(packed_k, tile.rows_of(tile.key), tile.count, n.head_dim);
      pack_rows(packed_v, tile.rows_of(tile.value), tile.count, tile.width, n.head_dim);
      panel_product<false>(seen, as_left(seeing), {packed_k, n.head_dim, tile.width, false});
      mask(scores, tile, tile.first_row, group);
      soften(seen, results, seen_state, next, n.head_dim);
      panel_product<true>(results, as_left(seen), {packed_v, tile.width, width, true});
    });

    for (index r = 0; r < rows; ++r) {
      const index t = begin + r / group, h = kv_head * group + r % group;
      const float sum = simd::sum(simd::load(state.sums + r * lanes));
      const bool empty = state.maximum[r] == -std::numeric_limits<float>::infinity();
      const float inverse = empty ? 0.0f : 1.0f / sum;
      const float row_lse =
          empty ? -std::numeric_limits<float>::infinity()
                : static_cast<float>((double{state.maximum[r]} + std::log2(double{sum})) *
                                     std::numbers::ln2);
      const float* from = sums.row(r);
      float* to = out.row(t) + h * n.head_dim;
      if (plan.spans > 1) {
        const index row = span * span_rows + t * n.query_heads + h;
        to = part_out.data() + row * width;
        part_lse[static_cast<std::size_t>(row)] = row_lse;
      } else {
        lse(t, h) = row_lse;
      }
      simd::for_each_vec(n.head_dim,
                         [&](index, auto load, auto store) { store(to, load(from) * inverse); });
    }
  });

  if (plan.spans > 1) {
    on.parallel_for(blocks_of(span_rows, 64), [&](index item, scratch&) {
      for (index row = item * 64; row < std::min(span_rows, (item + 1) * 64); ++row) {
        const index t = row / n.query_heads, h = row % n.query_heads;
        float largest = -std::numeric_limits<float>::infinity();
        for (index s = 0; s < plan.spans; ++s)
          largest = std::max(largest, part_lse[static_cast<std::size_t>(s * span_rows + row)]);
        const double shift = std::isinf(largest) ? 0.0 : largest;
        double total = 0;
        for (index s = 0; s < plan.spans; ++s)
          total += std::exp(part_lse[static_cast<std::size_t>(s * span_rows + row)] - shift);
        const double merged =
            total == 0 ? -std::numeric_limits<double>::infinity() : shift + std::log(total);
        lse(t, h) = static_cast<float>(merged);
        float* to = out.row(t) + h * n.head_dim;
        std::fill_n(to, n.head_dim, 0.0f);
        if (total == 0) continue;
        for (index s = 0; s < plan.spans; ++s) {
          const float weight = static_cast<float>(
              std::exp(part_lse[static_cast<std::size_t>(s * span_rows + row)] - merged));
          const float* from = part_out.data() + (s * span_rows + row) * width;
          simd::for_each_vec(n.head_dim, [&](index, auto load, auto store) {
            store(to, load(to) + load(from) * weight);
          });
        }
      }
    });
    on.local().rewind(mark);
  }
}

}  // namespace longstraw::kernels
