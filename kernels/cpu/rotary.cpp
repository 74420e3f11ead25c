#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/rotary.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

namespace longstraw::kernels {
namespace {

constexpr index token_block = 16;

/// All components of a head that turn lie in one vector, first halves before second halves: the
/// product with the sines exchanges the two.
void turn_vector(heads x, index token, const float* cosine, const float* sine, float direction) {
  constexpr index half = simd::lanes / 2;
  std::array<float, 2 * half> cosines, sines;
  for (index i = 0; i < half; ++i) {
    cosines[i] = cosines[half + i] = cosine[i];
    sines[half + i] = sine[i] * direction;
    sines[i] = -sines[half + i];
  }
  const simd::vec c = simd::load(cosines.data()), s = simd::load(sines.data());
  for (index h = 0; h < x.heads; ++h) {
    float* values = x.at(token, h);
    const simd::vec v = simd::load(values);
    simd::store(values, v * c + simd::exchange<half>(v) * s);
  }
}

/// `direction` is 1, or -1 to turn back.
void turn(heads x, cmat cos_sin, float direction, executor& on) {
  const index half = cos_sin.cols / 2;
  LS_ASSERT(x.tokens == cos_sin.rows && cos_sin.cols % 2 == 0 && cos_sin.cols <= x.width,
            "cos_sin [tokens, width] must cover the tokens and fit the heads");
  on.parallel_for(blocks_of(x.tokens, token_block), [=](index block, scratch&) {
    const index end = std::min(x.tokens, (block + 1) * token_block);
    for (index t = block * token_block; t < end; ++t) {
      const float* cosine = cos_sin.row(t);
      const float* sine = cosine + half;
      if (2 * half == simd::lanes) {
        turn_vector(x, t, cosine, sine, direction);
        continue;
      }
      for (index h = 0; h < x.heads; ++h) {
        float* first = x.at(t, h);
        float* second = first + half;
        simd::for_each_vec(half, [=](index, auto load, auto store) {
          const simd::vec a = load(first), b = load(second), c = load(cosine);
          const simd::vec s = load(sine) * direction;
          store(first, a * c - b * s);
          store(second, b * c + a * s);
        });
      }
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
    for (index t = block * token_block; t < end; ++t)
      for (index i = 0; i < half; i += simd::wide_lanes) {
        const auto count = static_cast<std::size_t>(std::min(simd::wide_lanes, half - i));
        simd::wide frequency{};
        std::memcpy(&frequency, frequencies.data() + i, count * sizeof(double));
        const auto both = simd::sin_cos(frequency * static_cast<double>(positions.begin + t));
        const auto cosine = __builtin_convertvector(both.cos, simd::half_vec);
        const auto sine = __builtin_convertvector(both.sin, simd::half_vec);
        std::memcpy(cos_sin.row(t) + i, &cosine, count * sizeof(float));
        std::memcpy(cos_sin.row(t) + half + i, &sine, count * sizeof(float));
      }
  });
}

void rotary_forward(heads x, cmat cos_sin, executor& on) { turn(x, cos_sin, 1, on); }
void rotary_backward(heads d_x, cmat cos_sin, executor& on) { turn(d_x, cos_sin, -1, on); }

}  // namespace longstraw::kernels
