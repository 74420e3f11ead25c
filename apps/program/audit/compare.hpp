#pragma once
// Comparisons that name where they are worst.

#include "bounds.hpp"

#include <longstraw/models/parameters.hpp>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <string_view>
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

/// A figure over some of the values, or over none, would pass for one over all: errc::internal.
inline void check_count(std::size_t got, std::size_t want, std::string_view what = "values") {
  if (want == 0) fail(errc::internal, "there are no {} to compare with", what);
  if (got != want) fail(errc::internal, "there are {} {}, expected {}", got, what, want);
}

template <class A, class B>
double largest_difference(const A& got, const B& want) {
  check_count(std::size(got), std::size(want));
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
  check_count(std::size(got), std::size(want));
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::size(want); ++i) {
    const double w = static_cast<double>(want[i]), d = static_cast<double>(got[i]) - w;
    difference += d * d;
    norm += w * w;
  }
  return {std::sqrt(difference), std::sqrt(norm)};
}

/// The part of values in the order of the layout that is one parameter's.
template <class T>
std::span<const T> part_of(std::span<const T> all, const models::parameter& p) {
  return all.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
}

/// Of the parameters that `takes` names, the one whose gradient is relatively farthest off;
/// bounds.hpp says what a vanishing one is relative to.
template <class T, class Takes>
worst_error worst_gradient(std::span<const float> got, std::span<const T> want,
                           const models::parameter_layout& layout, Takes takes) {
  check_count(got.size(), static_cast<std::size_t>(layout.total()), "gradients");
  check_count(want.size(), static_cast<std::size_t>(layout.total()), "gradients");
  double squares = 0;
  for (const T v : want) squares += static_cast<double>(v) * static_cast<double>(v);
  const auto all = layout.all();
  const double floor = norm_floor_share * std::sqrt(squares / static_cast<double>(all.size()));
  worst_error worst;
  for (const models::parameter& p : all) {
    if (!takes(p)) continue;
    const l2_error e = l2(part_of(got, p), part_of(want, p));
    const double scale = std::max(e.norm, floor);
    worst.add(scale > 0 ? e.difference / scale : e.difference, p.name);
  }
  return worst;
}
template <class T>
worst_error worst_gradient(std::span<const float> got, std::span<const T> want,
                           const models::parameter_layout& layout) {
  return worst_gradient<T>(got, want, layout, [](const models::parameter&) { return true; });
}

/// The parameter that adds most to the error of all.
template <class T>
std::string largest_share(std::span<const float> got, std::span<const T> want,
                          const models::parameter_layout& layout) {
  worst_error worst;
  for (const models::parameter& p : layout.all())
    worst.add(l2(part_of(got, p), part_of(want, p)).difference, p.name);
  return worst.where;
}

}  // namespace longstraw::audit
