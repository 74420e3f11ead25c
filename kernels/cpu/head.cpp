#include <longstraw/kernels/cpu/matmul.hpp>
#include <longstraw/kernels/head.hpp>

#include <cmath>

namespace longstraw::kernels {
namespace {

using simd::lanes;
using simd::vec;

constexpr index logits_floats = index{4} << 20;  // 16 MiB
constexpr index rows_max = 256;
// Columns of one item, and of one partial sum. Fixed, so that a row's sums do not depend on how
// many rows or columns are worked on at once.
constexpr index column_block = 512;

// A product with the head's weight reads all of it, so as many rows as possible share one reading:
// where a whole block of logits would be too large, the vocabulary is cut into tiles.
struct head_plan {
  index row_block = 0;
  index tile = 0;
  head_plan(index tokens, index vocabulary) {
    row_block = std::min(tokens, rows_max);
    const index columns =
        logits_floats / std::max<index>(1, row_block) / column_block * column_block;
    tile = tokens <= head_block_tokens(vocabulary) ? vocabulary : std::min(vocabulary, columns);
  }
};

// Sums over some columns of a row of logits, relative to their maximum.
struct row_sums {
  double maximum = -std::numeric_limits<double>::infinity();
  double sum = 0;       // of e^(z - maximum)
  double weighted = 0;  // of e^(z - maximum) (z - maximum)

