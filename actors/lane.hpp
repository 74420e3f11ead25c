#pragma once
// The lane of one rank: its compute threads, and the only place where kernels run.
//
// receives  submit_operation, begin_lane_job, run_next_operation (from itself)
// sends     operation_done or operation_failed to whoever submitted; lane_ready to the rank
// owns      the executor (threads and scratch memory)
//
//   LN-1  Operations of a job run in order of (entry, part), one at a time.
//   LN-2  Nothing of a job runs after one of its operations failed, or after another job began.
//
// Runs on a thread of its own, so that a long operation starves no message of another actor.

#include <longstraw/actors/actor_base.hpp>

#include <map>
#include <memory>

namespace longstraw::actors {

class lane : public actor_base<messages::lane_actor> {
 public:
  lane(caf::actor_config& config, environment e, std::string name, messages::rank_id rank,
       std::shared_ptr<kernels::executor> on);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void submit(const messages::submit_operation& m);
  caf::result<messages::lane_ready> begin_job(const messages::begin_lane_job& m);
  void run_next(const messages::run_next_operation& m);
  void wake();
  void run(const messages::submit_operation& m);

  using place = std::pair<index, index>;  // entry, part

  const messages::rank_id rank_;
  std::shared_ptr<kernels::executor> on_;
  index job_number_ = 0;
  bool job_failed_ = false;
  place next_{0, 0};
  std::map<place, messages::submit_operation> waiting_;
  bool awake_ = false;  // a run_next_operation is under way
};

}  // namespace longstraw::actors
