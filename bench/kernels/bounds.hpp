#pragma once
// What the machine can do, measured in the same run as the cases: floating point operations a
// second of matrix products, bytes a second by the size of what is touched, and elementary
// functions a second. Each function's rate is that of a loop over values in the first-level cache
// that does nothing else.

#include "case.hpp"

namespace longstraw::bench {

struct bandwidth_point {
  double bytes = 0;  ///< touched by one pass, or passed over
  /// Bytes a second, each read and write counted once. What a store to memory that was not read
  /// costs beyond that (the line is fetched first) shows between copy and update.
  double read = 0, copy = 0, triad = 0, update = 0;
  /// Updates of every fourth line, and of two lines of every eight: what lies between is passed
  /// over, and the hardware foresees less.
  double fourth_line = 0, two_of_eight = 0;
};

struct machine_bounds {
  int threads = 1;
  double peak_library = 0, peak_own = 0;  ///< best of the sizes, flops a second
  index size_library = 0, size_own = 0;   ///< where that was
  /// Functions and conversions a second.
  double exps = 0, logs = 0, sin_cos = 0, widened = 0, quotients = 0, roots = 0;
  std::vector<bandwidth_point> bandwidth;

  double peak() const { return std::max(peak_library, peak_own); }
  /// The least seconds that the work may take, and which bound that is.
  double least_seconds(const work& w, std::string& bound) const;
};

machine_bounds measure_bounds(place p);
json as_json(const machine_bounds& b);

}  // namespace longstraw::bench
