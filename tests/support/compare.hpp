#pragma once
// What parity tests share: random tensors, result memory filled with NaN between guard words, and the one place where
// tolerances come from.

#include <longstraw/memory/view.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace longstraw::testing {

template <class T = double>
std::vector<T> random_values(index count, unsigned seed, double spread = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, spread);
  std::vector<T> v(static_cast<std::size_t>(count));
  for (auto& x : v) x = static_cast<T>(normal(engine));
  return v;
}

template <class To, class From>
std::vector<To> as(const std::vector<From>& v) {
  return {v.begin(), v.end()};
}

/// Result memory: NaN inside, so that a value that was never written shows, and guard words on both sides, so that a
/// write outside shows. Checked on destruction.
class guarded {
 public:
  static constexpr float guard = 12345.678f;
  static constexpr std::size_t margin = 32;

  explicit guarded(index count, float fill = std::numeric_limits<float>::quiet_NaN())
      : memory_(static_cast<std::size_t>(count) + 2 * margin, guard),
        count_(static_cast<std::size_t>(count)) {
    LS_ASSERT(count >= 0, "a count is not negative");
    std::fill(memory_.begin() + margin, memory_.end() - margin, fill);
  }
  ~guarded() {
    const auto intact = [](std::span<const float> words) {
      return std::all_of(words.begin(), words.end(), [](float w) { return w == guard; });
    };
    CHECK(intact(std::span(memory_).first(margin)));
    CHECK(intact(std::span(memory_).last(margin)));
  }
  guarded(const guarded&) = delete;
  guarded& operator=(const guarded&) = delete;

  float* data() { return memory_.data() + margin; }
  std::span<float> values() { return {data(), count_}; }
  mat matrix(index rows, index cols) {
    REQUIRE(static_cast<std::size_t>(rows * cols) == count_);
    return {data(), rows, cols};
  }

 private:
  std::vector<float> memory_;
  std::size_t count_;
};

/// |got - want| / |want| over the whole tensor (L2); |got| if want is all zero. NaN anywhere gives NaN.
template <class A, class B>
double relative_error(const A& got, const B& want) {
  REQUIRE(std::size(got) == std::size(want));
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::size(got); ++i) {
    const double g = got[i], w = want[i];
    if (std::isinf(w) && g == w) continue;
    difference += (g - w) * (g - w);
    norm += w * w;
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

/// Bound on relative_error for float32 results whose sums have `reduction` terms: rounding errors of a sum grow like
/// its square root; 8 covers the constant of the longest chain of operations in one kernel.
inline double float32_bound(index reduction) {
  return 8.0 * static_cast<double>(std::numeric_limits<float>::epsilon()) *
         std::sqrt(static_cast<double>(std::max<index>(reduction, 1)));
}

/// Central difference of `loss` in each of `count` evenly spread coordinates of x, against `gradient`; returns the
/// relative error over those coordinates.
template <class Loss>
double finite_difference_error(std::vector<double>& x, const std::vector<double>& gradient,
                               Loss&& loss, std::size_t count = 24, double step = 1e-5) {
  REQUIRE(x.size() == gradient.size());
  std::vector<double> got, want;
  const std::size_t stride = std::max<std::size_t>(1, x.size() / count);
  for (std::size_t i = 0; i < x.size(); i += stride) {
    const double kept = x[i];
    x[i] = kept + step;
    const double above = loss();
    x[i] = kept - step;
    const double below = loss();
    x[i] = kept;
    got.push_back((above - below) / (2 * step));
    want.push_back(gradient[i]);
  }
  return relative_error(got, want);
}

}  // namespace longstraw::testing
