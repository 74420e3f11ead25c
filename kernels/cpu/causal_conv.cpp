#include <longstraw/kernels/causal_conv.hpp>
#include <longstraw/kernels/cpu/simd_math.hpp>

#include <algorithm>
#include <array>

namespace longstraw::kernels {
namespace {

using simd::for_each_vec;
using simd::vec;

// Channels of an item: the rows that a step of four tokens touches, and the taps, stay in the
// first-level cache.
constexpr index item_channels = 512;
// Tokens that pass through the registers together.
constexpr int step_tokens = 4;
constexpr int kernel_max = 8;

/// Input number `t` of the pass, from channel `begin`; t < 0 counts back into the tail.
const float* input_row(cmat x, cmat tail, index t, index begin) {
  return (t >= 0 ? x.row(t) : tail.row(tail.rows + t)) + begin;
}

/// taps [kernel, channels of the item]: the weight, transposed so that a vector holds neighbouring
/// channels.
mat load_taps(cmat weight, index begin, index end, scratch& local) {
  const mat taps = local.matrix(weight.cols, end - begin);
  for (index c = begin; c < end; ++c)
    for (index j = 0; j < weight.cols; ++j) taps(j, c - begin) = weight(c, j);
  return taps;
}

/// Calls f(integral constant) with the kernel size as a compile-time number.
template <class F>
void with_kernel(index kernel, F&& f) {
  auto pick = [&]<int... K>(std::integer_sequence<int, K...>) {
    ((kernel == K + 1 ? f(std::integral_constant<int, K + 1>{}) : void()), ...);
  };
  LS_ASSERT(kernel >= 1 && kernel <= kernel_max, "a convolution has 1 to 8 taps");
  pick(std::make_integer_sequence<int, kernel_max>{});
}

template <int Kernel, int Tokens>
void forward_step(const std::array<float*, Tokens>& out,
                  const std::array<const float*, Kernel - 1 + Tokens>& in, cmat taps) {
  for_each_vec(taps.cols, [&](index, auto get, auto put) {
    vec x[Kernel - 1 + Tokens], w[Kernel];
    for (int i = 0; i < Kernel - 1 + Tokens; ++i) x[i] = get(in[i]);
    for (int j = 0; j < Kernel; ++j) w[j] = get(taps.row(j));
    for (int s = 0; s < Tokens; ++s) {
      vec pre{};
      for (int j = 0; j < Kernel; ++j) pre += w[j] * x[s + j];
      put(out[s], simd::silu(pre));
    }
  });
}

// What a walk down the tokens of one item carries from step to step.
struct carried {
  mat d_pre;     // [kernel - 1, channels] gradients before SiLU of the tokens just passed, oldest
                 // first
  mat d_weight;  // [kernel, channels] sums of this item
};

// The rows of one token of the walk; null where there is none.
struct token_rows {
  const float* d_out = nullptr;  // null: a token past the end, whose gradient is zero
  float* d_x =
      nullptr;  // row of the input kernel - 1 before this token: with this token it is complete
  const float* d_kept = nullptr;  // gradient that enters that input through the next tail
};

template <int Kernel, int Tokens, bool SumWeight>
void backward_step(const carried& carry, const std::array<token_rows, Tokens>& rows,
                   const std::array<const float*, Kernel - 1 + Tokens>& in, cmat taps) {
  for_each_vec(taps.cols, [&](index, auto get, auto put) {
    vec x[Kernel - 1 + Tokens] = {}, w[Kernel], d_pre[Kernel - 1 + Tokens], sums[Kernel];
    for (int j = 0; j < Kernel; ++j) w[j] = get(taps.row(j));
    for (int i = 0; i < Kernel - 1; ++i) d_pre[i] = get(carry.d_pre.row(i));
    if constexpr (SumWeight)
      for (int j = 0; j < Kernel; ++j) sums[j] = get(carry.d_weight.row(j));
    if (rows[0].d_out)
      for (int i = 0; i < Kernel - 1 + Tokens; ++i) x[i] = get(in[i]);
    for (int s = 0; s < Tokens; ++s) {
      vec& d = d_pre[Kernel - 1 + s];
      d = vec{};
      if (rows[s].d_out) {
        vec pre{};
        for (int j = 0; j < Kernel; ++j) pre += w[j] * x[s + j];
        d = get(rows[s].d_out) * simd::silu_slope(pre, simd::sigmoid(pre));
        if constexpr (SumWeight)
          for (int j = 0; j < Kernel; ++j) sums[j] += d * x[s + j];
      }
      if (rows[s].d_x) {
        vec d_input = rows[s].d_kept ? get(rows[s].d_kept) : vec{};
        for (int j = 0; j < Kernel; ++j) d_input += w[j] * d_pre[Kernel - 1 + s - j];
        put(rows[s].d_x, d_input);
      }
    }
    for (int i = 0; i < Kernel - 1; ++i) put(carry.d_pre.row(i), d_pre[Tokens + i]);
    if constexpr (SumWeight)
      for (int j = 0; j < Kernel; ++j) put(carry.d_weight.row(j), sums[j]);
  });
}

struct backward_arguments {
  mat d_x, d_tail;
  cmat d_out, d_next_tail, x, tail;
};

/// The walk of one item: tokens [begin, end), channels from `channel`. An input's gradient is
/// complete once kernel - 1 further tokens have passed, so the walk goes on that far into the next
/// item's tokens, without summing weights there.
template <int Kernel>
void backward_walk(const backward_arguments& a, cmat taps, const carried& carry, index begin,
                   index end, index channel) {
  const index tokens = a.x.rows, width = taps.cols;
  auto rows_of = [&](index t) {
    token_rows r;
    if (t < tokens) r.d_out = a.d_out.row(t) + channel;
    const index source = t - (Kernel - 1);
    if (source >= begin) r.d_x = a.d_x.row(source) + channel;
    if (source < 0 && begin == 0 && !a.d_tail.empty())
      r.d_x = a.d_tail.row(Kernel - 1 + source) + channel;
    const index kept = source - (tokens - (Kernel - 1));
    if (kept >= 0 && !a.d_next_tail.empty()) r.d_kept = a.d_next_tail.row(kept) + channel;
    return r;
  };
  auto walk = [&]<int Tokens, bool SumWeight>(index t) {
    std::array<token_rows, Tokens> rows;
    std::array<const float*, Kernel - 1 + Tokens> in{};
    for (int s = 0; s < Tokens; ++s) rows[s] = rows_of(t + s);
    for (int i = 0; i < Kernel - 1 + Tokens; ++i)
      if (t - (Kernel - 1) + i < tokens)
        in[i] = input_row(a.x, a.tail, t - (Kernel - 1) + i, channel);
    backward_step<Kernel, Tokens, SumWeight>(carry, rows, in, taps);
  };
  for (index i = 0; i < Kernel - 1; ++i) std::fill_n(carry.d_pre.row(i), width, 0.0f);
  for (index j = 0; j < Kernel; ++j) std::fill_n(carry.d_weight.row(j), width, 0.0f);
  index t = begin;
  for (; t + step_tokens <= end; t += step_tokens) walk.template operator()<step_tokens, true>(t);
  for (; t < end; ++t) walk.template operator()<1, true>(t);
  for (; t < end + Kernel - 1; ++t) walk.template operator()<1, false>(t);
}

}  // namespace

void causal_conv_forward(mat out, cmat x, cmat tail, cmat weight, executor& on) {
  constexpr index item_tokens = 128;
  const index channel_blocks = blocks_of(x.cols, item_channels);
  with_kernel(weight.cols, [&](auto kernel) {
    constexpr int k = kernel;
    on.parallel_for(blocks_of(x.rows, item_tokens) * channel_blocks,
                    [&](index item, scratch& local) {
                      const index begin = item % channel_blocks * item_channels;
                      const index end = std::min(x.cols, begin + item_channels);
                      const mat taps = load_taps(weight, begin, end, local);
                      auto step = [&]<int Tokens>(index t) {
                        std::array<float*, Tokens> to;
                        std::array<const float*, k - 1 + Tokens> in;
                        for (int s = 0; s < Tokens; ++s) to[s] = out.row(t + s) + begin;
                        for (int i = 0; i < k - 1 + Tokens; ++i)
                          in[i] = input_row(x, tail, t - (k - 1) + i, begin);
                        forward_step<k, Tokens>(to, in, taps);
                      };
                      index t = item / channel_blocks * item_tokens;
                      const index last = std::min(x.rows, t + item_tokens);
                      for (; t + step_tokens <= last; t += step_tokens)
                        step.template operator()<step_tokens>(t);
                      for (; t < last; ++t) step.template operator()<1>(t);
                    });
  });
}

void causal_conv_next_tail(mat next_tail, cmat x, cmat tail) {
  // Oldest first: when both tails are one memory, a row is read before it is overwritten.
  for (index r = 0; r < next_tail.rows; ++r) {
    const float* from = input_row(x, tail, x.rows - tail.rows + r, 0);
    if (from != next_tail.row(r)) std::copy_n(from, next_tail.cols, next_tail.row(r));
  }
}

void causal_conv_backward(mat d_x, mat d_tail, mat d_weight, cmat d_out, cmat d_next_tail, cmat x,
                          cmat tail, cmat weight, executor& on) {
  // Token blocks sum the weight's gradient apart; at most 16, so that their sums fit the scratch
  // memory. An empty pass still has one block: it hands d_next_tail on to d_tail.
  const index item_tokens = std::max<index>(128, blocks_of(x.rows, 16));
  const index token_blocks = std::max<index>(1, blocks_of(x.rows, item_tokens));
  const index channel_blocks = blocks_of(x.cols, item_channels), kernel_size = weight.cols;
  scratch& caller = on.local();
  const index mark = caller.mark();
  const mat sums = caller.matrix(token_blocks * kernel_size, x.cols);
  with_kernel(kernel_size, [&](auto kernel) {
    on.parallel_for(token_blocks * channel_blocks, [&](index item, scratch& local) {
      const index block = item / channel_blocks, channel = item % channel_blocks * item_channels;
      const index channel_end = std::min(x.cols, channel + item_channels);
      const mat taps = load_taps(weight, channel, channel_end, local);
      const carried carry{local.matrix(kernel_size - 1, channel_end - channel),
                          sums.row_range(block * kernel_size, (block + 1) * kernel_size)
                              .col_range(channel, channel_end)};
      backward_walk<kernel>({d_x, d_tail, d_out, d_next_tail, x, tail}, taps, carry,
                            block * item_tokens, std::min(x.rows, (block + 1) * item_tokens),
                            channel);
    });
  });
  for (index c = 0; c < x.cols; ++c)
    for (index j = 0; j < kernel_size; ++j) {
      float sum = 0;
      for (index block = 0; block < token_blocks; ++block) sum += sums(block * kernel_size + j, c);
      d_weight(c, j) += sum;
    }
  caller.rewind(mark);
}

}  // namespace longstraw::kernels
