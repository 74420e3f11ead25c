#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/gated_delta.hpp>

#include <algorithm>

namespace longstraw::kernels {
namespace {

using simd::for_each_vec;
using simd::vec;

constexpr index item_tokens = 256;
// Tokens of which the values fill whole vectors, whatever the number of heads. They are computed
// together, without gaps: the rows of a projection lie apart and are copied.
constexpr index group_tokens = simd::lanes;

bool without_gaps(cmat x) { return x.stride == x.cols; }

void copy_rows(mat to, cmat from) {
  for (index t = 0; t < from.rows; ++t) simd::copy_row(to.row(t), from.row(t), from.cols);
}

/// The group's values, copied to `buffer` if need be.
const float* gather(cmat group, mat buffer) {
  if (without_gaps(group)) return group.data;
  copy_rows(buffer, group);
  return buffer.data;
}
/// Where to write the group's values, and what puts them where they belong.
float* results(mat group, mat buffer) { return without_gaps(group) ? group.data : buffer.data; }
void scatter(mat group, mat buffer) {
  if (!without_gaps(group)) copy_rows(group, buffer.row_range(0, group.rows));
}

/// What a group needs of the parameters: a copy of them for each token.
struct group_parameters {
  float* rate;  // -exp(a_log)
  float* bias;

  group_parameters(std::span<const float> a_log, std::span<const float> dt_bias, scratch& local) {
    const auto heads = static_cast<index>(a_log.size());
    const mat rates = local.matrix(group_tokens, heads), biases = local.matrix(group_tokens, heads);
    rate = rates.data, bias = biases.data;
    for_each_vec(heads,
                 [&](index, auto get, auto put) { put(rate, -simd::exp(get(a_log.data()))); });
    simd::copy_row(bias, dt_bias.data(), heads);
    for (index t = 1; t < group_tokens; ++t) {
      simd::copy_row(rates.row(t), rate, heads);
      simd::copy_row(biases.row(t), bias, heads);
    }
  }
};

/// Calls body(first token, its end) for the groups of [begin, end).
template <class F>
void for_each_group(index begin, index end, F&& body) {
  for (index t = begin; t < end; t += group_tokens) body(t, std::min(end, t + group_tokens));
}

}  // namespace

void gated_delta_gates_forward(mat g, mat beta, cmat a, cmat b, std::span<const float> a_log,
                               std::span<const float> dt_bias, executor& on) {
  on.parallel_for(blocks_of(a.rows, item_tokens), [&](index item, scratch& local) {
    const index heads = a.cols;
    const group_parameters parameters(a_log, dt_bias, local);
    const mat buffer_a = local.matrix(group_tokens, heads),
              buffer_b = local.matrix(group_tokens, heads);
    for_each_group(
        item * item_tokens, std::min(a.rows, (item + 1) * item_tokens), [&](index t, index end) {
          const mat to_g = g.row_range(t, end), to_beta = beta.row_range(t, end);
          const float *x = gather(a.row_range(t, end), buffer_a),
                      *y = gather(b.row_range(t, end), buffer_b);
          float *decay = results(to_g, buffer_a), *share = results(to_beta, buffer_b);
          for_each_vec((end - t) * heads, [=, rate = parameters.rate, bias = parameters.bias](
                                              index, auto get, auto put) {
            put(decay, get(rate) * simd::softplus(get(x) + get(bias)).value);
            put(share, simd::sigmoid(get(y)));
          });
          scatter(to_g, buffer_a);
          scatter(to_beta, buffer_b);
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
    const group_parameters parameters(a_log, dt_bias, local);
    const auto rows = [&] { return local.matrix(group_tokens, heads); };
    const mat buffer_a = rows(), buffer_b = rows(), buffer_g = rows(), buffer_beta = rows();
    // Sums of the tokens that have the same place in their group.
    const mat rate_sums = rows(), bias_sums = rows();
    std::fill_n(rate_sums.data, group_tokens * heads, 0.0f);
    std::fill_n(bias_sums.data, group_tokens * heads, 0.0f);
    for_each_group(block * block_tokens, std::min(a.rows, (block + 1) * block_tokens),
                   [&](index t, index end) {
                     const mat to_a = d_a.row_range(t, end), to_b = d_b.row_range(t, end);
                     const float *x = gather(a.row_range(t, end), buffer_a),
                                 *y = gather(b.row_range(t, end), buffer_b),
                                 *d_decay = gather(d_g.row_range(t, end), buffer_g),
                                 *d_share = gather(d_beta.row_range(t, end), buffer_beta);
                     float *result_a = results(to_a, buffer_a), *result_b = results(to_b, buffer_b);
                     for_each_vec(
                         (end - t) * heads, [=, rate = parameters.rate, bias = parameters.bias,
                                             rate_sum = rate_sums.data,
                                             bias_sum = bias_sums.data](index, auto get, auto put) {
                           const simd::softplus_result p = simd::softplus(get(x) + get(bias));
                           const vec s = simd::sigmoid(get(y)), d_rate = get(d_decay) * get(rate);
                           const vec d_x = d_rate * p.slope();
                           put(rate_sum, get(rate_sum) + d_rate * p.value);
                           put(bias_sum, get(bias_sum) + d_x);
                           put(result_b, get(d_share) * s * (1.0f - s));
                           put(result_a, d_x);
                         });
                     scatter(to_a, buffer_a);
                     scatter(to_b, buffer_b);
                   });
    for (const auto& [to, from] : {std::pair{sums.row(2 * block), rate_sums},
                                   std::pair{sums.row(2 * block + 1), bias_sums}}) {
      for_each_vec(heads, [sums = from, to_row = to](index, auto get, auto put) {
        vec sum{};
        for (index t = 0; t < group_tokens; ++t) sum += get(sums.row(t));
        put(to_row, sum);
      });
    }
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
