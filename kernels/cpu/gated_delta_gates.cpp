#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/gated_delta.hpp>

#include <algorithm>

namespace longstraw::kernels {
namespace {

using simd::for_each_vec;
using simd::vec;

constexpr index item_tokens = 256;

/// rate = -exp(a_log)
std::span<float> decay_rates(std::span<const float> a_log, scratch& local) {
  const auto heads = static_cast<index>(a_log.size());
  auto rates = local.floats(heads);
  for_each_vec(
      heads, [&](index, auto get, auto put) { put(rates.data(), -simd::exp(get(a_log.data()))); });
  return rates;
}

}  // namespace

void gated_delta_gates_forward(mat g, mat beta, cmat a, cmat b, std::span<const float> a_log,
                               std::span<const float> dt_bias, executor& on) {
  on.parallel_for(blocks_of(a.rows, item_tokens), [&](index item, scratch& local) {
    const auto rates = decay_rates(a_log, local);
    const index end = std::min(a.rows, (item + 1) * item_tokens);
    for (index t = item * item_tokens; t < end; ++t)
      for_each_vec(a.cols, [&](index, auto get, auto put) {
        put(g.row(t), get(rates.data()) * simd::softplus(get(a.row(t)) + get(dt_bias.data())));
        put(beta.row(t), simd::sigmoid(get(b.row(t))));
      });
  });
}

void gated_delta_gates_backward(mat d_a, mat d_b, std::span<float> d_a_log,
                                std::span<float> d_dt_bias, cmat d_g, cmat d_beta, cmat a, cmat b,
                                std::span<const float> a_log, std::span<const float> dt_bias,
                                executor& on) {
  // At most 256 token blocks, so that their sums fit the scratch memory; they are added in order.
  const index block_tokens = std::max(item_tokens, blocks_of(a.rows, 256));
  const index blocks = blocks_of(a.rows, block_tokens), heads = a.cols;
  scratch& caller = on.local();
  const index mark = caller.mark();
  const mat sums = caller.matrix(2 * blocks, heads);  // a_log and dt_bias of each block
  on.parallel_for(blocks, [&](index block, scratch& local) {
    const auto rates = decay_rates(a_log, local);
    float *rate_sum = sums.row(2 * block), *bias_sum = sums.row(2 * block + 1);
    std::fill_n(rate_sum, heads, 0.0f);
    std::fill_n(bias_sum, heads, 0.0f);
    const index end = std::min(a.rows, (block + 1) * block_tokens);
    for (index t = block * block_tokens; t < end; ++t)
      for_each_vec(heads, [&](index, auto get, auto put) {
        const vec x = get(a.row(t)) + get(dt_bias.data()), s = simd::sigmoid(get(b.row(t)));
        const vec d_decay = get(d_g.row(t)) * get(rates.data());
        const vec d_x = d_decay * simd::sigmoid(x);
        put(rate_sum, get(rate_sum) + d_decay * simd::softplus(x));
        put(bias_sum, get(bias_sum) + d_x);
        put(d_b.row(t), get(d_beta.row(t)) * s * (1.0f - s));
        put(d_a.row(t), d_x);
      });
  });
  for (index h = 0; h < heads; ++h) {
    double rate = 0, bias = 0;
    for (index block = 0; block < blocks; ++block) {
      rate += static_cast<double>(sums(2 * block, h));
      bias += static_cast<double>(sums(2 * block + 1, h));
    }
    d_a_log[static_cast<std::size_t>(h)] += static_cast<float>(rate);
    d_dt_bias[static_cast<std::size_t>(h)] += static_cast<float>(bias);
  }
  caller.rewind(mark);
}

}  // namespace longstraw::kernels
