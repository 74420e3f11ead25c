#include "cell.hpp"

#include <longstraw/memory/arena.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace longstraw::audit {
namespace {

/// How much of its bound a measurement takes up; above 1 if it is outside.
double share(const measurement& m) {
  if (std::isnan(m.figure) || std::isnan(m.bound)) return std::numeric_limits<double>::infinity();
  if (m.figure <= 0 && m.within()) return 0;
  return m.bound > 0 ? m.figure / m.bound : std::numeric_limits<double>::infinity();
}

std::string value_text(double value, measurement::unit in) {
  if (in == measurement::unit::bytes && value >= 0 && std::isfinite(value))
    return memory::readable_bytes(static_cast<std::size_t>(value));
  return fmt::format("{:.2g}", value);
}

}  // namespace

std::string figure_text(const measurement& m) { return value_text(m.figure, m.in); }
std::string bound_text(const measurement& m) { return value_text(m.bound, m.in); }

std::string_view to_string(verdict v) {
  switch (v) {
    case verdict::not_run:
      return "not run";
    case verdict::proved:
      return "proved";
    case verdict::failed:
      break;
  }
  return "failed";
}

void cell::measure(measurement m) { measurements_.push_back(std::move(m)); }

void cell::fail(std::string sentence) {
  if (failure_.empty())
    failure_ = sentence.empty() ? "it failed without a sentence" : std::move(sentence);
}

void cell::leave_out(std::string reason) {
  if (!reason.empty()) left_out_ = std::move(reason);
}

verdict cell::state() const {
  if (!failure_.empty()) return verdict::failed;
  if (measurements_.empty()) return verdict::not_run;
  return std::all_of(measurements_.begin(), measurements_.end(),
                     [](const measurement& m) { return m.within(); })
             ? verdict::proved
             : verdict::failed;
}

const measurement* cell::worst() const {
  const auto at = std::max_element(
      measurements_.begin(), measurements_.end(),
      [](const measurement& a, const measurement& b) { return share(a) < share(b); });
  return at == measurements_.end() ? nullptr : &*at;
}

const measurement* cell::headline() const {
  if (measurements_.empty()) return nullptr;
  return state() == verdict::failed ? worst() : &measurements_.front();
}

std::string cell::reason() const {
  if (!failure_.empty()) return failure_;
  switch (state()) {
    case verdict::not_run:
      return left_out_;
    case verdict::proved:
      return "";
    case verdict::failed:
      break;
  }
  const measurement& m = *worst();
  return fmt::format("{} is {}, bound {}{}{}", m.what, figure_text(m), bound_text(m),
                     m.where.empty() ? "" : ", at ", m.where);
}

}  // namespace longstraw::audit
