#pragma once
// Comparisons that name where they are worst.

#include "bounds.hpp"

#include <longstraw/models/parameters.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace longstraw::audit {

struct worst_error {
  double error = 0;  ///< NaN stays
  std::string where;
  void add(double e, const std::string& at) {
    if (std::isnan(error) || (e <= error && !where.empty())) return;
    error = e;
    where = at;
  }
};

template <class A, class B>
double largest_difference(const A& got, const B& want) {
  LS_ASSERT(std::size(got) == std::size(want), "both have the same values");
  double largest = 0;
  for (std::size_t i = 0; i < std::size(want); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(d <= largest)) largest = d;
    if (std::isnan(largest)) break;
  }
  return largest;
}

/// |got - want| and |want|, L2.
struct l2_error {
  double difference = 0, norm = 0;
};
template <class A, class B>
l2_error l2(const A& got, const B& want) {
  LS_ASSERT(std::size(got) == std::size(want), "both have the same values");
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::size(want); ++i) {
    const double w = static_cast<double>(want[i]), d = static_cast<double>(got[i]) - w;
    difference += d * d;
    norm += w * w;
  }
  return {std::sqrt(difference), std::sqrt(norm)};
}

/// The parameter whose gradient is relatively farthest off; bounds.hpp says what a vanishing one is
/// relative to.
template <class T>
worst_error worst_gradient(std::span<const float> got, std::span<const T> want,
                           const models::parameter_layout& layout) {
  LS_ASSERT(got.size() == want.size(), "both have the layout of the weights");
  double squares = 0;
  for (const T v : want) squares += static_cast<double>(v) * static_cast<double>(v);
  const auto all = layout.all();
  const double floor = norm_floor_share * std::sqrt(squares / static_cast<double>(all.size()));
  worst_error worst;
  for (const models::parameter& p : all) {
    const auto begin = static_cast<std::size_t>(p.offset),
               count = static_cast<std::size_t>(p.count);
    const l2_error e = l2(got.subspan(begin, count), want.subspan(begin, count));
    const double scale = std::max(e.norm, floor);
    worst.add(scale > 0 ? e.difference / scale : e.difference, p.name);
  }
  return worst;
}

}  // namespace longstraw::audit
