#pragma once
// What a seed stands for: the shape of two jobs, how messages are mixed, and what goes wrong.

#include "counting_model.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longstraw::testing {

/// Numbers that follow from a seed alone.
class seeded_numbers {
 public:
  explicit seeded_numbers(std::uint64_t seed) : state_(mixed(seed)) {}
  std::uint64_t next() { return mixed(state_ += 0x9e3779b97f4a7c15u); }
  /// 0 .. count - 1.
  index below(index count) {
    return static_cast<index>(next() % static_cast<std::uint64_t>(count));
  }
  index between(index first, index last) { return first + below(last - first + 1); }
  bool chance(index one_in) { return below(one_in) == 0; }
  /// Small numbers are as likely as large ones, up to about `most`.
  index any_size(index most) {
    index limit = 1;
    for (index l = below(14); l > 0 && limit < most; --l) limit *= 2;
    return below(std::min(limit, most));
  }

 private:
  // SplitMix64: neighbouring seeds have nothing in common.
  static std::uint64_t mixed(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::uint64_t state_;
};

enum class trouble {
  none,       ///< messages are mixed, nothing else
  starve,     ///< an actor is passed over for a while
  clock,      ///< time passes while messages wait, so that deadlines pass; actors may be starved
  drop,       ///< a message is lost
  kill,       ///< an actor ends
  exception,  ///< an operation throws
  poison,     ///< a gradient is not finite
  update,     ///< an update of the weights is not finite
  short_of_memory,  ///< the budget is smaller than the job's need
  cancel,           ///< the program stops the job
};
const char* to_string(trouble t);

struct job_shape {
  models::group group;
  actors::step_settings settings;
};

struct simulation_plan {
  std::uint64_t seed = 0;
  index ranks = 1, chunk_tokens = 1, page_tokens = 1, attempts = 1;
  std::vector<counting_kind> layers;
  bool exact_budget = false;  ///< the budget is just what the plan of the larger job says
  job_shape jobs[2];

  bool by_priority = false;  ///< actors have random priorities instead of equal chances
  trouble what = trouble::none;
  int in_job = 0;           ///< 0 or 1
  std::string of_actor;     ///< kill: whose message; empty: anybody's
  std::string of_message;   ///< drop, kill: which message; empty: any
  index number = 0;         ///< of that message, segment or turn, from 0
  bool also_clock = false;  ///< with it, time passes as in trouble::clock
};
simulation_plan plan_of_seed(std::uint64_t seed);
std::string to_string(const simulation_plan& p);

/// Messages whose loss must end in a deadline. Not: run_job, since nobody but the program knows of the job; return_pages,
/// since nobody can know of the lease; run_next_operation, which an actor tells itself at once; answers, whose askers have
/// deadlines of their own.
bool may_be_lost(const std::string& message);

}  // namespace longstraw::testing
