#pragma once
// Rotary position embedding in the half-split order: with c, s = cos, sin(position * frequency_i), components i and
// i + width/2 of the first `width` components of a head turn together:
//   (a, b) -> (a c - b s, b c + a s)
// The rest of the head stays as it is (partial rotary). The backward pass turns the other way.

#include <longstraw/kernels/executor.hpp>

#include <vector>

namespace longstraw::kernels {

/// Which frequencies turn which components. Scaling "llama3" follows the Llama 3.1 release: wavelengths beyond
/// original_positions / low_frequency_factor are slowed by `factor`, those below original_positions /
/// high_frequency_factor are kept, and a linear ramp joins them.
struct rotary_spec {
  enum class scaling { none, llama3 };
  double theta = 10000.0;
  index width = 0;  ///< components that turn, even
  scaling kind = scaling::none;
  double factor = 1.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  double original_positions = 8192.0;
};

/// Frequencies [width / 2], radians a position, in double.
std::vector<double> rotary_frequencies(const rotary_spec& spec);

/// cos_sin [positions.count(), width] written: a row is width/2 cosines, then width/2 sines. The angle is formed in
/// double: at position 4,000,000 a float angle would be off by a tenth of a radian. Exact to float up to position 2^23, and
/// beyond where the processor has fused multiply-adds.
void rotary_angles(mat cos_sin, token_range positions, std::span<const double> frequencies,
                   executor& on);

/// x [tokens, heads, width of the head] turned in place.
void rotary_forward(heads x, cmat cos_sin, executor& on);
/// d_x turned back in place.
void rotary_backward(heads d_x, cmat cos_sin, executor& on);

}  // namespace longstraw::kernels
