#include "measure.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <vector>

namespace longstraw::bench {
namespace {

double now(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

double median_of(std::vector<double> v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

// More than any cache of the machine holds.
void sweep_caches() {
  static std::vector<char> memory(std::size_t{96} << 20);
  for (std::size_t i = 0; i < memory.size(); i += 64) memory[i]++;
}

}  // namespace

timing measure(const measure_settings& s, const std::function<void()>& call) {
  const clockid_t clock = s.thread_clock ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  timing t;
  const double begin = now(clock);
  do call(), ++t.warm_up_calls;
  while (now(clock) - begin < s.warm_up);
  const double one = (now(clock) - begin) / t.warm_up_calls;
  // A sample is long enough that reading the clock does not matter.
  const int calls = s.cold ? 1 : std::max(1, static_cast<int>(std::ceil(2e-3 / one)));
  std::vector<double> all;
  double spent = 0;
  while (static_cast<int>(all.size()) < s.samples_max &&
         (static_cast<int>(all.size()) < s.samples_min || spent < s.seconds)) {
    if (s.cold) sweep_caches();
    const double from = now(clock);
    for (int i = 0; i < calls; ++i) call();
    const double took = now(clock) - from;
    spent += took;
    all.push_back(took / calls);
  }
  t.samples = static_cast<int>(all.size());
  t.calls = calls;
  t.min = *std::min_element(all.begin(), all.end());
  t.median = median_of(all);
  std::vector<double> away;
  for (double x : all) away.push_back(std::abs(x - t.median));
  t.mad = median_of(away);
  return t;
}

}  // namespace longstraw::bench
