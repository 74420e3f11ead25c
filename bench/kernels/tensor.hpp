#pragma once
// Buffers of a case: random floats, and what checks share.

#include "case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace longstraw::bench {

/// Fills with values of mean 0 and standard deviation `spread`: a sum of four uniform numbers,
/// which costs little even for gigabytes.
inline void fill_random(std::span<float> values, std::uint64_t seed, float spread = 1) {
  std::uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15u;
  for (float& v : values) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    const auto part = [&](int shift) { return static_cast<float>((x >> shift) & 0xffff); };
    v = ((part(0) + part(16) + part(32) + part(48)) / 65536.0f - 2.0f) * 1.7320508f * spread;
  }
}

/// Shared, so that the functions of a case can hold what they use.
class tensor {
 public:
  tensor() = default;
  /// Zero, every page touched.
  tensor(place p, index count)
      : memory_(std::make_shared<memory::buffer>(p.arena.allocate_floats(count))), count_(count) {
    std::fill_n(data(), count, 0.0f);
  }
  tensor(place p, index count, std::uint64_t seed, float spread = 1) : tensor(p, count) {
    fill_random(span(), seed, spread);
  }

  float* data() const { return memory_->floats().data(); }
  index count() const { return count_; }
  std::span<float> span() const { return {data(), static_cast<std::size_t>(count_)}; }
  mat matrix(index rows) const { return {data(), rows, count_ / rows}; }
  heads as_heads(index tokens, index count) const { return split_heads(matrix(tokens), count); }
  std::vector<double> in_double() const { return {data(), data() + count_}; }
  void zero() const { std::fill_n(data(), count_, 0.0f); }

 private:
  std::shared_ptr<memory::buffer> memory_;
  index count_ = 0;
};

/// |got - want| / |want| over pairs that are added one by one; NaN anywhere gives NaN.
class difference {
 public:
  void add(double got, double want) {
    if (std::isinf(want) && got == want) return;
    squares_ += (got - want) * (got - want);
    norm_ += want * want;
  }
  void add(const tensor& got, const std::vector<double>& want) {
    for (index i = 0; i < got.count(); ++i) add(got.data()[i], want[static_cast<std::size_t>(i)]);
  }
  double value() const { return norm_ > 0 ? std::sqrt(squares_ / norm_) : std::sqrt(squares_); }

 private:
  double squares_ = 0, norm_ = 0;
};

/// A larger NaN-aware maximum: NaN wins.
inline double worst(std::initializer_list<double> errors) {
  double w = 0;
  for (double e : errors)
    if (!(e <= w)) w = e;
  return w;
}

/// Error bound of float results whose sums have that many terms, as in the parity tests.
inline double float32_bound(index terms) {
  return 8.0 * static_cast<double>(std::numeric_limits<float>::epsilon()) *
         std::sqrt(static_cast<double>(std::max<index>(terms, 1)));
}

/// About `count` numbers of [0, end), spread evenly, the last one among them.
inline std::vector<index> spread_over(index end, index count) {
  std::vector<index> all;
  for (index i = 1; i <= std::min(end, count); ++i)
    all.push_back(i * end / std::min(end, count) - 1);
  return all;
}

inline matrix_view<double> matrix_of(std::vector<double>& v, index rows) {
  return {v.data(), rows, static_cast<index>(v.size()) / rows};
}
inline matrix_view<const double> matrix_of(const std::vector<double>& v, index rows) {
  return {v.data(), rows, static_cast<index>(v.size()) / rows};
}
inline heads_view<double> heads_of(std::vector<double>& v, index tokens, index count) {
  return split_heads(matrix_of(v, tokens), count);
}
inline heads_view<const double> heads_of(const std::vector<double>& v, index tokens, index count) {
  return split_heads(matrix_of(v, tokens), count);
}

inline double bytes_of(std::initializer_list<index> counts) {
  double sum = 0;
  for (index c : counts) sum += static_cast<double>(c) * 4.0;
  return sum;
}

}  // namespace longstraw::bench
