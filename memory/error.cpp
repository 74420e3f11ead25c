#include <longstraw/memory/error.hpp>

#include <cstdio>
#include <cstdlib>

namespace longstraw {

std::string_view to_string(errc code) {
  switch (code) {
    case errc::bad_input:
      return "bad input";
    case errc::over_budget:
      return "over budget";
    case errc::io_failed:
      return "input or output failed";
    case errc::not_finite:
      return "not finite";
    case errc::timed_out:
      return "timed out";
    case errc::rank_late:
      return "rank late";
    case errc::actor_lost:
      return "actor lost";
    case errc::half_updated:
      return "half updated";
    case errc::internal:
      return "internal failure";
    case errc::cancelled:
      return "cancelled";
  }
  return "unknown";
}

void assertion_failed(const char* condition, const char* meaning, const char* file, int line) {
  std::fprintf(stderr, "longstraw: bug at %s:%d: %s (%s is false)\n", file, line, meaning,
               condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace longstraw
