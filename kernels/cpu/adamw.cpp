#include <longstraw/kernels/adamw.hpp>
#include <longstraw/kernels/cpu/simd_math.hpp>

#include <algorithm>
#include <cmath>

namespace longstraw::kernels {
namespace {

constexpr index item_values = 32768;

}  // namespace

// The order of operations is that of torch.optim.AdamW on float32 tensors: decay, linear
// interpolation of the first moment, the second moment, then the quotient. Constants are formed in
// double and rounded once, as torch does.
void adamw_update(std::span<float> weights, std::span<float> m, std::span<float> v,
                  std::span<const float> gradients, double gradient_scale, const adamw_settings& s,
                  index step, executor& on) {
  const bool keeps_moments = !m.empty() || weights.empty();
  LS_ASSERT(gradients.size() == weights.size() && m.size() == v.size() &&
                (!keeps_moments || m.size() == weights.size()),
            "weights, moments and gradients have one length");
  LS_ASSERT(keeps_moments || step == 1, "only the first step begins from zero moments");
  LS_ASSERT(step >= 1, "optimizer steps count from 1");
  const double correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(step));
  const auto scale = static_cast<float>(gradient_scale);
  const auto keep = static_cast<float>(1.0 - s.learning_rate * s.weight_decay);
  const auto new_share = static_cast<float>(1.0 - s.beta1), old_share = 1.0f - new_share;
  const auto beta2 = static_cast<float>(s.beta2), square_share = static_cast<float>(1.0 - s.beta2);
  const auto root_correction = static_cast<float>(std::sqrt(correction2));
  const auto eps = static_cast<float>(s.eps);
  const auto step_size = static_cast<float>(-s.learning_rate / correction1);
  const bool from_old = new_share < 0.5f;  // interpolate from the nearer end

  const auto n = static_cast<index>(weights.size());
  on.parallel_for(blocks_of(n, item_values), [&](index item, scratch&) {
    const index begin = item * item_values;
    float* w = weights.data() + begin;
    float* first = keeps_moments ? m.data() + begin : nullptr;
    float* second = keeps_moments ? v.data() + begin : nullptr;
    const float* gradient = gradients.data() + begin;
    simd::for_each_vec(std::min(item_values, n - begin), [&](index, auto get, auto put) {
      const simd::vec g = get(gradient) * scale;
      const simd::vec m_old = first ? get(first) : simd::vec{};
      const simd::vec v_old = second ? get(second) : simd::vec{};
      const simd::vec way = g - m_old;
      const simd::vec m_new = from_old ? m_old + new_share * way : g - way * old_share;
      const simd::vec v_new = v_old * beta2 + square_share * g * g;
      const simd::vec denominator = simd::sqrt(v_new) / root_correction + eps;
      if (first) put(first, m_new);
      if (second) put(second, v_new);
      put(w, get(w) * keep + step_size * m_new / denominator);
    });
  });
}

double sum_of_squares(std::span<const float> values, executor& on) {
  const auto n = static_cast<index>(values.size());
  // At most 4096 blocks, so that their sums fit any scratch memory.
  const index block_values = std::max<index>(item_values, blocks_of(n, 4096));
  const index blocks = blocks_of(n, block_values);
  scratch& local = on.local();
  const index mark = local.mark();
  auto* sums = reinterpret_cast<double*>(local.floats(2 * blocks).data());
  on.parallel_for(blocks, [&](index block, scratch&) {
    const float* x = values.data() + block * block_values;
    const index count = std::min(block_values, n - block * block_values);
    // As many running sums as hide the latency of an addition.
    constexpr index step = 8;
    simd::wide acc[step] = {};
    index i = 0;
    for (; i + step * simd::wide_lanes <= count; i += step * simd::wide_lanes)
      for (index u = 0; u < step; ++u) {
        const simd::wide a = simd::widen(x + i + u * simd::wide_lanes);
        acc[u] += a * a;
      }
    for (index u = 1; u < step; ++u) acc[0] += acc[u];
    double sum = 0;
    for (index l = 0; l < simd::wide_lanes; ++l) sum += acc[0][l];
    for (; i < count; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    sums[block] = sum;
  });
  double total = 0;
  for (index block = 0; block < blocks; ++block) total += sums[block];
  local.rewind(mark);
  return total;
}

}  // namespace longstraw::kernels
