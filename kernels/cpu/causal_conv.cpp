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
constexpr int kernel_max = static_cast<int>(causal_conv_kernel_max);

/// Input number `t` of the pass, from channel `begin`; t < 0 counts back into the tail.
const float* input_row(cmat x, cmat tail, index t, index begin) {
  return (t >= 0 ? x.row(t) : tail.row(tail.rows + t)) + begin;
}

/// Scratch rows a cache line longer than a power of two: rows of inputs often lie a multiple of 4
/// KiB apart and then compete for one set of the first-level cache, so scratch rows must not join
/// them.
mat spread_rows(index rows, index cols, scratch& local) {
  return local.matrix(rows, (cols + 31) / 32 * 32 + simd::lanes).col_range(0, cols);
}

constexpr std::make_integer_sequence<int, static_cast<int>(simd::lanes)> each_lane{};

/// a, b in memory order become the values at even and at odd places.
template <int... Lane>
void separate(vec& a, vec& b, std::integer_sequence<int, Lane...>) {
  const vec even = __builtin_shufflevector(a, b, (2 * Lane)...);
  b = __builtin_shufflevector(a, b, (2 * Lane + 1)...);
  a = even;
}
/// The reverse of separate.
template <int... Lane>
void interleave(vec& a, vec& b, std::integer_sequence<int, Lane...>) {
  constexpr int n = static_cast<int>(simd::lanes);
  const vec low = __builtin_shufflevector(a, b, (Lane / 2 + Lane % 2 * n)...);
  b = __builtin_shufflevector(a, b, (n / 2 + Lane / 2 + Lane % 2 * n)...);
  a = low;
}

// One token against thousands of channels is a usual case (decoding). There the taps' change of
// order is most of the work, so the usual kernel of four taps has vector code for it.
bool is_packed_by_four(cmat weight) { return weight.cols == 4 && weight.stride == 4; }

/// taps [kernel, channels of the item]: the weight, transposed so that a vector holds neighbouring
/// channels.
mat load_taps(cmat weight, index begin, index end, scratch& local) {
  const mat taps = spread_rows(weight.cols, end - begin, local);
  index c = begin;
  if (is_packed_by_four(weight))
    for (; c + simd::lanes <= end; c += simd::lanes) {
      vec w[4];
      for (index i = 0; i < 4; ++i) w[i] = simd::load(weight.row(c) + i * simd::lanes);
      separate(w[0], w[1], each_lane);
      separate(w[2], w[3], each_lane);
      separate(w[0], w[2], each_lane);  // taps 0 and 2
      separate(w[1], w[3], each_lane);  // taps 1 and 3
      for (index j = 0; j < 4; ++j) simd::store(taps.row(j) + (c - begin), w[j]);
    }
  for (; c < end; ++c)
    for (index j = 0; j < weight.cols; ++j) taps(j, c - begin) = weight(c, j);
  return taps;
}

