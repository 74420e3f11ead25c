#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/cpu/attention_tile.hpp>

#include <cmath>
#include <optional>

namespace longstraw::kernels {
namespace {

using namespace attention_tile;

// One kv head's block of queries against tiles of keys. Built anew for each item, in its scratch.
class query_side {
 public:
  query_side(const query_blocks& blocks, index begin, index end, index kv_head, cmat d_out,
             cmat lse, cmat delta, cheads q, attention_dims n, scratch& local)
      : n_(n),
        group_(blocks.group),
        rows_((end - begin) * blocks.group),
        width_(whole_vecs(n.head_dim)) {
    const index most = blocks.rows();
    packed_q_ = local.matrix(most, width_).row_range(0, rows_);
    packed_d_out_ = local.matrix(most, width_).row_range(0, rows_);
    d_q_ = local.matrix(most, width_).row_range(0, rows_);
    lse_ = local.floats(most).data();
    delta_ = local.floats(most).data();
    probability_ = local.floats(most * stride).data();
    d_score_ = local.floats(most * stride).data();
    packed_k_ = local.floats(key_block * width_).data();
    packed_kt_ = local.floats(key_block * width_).data();
    packed_vt_ = local.floats(key_block * width_).data();
    pack_queries(packed_q_, q.token_range(begin, end), kv_head, group_, n.scale * log2_e);
    pack_queries(packed_d_out_, split_heads(d_out, n.query_heads).token_range(begin, end), kv_head,
                 group_, 1.0f);
    std::fill_n(d_q_.data, rows_ * width_, 0.0f);
    for (index r = 0; r < rows_; ++r) {
      const index t = begin + r / group_, h = kv_head * group_ + r % group_;
      // A query that sees no key has lse -inf; +inf in its place makes every probability zero.
      lse_[r] = lse(t, h) == -std::numeric_limits<float>::infinity()
                    ? std::numeric_limits<float>::infinity()
                    : lse(t, h) * log2_e;
      delta_[r] = delta(t, h);
    }
  }

  /// Probabilities and gradients of scores (without the factor scale) of one tile, and its part of
  /// d_q.
  /// `next` is fetched meanwhile.
  void add_tile(const key_tile& tile, const key_tile& next) {
    pack_transposed(packed_kt_, tile.rows_of(tile.key), tile.count, n_.head_dim);
    pack_transposed(packed_vt_, tile.rows_of(tile.value), tile.count, n_.head_dim);
    pack_rows(packed_k_, tile.rows_of(tile.key), tile.count, tile.width, n_.head_dim);
    first_ = tile.first_row * group_;
    const mat p = probabilities(tile), d = d_scores(tile);
    panel_product<false>(p, as_left(packed_q_.row_range(first_, rows_)),
                         {packed_kt_, n_.head_dim, tile.width, false});
    mask({probability_, rows_, tile.width, stride}, tile, tile.first_row, group_);
    panel_product<false>(d, as_left(packed_d_out_.row_range(first_, rows_)),
                         {packed_vt_, n_.head_dim, tile.width, false});
    for (index r = 0; r < p.rows; ++r) {
      fetch_share(next, r, p.rows, n_.head_dim);
      const vec shift = simd::splat(lse_[first_ + r]), offset = simd::splat(delta_[first_ + r]);
      float* pr = p.row(r);
      float* dr = d.row(r);
      for (index j = 0; j < tile.width; j += lanes) {
        const vec weight = exp2(simd::load(pr + j) - shift);
        simd::store(pr + j, weight);
        simd::store(dr + j, weight * (simd::load(dr + j) - offset));
      }
    }
    panel_product<true>(d_q_.row_range(first_, rows_), as_left(d),
                        {packed_k_, tile.width, width_, true});
  }

  /// After add_tile: gradients of the tile's keys and values, added where wanted.
  void add_key_gradients(const key_tile& tile, mat d_tile) {
    const panels d_out{packed_d_out_.row(first_), rows_ - first_, width_, false};
    const panels queries{packed_q_.row(first_), rows_ - first_, width_, false};
    if (std::any_of(tile.d_value.begin(), tile.d_value.begin() + tile.count,
                    [](auto* d) { return d; }))
      add_rows(tile, tile.d_value.data(), d_tile, probabilities(tile), d_out, 1.0f);
    // The packed queries carry scale / log 2.
    if (std::any_of(tile.d_key.begin(), tile.d_key.begin() + tile.count, [](auto* d) { return d; }))
      add_rows(tile, tile.d_key.data(), d_tile, d_scores(tile), queries, ln_2);
  }

  /// d_q += what the tiles gave.
  void finish(heads d_q, index begin, index kv_head) const {
    add_to(d_q, begin, kv_head, group_, d_q_, n_.scale);
  }
  cmat d_queries() const { return d_q_; }

  static void add_to(heads d_q, index begin, index kv_head, index group, cmat sums, float factor) {
    for (index r = 0; r < sums.rows; ++r) {
      float* to = d_q.at(begin + r / group, kv_head * group + r % group);
      const float* from = sums.row(r);
      simd::for_each_vec(d_q.width, [&](index, auto load, auto store) {
        store(to, load(to) + load(from) * factor);
      });
    }
  }

 private:
  static constexpr index stride = key_block + lanes;  // off a power of two, for the cache's sets

  mat probabilities(const key_tile& tile) const {
    return mat(probability_, rows_, tile.width, stride).row_range(first_, rows_);
  }
  mat d_scores(const key_tile& tile) const {
    return mat(d_score_, rows_, tile.width, stride).row_range(first_, rows_);
  }

