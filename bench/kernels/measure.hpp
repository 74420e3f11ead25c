#pragma once
// Timing of repeated calls. With one thread the clock is the thread's processor time, which other
// programs on the machine do not stop; with more it is elapsed time.

#include <functional>

namespace longstraw::bench {

struct measure_settings {
  double seconds = 0.5;  ///< of samples, about
  int samples_min = 5;
  int samples_max = 31;
  double warm_up = 0.05;  ///< seconds of calls before the first sample
  bool cold = false;      ///< buffers leave the caches before each sample, of one call
  bool thread_clock = true;
};

struct timing {
  double median = 0, mad = 0, min = 0;  ///< seconds a call
  int samples = 0, calls = 0, warm_up_calls = 0;
};

timing measure(const measure_settings& s, const std::function<void()>& call);

}  // namespace longstraw::bench
