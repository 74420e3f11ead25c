#pragma once
// What every actor is given at its start: the timeline, the log, the deadlines, and the faults
// that a test wants.

#include <longstraw/messages/timeline.hpp>

#include <spdlog/logger.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

namespace longstraw::actors {

struct deadlines {
  /// A page request is answered within this time, or the layer reports a fault.
  std::chrono::milliseconds page{30'000};
  /// The lane finishes an operation within this time, or the supervisor ends the job.
  std::chrono::milliseconds operation{600'000};
  /// All ranks reach an exchange within this time of the first one, or the attempt is given up (--collective-timeout).
  std::chrono::milliseconds collective{60'000};
  /// Distance of the supervisor's looks at the lane's progress.
  std::chrono::milliseconds watchdog{1'000};
};

/// Test hook, asked about every message that an actor is about to handle. Called from the threads of all actors.
class message_faults {
 public:
  enum class verdict {
    deliver,
    drop,  ///< the message is lost; only for messages that are not answered directly
    die,   ///< the actor ends
  };
  virtual ~message_faults() = default;
  virtual verdict before(const std::string& actor, const char* message) = 0;
};

struct environment {
  std::shared_ptr<messages::timeline> timeline;
  std::shared_ptr<spdlog::logger> log;
  deadlines limits;
  std::shared_ptr<message_faults> faults;
};

}  // namespace longstraw::actors