  void join(const row_sums& b) {
    if (!(b.maximum > -std::numeric_limits<double>::infinity())) {
      sum += b.sum;  // zero, or NaN that must show
      return;
    }
    if (b.maximum > maximum) {
      const double shift = maximum - b.maximum;  // -inf before the first part
      const double factor = std::exp(shift);
      weighted = factor > 0 ? factor * (weighted + shift * sum) : 0;
      sum *= factor;
      maximum = b.maximum;
      sum += b.sum;
      weighted += b.weighted;
    } else {
      const double shift = b.maximum - maximum, factor = std::exp(shift);
      sum += factor * b.sum;
      weighted += factor * (b.weighted + shift * b.sum);
    }
  }
};

// At most 512 terms of at most 1 a partial sum: float lanes of 32 terms each, then double.
row_sums sums_of(const float* z, index n) {
  vec high = simd::splat(-std::numeric_limits<float>::infinity());
  index i = 0;
  for (; i + lanes <= n; i += lanes) high = simd::max(simd::load(z + i), high);
  float maximum = simd::largest(high);
  for (index j = i; j < n; ++j) maximum = std::max(maximum, z[j]);
  vec sum{}, weighted{};
  for (index j = 0; j < i; j += lanes) {
    const vec x = simd::load(z + j) - maximum, e = simd::exp(x);
    sum += e;
    weighted += e * x;
  }
  row_sums s{maximum};
  float lane[2][lanes];
  simd::store(lane[0], sum);
  simd::store(lane[1], weighted);
  for (index j = 0; j < lanes; ++j) s.sum += lane[0][j], s.weighted += lane[1][j];
  for (; i < n; ++i) {
    const double x = double{z[i]} - maximum, e = std::exp(x);
    s.sum += e;
    s.weighted += e * x;
  }
  return s;
}

void scale_rows(mat z, float factor) {
  if (factor == 1.0f) return;
  for (index r = 0; r < z.rows; ++r)
    simd::for_each_vec(
        z.cols, [&](index, auto load, auto store) { store(z.row(r), load(z.row(r)) * factor); });
}

void logits_of(mat z, cmat hidden, cmat weight, float temperature, scratch& local) {
  matmul(z, as_left(hidden), as_left_transposed(weight), hidden.cols, into::write, local);
  scale_rows(z, 1.0f / temperature);
}

}  // namespace

index head_block_tokens(index vocabulary) {
  return std::clamp<index>(logits_floats / std::max<index>(vocabulary, 1), 1, rows_max);
}

index head_workspace_floats(index tokens, index vocabulary) {
  const head_plan plan(tokens, vocabulary);
  return plan.row_block * plan.tile;
}

void head_forward(std::span<float> logps, std::span<float> entropies, std::span<float> lse,
                  cmat hidden, cmat weight, std::span<const token_id> targets, float temperature,
                  std::span<float> workspace, executor& on) {
  const index tokens = hidden.rows, vocabulary = weight.rows;
  const head_plan plan(tokens, vocabulary);
  LS_ASSERT(static_cast<index>(logps.size()) == tokens && logps.size() == entropies.size() &&
                logps.size() == lse.size() && logps.size() == targets.size(),
            "results and targets have one value a token");
  LS_ASSERT(static_cast<index>(workspace.size()) >= plan.row_block * plan.tile,
            "head_workspace_floats says how large the workspace is");
  const index mark = on.local().mark();
  const index blocks_max = blocks_of(plan.tile, column_block);
  const index doubles_as_floats = static_cast<index>(sizeof(row_sums) / sizeof(float));
  row_sums* parts = reinterpret_cast<row_sums*>(
      on.local().floats(plan.row_block * blocks_max * doubles_as_floats).data());
  row_sums* totals =
      reinterpret_cast<row_sums*>(on.local().floats(plan.row_block * doubles_as_floats).data());

  for (index begin = 0; begin < tokens; begin += plan.row_block) {
    const index rows = std::min(plan.row_block, tokens - begin);
    const cmat block_hidden = hidden.row_range(begin, begin + rows);
    std::fill_n(totals, rows, row_sums{});
    for (index v = 0; v < vocabulary; v += plan.tile) {
      const mat z(workspace.data(), rows, std::min(plan.tile, vocabulary - v));
      const index blocks = blocks_of(z.cols, column_block);
      on.parallel_for(blocks, [&](index b, scratch& local) {
        const index c = b * column_block, end = std::min(z.cols, c + column_block);
        logits_of(z.col_range(c, end), block_hidden, weight.row_range(v + c, v + end), temperature,
                  local);
        for (index r = 0; r < rows; ++r) parts[r * blocks + b] = sums_of(z.row(r) + c, end - c);
      });
      for (index r = 0; r < rows; ++r) {
        for (index b = 0; b < blocks; ++b) totals[r].join(parts[r * blocks + b]);
        const auto at = static_cast<std::size_t>(begin + r);
        if (targets[at] >= v && targets[at] < v + z.cols) logps[at] = z(r, targets[at] - v);
      }
    }
    for (index r = 0; r < rows; ++r) {
      const auto at = static_cast<std::size_t>(begin + r);
      const double log_sum = std::log(totals[r].sum), full = totals[r].maximum + log_sum;
      const double logp = double{logps[at]} - full;
      logps[at] = static_cast<float>(logp > 0 ? 0.0 : logp);
      entropies[at] = static_cast<float>(log_sum - totals[r].weighted / totals[r].sum);
      lse[at] = static_cast<float>(full);
    }
  }
  on.local().rewind(mark);
}

void head_backward(mat d_hidden, mat d_weight, std::span<const float> d_logps,
                   std::span<const float> lse, cmat hidden, cmat weight,
                   std::span<const token_id> targets, float temperature, std::span<float> workspace,
                   bool logits_kept, executor& on) {
  const index tokens = hidden.rows, vocabulary = weight.rows, width = hidden.cols;
  const head_plan plan(tokens, vocabulary);
  LS_ASSERT(static_cast<index>(d_logps.size()) == tokens && d_logps.size() == lse.size() &&
                d_logps.size() == targets.size(),
            "gradients and targets have one value a token");
  LS_ASSERT(static_cast<index>(workspace.size()) >= plan.row_block * plan.tile,
            "head_workspace_floats says how large the workspace is");
  LS_ASSERT(!logits_kept || tokens <= head_block_tokens(vocabulary),
            "logits of more than one block are not kept");
  const float factor = 1.0f / temperature;
  for (index begin = 0; begin < tokens; begin += plan.row_block) {
    const index rows = std::min(plan.row_block, tokens - begin);
    const cmat block_hidden = hidden.row_range(begin, begin + rows);
    const mat block_d = d_hidden.row_range(begin, begin + rows);
    for (index v = 0; v < vocabulary; v += plan.tile) {
      const mat z(workspace.data(), rows, std::min(plan.tile, vocabulary - v));
      // Logits become their gradient in place, and the weight's rows of this item get theirs.
      on.parallel_for(blocks_of(z.cols, column_block), [&](index b, scratch& local) {
        const index c = b * column_block, end = std::min(z.cols, c + column_block);
        const mat part = z.col_range(c, end);
        if (!logits_kept)
          logits_of(part, block_hidden, weight.row_range(v + c, v + end), temperature, local);
        for (index r = 0; r < rows; ++r) {
          const auto at = static_cast<std::size_t>(begin + r);
          const float d = d_logps[at] * factor, shift = lse[at];
          float* p = part.row(r);
          simd::for_each_vec(part.cols, [&](index, auto load, auto store) {
            store(p, -d * simd::exp(load(p) - shift));
          });
          const index target = targets[at] - (v + c);
          if (target >= 0 && target < part.cols) p[target] += d;
        }
        matmul(d_weight.row_range(v + c, v + end), as_left_transposed(part), as_left(block_hidden),
               rows, into::add, local);
      });
      const index columns = 128;
      on.parallel_for(blocks_of(width, columns), [&](index b, scratch& local) {
        const index c = b * columns, end = std::min(width, c + columns);
        matmul(block_d.col_range(c, end), as_left(z),
               as_left(weight.row_range(v, v + z.cols).col_range(c, end)), z.cols,
               v == 0 ? into::write : into::add, local);
      });
    }
  }
}

void head_logits(mat logits, cmat hidden, cmat weight, executor& on) {
  linear_forward(logits, hidden, weight, {}, into::write, on);
}

}  // namespace longstraw::kernels
