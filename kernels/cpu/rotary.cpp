#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/rotary.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace longstraw::kernels {
namespace {

constexpr index token_block = 16;

constexpr int lanes = simd::lanes, half_lanes = lanes / 2;

/// Lane i is lane First + i % Period of v, counted on from lane 0 after the last.
template <int First, int Period>
simd::vec arranged(simd::vec v) {
  return [v]<int... Lane>(std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(v, v, ((First + Lane % Period) % lanes)...);
  }
  (std::make_integer_sequence<int, lanes>{});
}

/// All components of a head that turn lie in one vector, first halves before second halves: the
/// product with the sines exchanges the two. `direction` is negative in its first half.
void turn_vector(heads x, index token, const float* cos_sin, simd::vec direction) {
  const simd::vec both = simd::load(cos_sin), cosine = arranged<0, half_lanes>(both);
  const simd::vec sine = arranged<half_lanes, half_lanes>(both) * direction;
  float* values = x.at(token, 0);
  for (index h = 0; h < x.heads; ++h, values += x.head_stride) {
    const simd::vec v = simd::load(values);
    simd::store(values, v * cosine + arranged<half_lanes, lanes>(v) * sine);
  }
}

/// `direction` is 1, or -1 to turn back.
void turn(heads x, cmat cos_sin, float direction, executor& on) {
  const index half = cos_sin.cols / 2;
  LS_ASSERT(x.tokens == cos_sin.rows && cos_sin.cols % 2 == 0 && cos_sin.cols <= x.width,
            "cos_sin [tokens, width] must cover the tokens and fit the heads");
  simd::vec of_halves = simd::splat(direction);
  for (int i = 0; i < half_lanes; ++i) of_halves[i] = -direction;
  on.parallel_for(blocks_of(x.tokens, token_block), [=](index block, scratch&) {
    const index end = std::min(x.tokens, (block + 1) * token_block);
    for (index t = block * token_block; t < end; ++t) {
      const float *cosine = cos_sin.row(t), *sine = cosine + half;
      if (2 * half == lanes) {
        turn_vector(x, t, cosine, of_halves);
        continue;
      }
      simd::for_each_vec(half, [=](index, auto load, auto store) {
        const simd::vec c = load(cosine), s = load(sine) * direction;
        float* first = x.at(t, 0);
        for (index h = 0; h < x.heads; ++h, first += x.head_stride) {
          const simd::vec a = load(first), b = load(first + half);
          store(first, a * c - b * s);
          store(first + half, b * c + a * s);
        }
      });
    }
  });
}

}  // namespace

std::vector<double> rotary_frequencies(const rotary_spec& spec) {
  LS_ASSERT(spec.width >= 0 && spec.width % 2 == 0, "components turn in pairs");
  std::vector<double> frequencies(static_cast<std::size_t>(spec.width / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double f =
        std::pow(spec.theta, -2.0 * static_cast<double>(i) / static_cast<double>(spec.width));
    if (spec.kind == rotary_spec::scaling::llama3) {
      // How many turns the pair makes within the original context decides how far it is slowed.
      const double turns = spec.original_positions * f / (2.0 * std::numbers::pi);
      const double kept = (turns - spec.low_frequency_factor) /
                          (spec.high_frequency_factor - spec.low_frequency_factor);
      if (turns < spec.low_frequency_factor)
        f /= spec.factor;
      else if (turns <= spec.high_frequency_factor)
        f = (1.0 - kept) * f / spec.factor + kept * f;
    }
    frequencies[i] = f;
  }
  return frequencies;
}

void rotary_angles(mat cos_sin, token_range positions, std::span<const double> frequencies,
                   executor& on) {
  const auto half = static_cast<index>(frequencies.size());
  LS_ASSERT(cos_sin.rows == positions.count() && cos_sin.cols == 2 * half,
            "cos_sin has a row a position and a cosine and a sine a frequency");
  on.parallel_for(blocks_of(cos_sin.rows, token_block), [&](index block, scratch&) {
    const index end = std::min(cos_sin.rows, (block + 1) * token_block);
    for (index t = block * token_block; t < end; ++t) {
      const auto position = static_cast<double>(positions.begin + t);
      float *cosines = cos_sin.row(t), *sines = cosines + half;
      const auto part = [&](index i, auto count) {
        simd::wide frequency{};
        std::memcpy(&frequency, frequencies.data() + i, count * sizeof(double));
        const auto both = simd::sin_cos(frequency * position);
        const auto cosine = __builtin_convertvector(both.cos, simd::half_vec);
        const auto sine = __builtin_convertvector(both.sin, simd::half_vec);
        std::memcpy(cosines + i, &cosine, count * sizeof(float));
        std::memcpy(sines + i, &sine, count * sizeof(float));
      };
      index i = 0;
      for (; i + simd::wide_lanes <= half; i += simd::wide_lanes)
        part(i, std::integral_constant<std::size_t, simd::wide_lanes>{});
      if (i < half) part(i, static_cast<std::size_t>(half - i));
    }
  });
}

void rotary_forward(heads x, cmat cos_sin, executor& on) { turn(x, cos_sin, 1, on); }
void rotary_backward(heads d_x, cmat cos_sin, executor& on) { turn(d_x, cos_sin, -1, on); }

}  // namespace longstraw::kernels
