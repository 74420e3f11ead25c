#pragma once
// What a job consists of: the group checked, the schedule written down. No actors here: the runtime makes jobs with it,
// and so do tests that run actors in a scheduler of their own.

#include <longstraw/actors/runtime.hpp>

namespace longstraw::actors {

/// Where a job comes from.
struct job_origin {
  const runtime_options& options;
  std::shared_ptr<const models::language_model> model;
  index number = 0;          ///< of the job, from 1
  index policy_version = 0;  ///< commits that the parameters have seen
};

/// A job with the parts that all have; its schedule is empty. errc::bad_input if the group holds what the model cannot
/// take.
messages::job_ptr make_job(const job_origin& from, const char* name, const models::group& g);

/// One transaction on one group. If the group has nothing to learn from, replayed_responses and
/// schedule are empty.
messages::job_ptr make_step_job(const job_origin& from, const models::group& g,
                                const step_settings& s, const messages::rank_gradients& gradients);

}  // namespace longstraw::actors
