#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/swiglu.hpp>

#include <algorithm>

namespace longstraw::kernels {
namespace {

/// Calls row(t) for all rows, in items of about 16,384 values.
template <class F>
void for_each_row(index rows, index cols, executor& on, F&& row) {
  const index step = std::max<index>(1, 16384 / std::max<index>(1, cols));
  on.parallel_for(blocks_of(rows, step), [&](index item, scratch&) {
    for (index t = item * step; t < std::min(rows, (item + 1) * step); ++t) row(t);
  });
}

}  // namespace

void swiglu_forward(mat out, cmat gate, cmat up, executor& on) {
  for_each_row(gate.rows, gate.cols, on, [&](index t) {
    float* result = out.row(t);
    const float *g = gate.row(t), *u = up.row(t);
    simd::for_each_vec(
        gate.cols, [&](index, auto get, auto put) { put(result, simd::silu(get(g)) * get(u)); });
  });
}

void swiglu_backward(mat d_gate, mat d_up, cmat d_out, cmat gate, cmat up, executor& on) {
  for_each_row(gate.rows, gate.cols, on, [&](index t) {
    float *to_gate = d_gate.row(t), *to_up = d_up.row(t);
    const float *d = d_out.row(t), *g = gate.row(t), *u = up.row(t);
    simd::for_each_vec(gate.cols, [&](index, auto get, auto put) {
      // silu'(x) = s (1 + x (1 - s)): both results have the factor d_out s.
      const simd::vec x = get(g), s = simd::sigmoid(x), d_s = get(d) * s, value = get(u);
      put(to_up, d_s * x);
      put(to_gate, d_s * value * (1.0f + x * (1.0f - s)));
    });
  });
}

}  // namespace longstraw::kernels