/// d_weight [channels, kernel] += the sums [kernel, channels] of all token blocks, which lie below
/// each other, in order
void add_taps(mat d_weight, cmat sums) {
  const index kernel = d_weight.cols;
  index c = 0;
  if (is_packed_by_four(d_weight))
    for (; c + simd::lanes <= d_weight.rows; c += simd::lanes) {
      vec w[4] = {};
      for (index r = 0; r < sums.rows; r += 4)
        for (index j = 0; j < 4; ++j) w[j] += simd::load(sums.row(r + j) + c);
      interleave(w[0], w[2], each_lane);
      interleave(w[1], w[3], each_lane);
      interleave(w[0], w[1], each_lane);
      interleave(w[2], w[3], each_lane);
      for (index i = 0; i < 4; ++i) {
        float* to = d_weight.row(c) + i * simd::lanes;
        simd::store(to, simd::load(to) + w[i]);
      }
    }
  for (; c < d_weight.rows; ++c)
    for (index j = 0; j < kernel; ++j) {
      float sum = 0;
      for (index r = j; r < sums.rows; r += kernel) sum += sums(r, c);
      d_weight(c, j) += sum;
    }
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

/// history [kernel - 1, channels]: the inputs before the pass's token `t`, oldest first. Walks
/// carry it along in scratch memory: each input row is then read once, whatever else its cache set
/// holds by the next step.
void load_history(mat history, cmat x, cmat tail, index t, index channel) {
  for (index i = 0; i < history.rows; ++i)
    std::copy_n(input_row(x, tail, t - history.rows + i, channel), history.cols, history.row(i));
}

// What a walk down the tokens of one item carries from step to step.
struct carried {
  mat history;   // [kernel - 1, channels] inputs of the tokens just passed, oldest first
  mat d_pre;     // [kernel - 1, channels] their gradients before SiLU
  mat d_weight;  // [kernel, channels] sums of this item
};

/// Tokens of which all have an output gradient, and whose inputs kernel - 1 tokens earlier belong
/// to this item: with this step the gradients of those inputs, d_x, are complete.
template <int Kernel, int Tokens>
void backward_step(const carried& carry, const std::array<float*, Tokens>& d_x,
                   const std::array<const float*, Tokens>& d_out,
                   const std::array<const float*, Tokens>& in, cmat taps) {
  for_each_vec(taps.cols, [&](index, auto get, auto put) {
    vec x[Kernel - 1 + Tokens], w[Kernel], d_pre[Kernel - 1 + Tokens], sums[Kernel];
    for (int j = 0; j < Kernel; ++j) w[j] = get(taps.row(j));
    for (int j = 0; j < Kernel; ++j) sums[j] = get(carry.d_weight.row(j));
    for (int i = 0; i < Kernel - 1; ++i) d_pre[i] = get(carry.d_pre.row(i));
    for (int i = 0; i < Kernel - 1; ++i) x[i] = get(carry.history.row(i));
    for (int s = 0; s < Tokens; ++s) x[Kernel - 1 + s] = get(in[s]);
    for (int s = 0; s < Tokens; ++s) {
      vec pre{};
      for (int j = 0; j < Kernel; ++j) pre += w[j] * x[s + j];
      const vec d = get(d_out[s]) * simd::silu_slope(pre, simd::sigmoid(pre));
      for (int j = 0; j < Kernel; ++j) sums[j] += d * x[s + j];
      d_pre[Kernel - 1 + s] = d;
      vec d_input{};
      for (int j = 0; j < Kernel; ++j) d_input += w[j] * d_pre[Kernel - 1 + s - j];
      put(d_x[s], d_input);
    }
    for (int i = 0; i < Kernel - 1; ++i) {
      put(carry.history.row(i), x[Tokens + i]);
      put(carry.d_pre.row(i), d_pre[Tokens + i]);
    }
    for (int j = 0; j < Kernel; ++j) put(carry.d_weight.row(j), sums[j]);
  });
}

/// One token near a border. d_out null: past the end, nothing is summed. d_x null: that input is
/// not this item's. d_kept, if not null: gradient that reaches the input through the next tail.
template <int Kernel>
void backward_border(const carried& carry, float* d_x, const float* d_out, const float* d_kept,
                     bool sum_weight, const float* in, cmat taps) {
  for_each_vec(taps.cols, [&](index, auto get, auto put) {
    vec d_pre[Kernel] = {};
    for (int i = 0; i < Kernel - 1; ++i) d_pre[i] = get(carry.d_pre.row(i));
    if (d_out) {
      vec x[Kernel], pre{};
      for (int i = 0; i < Kernel - 1; ++i) x[i] = get(carry.history.row(i));
      x[Kernel - 1] = get(in);
      for (int j = 0; j < Kernel; ++j) pre += get(taps.row(j)) * x[j];
      for (int i = 0; i < Kernel - 1; ++i) put(carry.history.row(i), x[i + 1]);
      d_pre[Kernel - 1] = get(d_out) * simd::silu_slope(pre, simd::sigmoid(pre));
      for (int j = 0; j < Kernel && sum_weight; ++j)
        put(carry.d_weight.row(j), get(carry.d_weight.row(j)) + d_pre[Kernel - 1] * x[j]);
    }
    vec d_input{};
    for (int j = 0; j < Kernel; ++j) d_input += get(taps.row(j)) * d_pre[Kernel - 1 - j];
    if (d_kept) d_input += get(d_kept);
    if (d_x) put(d_x, d_input);
    for (int i = 0; i < Kernel - 1; ++i) put(carry.d_pre.row(i), d_pre[i + 1]);
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
  constexpr index reach = Kernel - 1;
  const index tokens = a.x.rows;
  auto border = [&](index t) {
    const index source = t - reach, kept = source - (tokens - reach);
    float* d_x = nullptr;
    if (source >= begin) d_x = a.d_x.row(source) + channel;
    if (source < 0 && !a.d_tail.empty()) d_x = a.d_tail.row(reach + source) + channel;
    const bool inside = t < tokens;
    backward_border<Kernel>(
        carry, d_x, inside ? a.d_out.row(t) + channel : nullptr,
        kept >= 0 && !a.d_next_tail.empty() ? a.d_next_tail.row(kept) + channel : nullptr, t < end,
        inside ? a.x.row(t) + channel : nullptr, taps);
  };
  load_history(carry.history, a.x, a.tail, begin, channel);
  for (index i = 0; i < reach; ++i) std::fill_n(carry.d_pre.row(i), taps.cols, 0.0f);
  for (index j = 0; j < Kernel; ++j) std::fill_n(carry.d_weight.row(j), taps.cols, 0.0f);
  index t = begin;
  for (; t < begin + reach; ++t) border(t);
  for (; t + step_tokens <= end; t += step_tokens) {
    std::array<float*, step_tokens> d_x;
    std::array<const float*, step_tokens> d_out;
    std::array<const float*, step_tokens> in;
    for (int s = 0; s < step_tokens; ++s) {
      d_x[s] = a.d_x.row(t + s - reach) + channel;
      d_out[s] = a.d_out.row(t + s) + channel;
      in[s] = a.x.row(t + s) + channel;
    }
    backward_step<Kernel, step_tokens>(carry, d_x, d_out, in, taps);
  }
  for (; t < end + reach; ++t) border(t);
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
  const mat sums = spread_rows(token_blocks * kernel_size, x.cols, caller);
  with_kernel(kernel_size, [&](auto kernel) {
    on.parallel_for(token_blocks * channel_blocks, [&](index item, scratch& local) {
      const index block = item / channel_blocks, channel = item % channel_blocks * item_channels;
      const index channel_end = std::min(x.cols, channel + item_channels);
      const mat taps = load_taps(weight, channel, channel_end, local);
      const carried carry{spread_rows(kernel_size - 1, channel_end - channel, local),
                          spread_rows(kernel_size - 1, channel_end - channel, local),
                          sums.row_range(block * kernel_size, (block + 1) * kernel_size)
                              .col_range(channel, channel_end)};
      backward_walk<kernel>({d_x, d_tail, d_out, d_next_tail, x, tail}, taps, carry,
                            block * item_tokens, std::min(x.rows, (block + 1) * item_tokens),
                            channel);
    });
  });
  add_taps(d_weight, sums);
  caller.rewind(mark);
}

}  // namespace longstraw::kernels