  void add_rows(const key_tile& tile, float* const* to, mat d_tile, cmat left, panels right,
                float factor) {
    const mat sums = d_tile.row_range(0, tile.count);
    for (index c = 0; c < width_; c += panel) {
      const index end = std::min(width_, c + panel);
      tile_product(sums.col_range(c, end), as_left_transposed(left),
                   cmat(right.data + c, right.rows, end - c, width_));
    }
    for (index j = 0; j < tile.count; ++j) {
      if (!to[j]) continue;
      float* d = to[j];
      const float* from = sums.row(j);
      simd::for_each_vec(n_.head_dim, [&](index, auto load, auto store) {
        store(d, load(d) + load(from) * factor);
      });
    }
  }

  attention_dims n_;
  index group_, rows_, width_;
  index first_ = 0;  // row of the first query that sees a key of the last tile
  mat packed_q_, packed_d_out_, d_q_;
  float *lse_, *delta_, *probability_, *d_score_, *packed_k_, *packed_kt_, *packed_vt_;
};

}  // namespace

void attention_backward(heads d_q, std::span<const kv_piece_gradient> d_keys, cmat d_out, cmat lse,
                        cmat delta, cheads q, index q_position, std::span<const kv_piece> keys,
                        attention_dims n, executor& on) {
  LS_ASSERT(n.kv_heads > 0 && n.query_heads % n.kv_heads == 0 && q.heads == n.query_heads &&
                q.width == n.head_dim && d_q.tokens == q.tokens && d_q.heads == q.heads,
            "query heads must be a multiple of kv heads");
  LS_ASSERT(d_keys.empty() || d_keys.size() == keys.size(),
            "a piece has one place for its gradient");
  const query_blocks blocks(q.tokens, n);
  const index width = whole_vecs(n.head_dim);
  auto block_end = [&](index block) { return std::min(q.tokens, (block + 1) * blocks.tokens); };

  // Frozen keys: blocks of queries are independent. With few of them keys are cut into spans, whose
  // results are kept apart and added in order.
  const index frozen = key_cursor::tokens(keys, d_keys, pieces::frozen);
  if (frozen > 0 && blocks.count > 0) {
    const index part_floats = blocks.count * n.kv_heads * blocks.rows() * width;
    const index spans =
        std::min({blocks_of(16, blocks.count * n.kv_heads), std::max<index>(1, frozen / 1024),
                  std::max<index>(1, (index{1} << 19) / part_floats)});
    const index span_tokens = blocks_of(blocks_of(frozen, key_block), spans) * key_block;
    const index mark = on.local().mark();
    std::span<float> parts;
    if (spans > 1) parts = on.local().floats(spans * part_floats);
    on.parallel_for(blocks.count * n.kv_heads * spans, [&](index item, scratch& local) {
      const index block = blocks.count - 1 - item / (n.kv_heads * spans);
      const index kv_head = item / spans % n.kv_heads, span = item % spans;
      const index begin = block * blocks.tokens, end = block_end(block);
      query_side side(blocks, begin, end, kv_head, d_out, lse, delta, q, n, local);
      key_cursor cursor(keys, d_keys, pieces::frozen, kv_head, span * span_tokens,
                        std::min(frozen, (span + 1) * span_tokens), q_position + begin,
                        q_position + end - 1);
      for_tiles(cursor,
                [&](const key_tile& tile, const key_tile& next) { side.add_tile(tile, next); });
      if (spans == 1) {
        side.finish(d_q, begin, kv_head);
      } else {
        const cmat sums = side.d_queries();
        std::copy_n(
            sums.data, sums.rows * width,
            parts.data() + ((block * n.kv_heads + kv_head) * spans + span) * blocks.rows() * width);
      }
    });
    if (spans > 1) {
      on.parallel_for(blocks.count * n.kv_heads, [&](index item, scratch&) {
        const index block = item / n.kv_heads, kv_head = item % n.kv_heads;
        const index begin = block * blocks.tokens, rows = (block_end(block) - begin) * blocks.group;
        for (index span = 0; span < spans; ++span)
          query_side::add_to(
              d_q, begin, kv_head, blocks.group,
              {parts.data() + (item * spans + span) * blocks.rows() * width, rows, width}, n.scale);
      });
      on.local().rewind(mark);
    }
  }

  // Wanted keys: a span of keys and a block of queries write to both sides. They meet in rounds: in
  // round s span j meets block (j + s) mod rounds, so no two items of a round share a side, and
  // each sum is formed in the order of the rounds.
  const index wanted = key_cursor::tokens(keys, d_keys, pieces::wanted);
  if (wanted == 0 || blocks.count == 0) return;
  const index span_tokens = std::clamp<index>(wanted / 16 / key_block, 1, 4) * key_block;
  const index spans = blocks_of(wanted, span_tokens);
  const index rounds = std::max(spans, blocks.count);
  for (index round = 0; round < rounds; ++round)
    on.parallel_for(spans * n.kv_heads, [&](index item, scratch& local) {
      const index span = item / n.kv_heads, kv_head = item % n.kv_heads;
      const index block = (span + round) % rounds;
      if (block >= blocks.count) return;
      const index begin = block * blocks.tokens, end = block_end(block);
      key_cursor cursor(keys, d_keys, pieces::wanted, kv_head, span * span_tokens,
                        std::min(wanted, (span + 1) * span_tokens), q_position + begin,
                        q_position + end - 1);
      std::optional<query_side> side;
      mat d_tile;
      for_tiles(cursor, [&](const key_tile& tile, const key_tile& next) {
        if (!side) {  // many items see no key: they cost nothing
          side.emplace(blocks, begin, end, kv_head, d_out, lse, delta, q, n, local);
          d_tile = local.matrix(key_block, width);
        }
        side->add_tile(tile, next);
        side->add_key_gradients(tile, d_tile);
      });
      if (side) side->finish(d_q, begin, kv_head);
    });
}

}  // namespace longstraw::kernels
