#pragma once
// One seed, run to its end: two jobs in sequence on one set of actors, in one thread, with invariants checked after each
// message.

#include "plan.hpp"

#include <cstdint>
#include <string>

namespace longstraw::testing {

struct simulation_result {
  std::string violation;       ///< the first broken invariant; empty: none
  std::string last_messages;   ///< the last 50, one a line: actor, message
  std::uint64_t sequence = 0;  ///< fingerprint of all messages in their order
  std::int64_t messages = 0;
  bool fired = false;  ///< the trouble came to pass
  int committed = 0, failed = 0;
  bool rewound = false;  ///< an attempt was repeated
  std::string sentence;  ///< of the last failed job
};

/// print: every message, as it is handled.
simulation_result simulate(const simulation_plan& plan, bool print = false);

}  // namespace longstraw::testing
