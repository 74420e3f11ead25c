#pragma once
// How a layer program divides the one workspace that it is given, and the plain moves of data
// between its parts.

#include <longstraw/kernels/executor.hpp>

#include <algorithm>
#include <span>

namespace longstraw::models {

/// Cuts consecutive parts off a workspace, each aligned to 64 bytes. The same code runs with and
/// without memory: without it (nullptr), `highest()` says how much the parts need.
class carver {
 public:
  explicit carver(float* memory) : memory_(memory) {}

  std::span<float> floats(index count) {
    float* part = memory_ ? memory_ + used_ : nullptr;
    used_ += (count + 15) / 16 * 16;
    highest_ = std::max(highest_, used_);
    return {part, memory_ ? static_cast<std::size_t>(count) : 0};
  }
  mat matrix(index rows, index cols) { return {floats(rows * cols).data(), rows, cols}; }

  /// Parts cut after rewind(m) lie over those cut since mark() gave m.
  index mark() const { return used_; }
  void rewind(index mark) { used_ = mark; }
  index highest() const { return highest_; }

 private:
  float* memory_;
  index used_ = 0;
  index highest_ = 0;
};

/// [tokens, 1 head of cols]: a hidden state as the norms see it.
template <class T>
heads_view<T> one_head(matrix_view<T> m) {
  return {m.data, m.rows, 1, m.cols, m.stride, m.cols};
}

void copy(mat to, cmat from, kernels::executor& on);
void copy(heads to, cheads from, kernels::executor& on);
void set_zero(mat m, kernels::executor& on);

}  // namespace longstraw::models
