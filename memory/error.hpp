#pragma once
// How expected failures travel: one exception type that carries a code a caller can act on and one
// clear sentence.
//
// Three kinds of trouble are kept apart. A bug stops the process with LS_ASSERT, in release builds
// too. An expected failure (bad input, no budget, a gradient that is not finite) is a
// longstraw::error. The end of an actor or a device is a reason that climbs to the supervisor
// (messages/conversations.hpp).

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace longstraw {

/// What went wrong, as far as a caller can act on it. The sentence is in error::what().
enum class errc {
  bad_input = 1,  ///< a file, field or flag holds something it must not; nothing was written
  over_budget,    ///< a named arena or the total budget would be exceeded
  io_failed,      ///< reading or writing failed (no space, no permission, short read)
  not_finite,     ///< a log-probability, loss or gradient is NaN or infinite; nothing was committed
  timed_out,      ///< a deadline passed
  rank_late,      ///< a rank did not reach an exchange in time; the step can be tried again
  actor_lost,     ///< an actor ended while others needed it
  half_updated,  ///< an update of the weights broke off: what is in memory is of no version, load it again
  internal,   ///< something failed that should not have; the work was stopped
  cancelled,  ///< the user or the supervisor stopped the work
};

std::string_view to_string(errc code);

/// An expected failure. `what()` is one sentence that names the file, field or flag, the value, and
/// what was expected.
class error : public std::runtime_error {
 public:
  error(errc code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  errc code() const noexcept { return code_; }

 private:
  errc code_;
};

/// Throws error{code, formatted sentence}.
template <class... Args>
[[noreturn]] void fail(errc code, fmt::format_string<Args...> format, Args&&... args) {
  throw error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Prints the broken condition and aborts. Used through LS_ASSERT only.
[[noreturn]] void assertion_failed(const char* condition, const char* meaning, const char* file,
                                   int line);

}  // namespace longstraw

/// A condition that only a bug can break. Checked in every build.
#define LS_ASSERT(condition, meaning) \
  ((condition) ? void(0) : ::longstraw::assertion_failed(#condition, meaning, __FILE__, __LINE__))
