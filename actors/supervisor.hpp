#pragma once
// Drives a job through its phases and its transaction on all ranks, keeps the ledger, and watches every other
// actor.
//
// receives  run_job, cancel_job (program); phase_done, response_replayed (rank);
//           step_begun, vote, step_committed (optimizer); fault (any); watchdog_tick (itself)
// sends     run_phase, rewind_job, release_job (rank); begin_step, prepare_step, commit_step, abort_step
//           (optimizer); begin_exchanges (collective); job_done (program)
// owns      the state machine of the step and its ledger
//
//   SV-1  job_done is sent exactly once for every run_job.
//   SV-2  commit_step is sent only after a yes vote of every rank and with every expected contribution in the
//         ledger, each once. From then on the step is decided.
//   SV-3  After another actor has ended, every job fails with that actor's cause.
//   SV-4  An attempt that a late rank spoiled is rewound: gradients and ledger begin anew, captured state stays.
//   SV-5  The next attempt or job begins when all optimizers and then all ranks have let go of the one before.
//
//   idle -> beginning -> running (phase by phase) -> preparing -> committing -> releasing -> idle
//   a late rank after capture: rewinding -> beginning
//   any other failure on the way: abort_step, releasing, job_done{failed}; while committing the runtime ends with it

#include <longstraw/actors/actor_base.hpp>

#include <chrono>
#include <set>

namespace longstraw::actors {

class supervisor : public actor_base<messages::supervisor_actor> {
 public:
  /// ranks, optimizers: by rank. others: all actors but this one. attempts: of a job, at least 1.
  supervisor(caf::actor_config& config, environment e, std::string name,
             std::vector<messages::rank_actor> ranks,
             std::vector<messages::optimizer_actor> optimizers,
             messages::collective_actor collective, std::vector<caf::actor> others, index attempts);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  enum class stage { idle, rewinding, beginning, running, preparing, committing, releasing };

  void run(const messages::run_job& m);
  void cancel(const messages::cancel_job& m);
  void phase_finished(const messages::phase_done& m);
  void enter_in_ledger(const messages::response_replayed& m);
  void begun(const messages::step_begun& m);
  void count_vote(const messages::vote& m);
  void committed(const messages::step_committed& m);
  void handle_fault(const messages::fault& m);
  void look(const messages::watchdog_tick& m);

  bool current(index job_number, stage expected) const;
  bool last_of_all(messages::rank_id rank);
  double seconds_since(std::chrono::steady_clock::time_point begin) const;
  void start_attempt();
  void start_next_phase();
  void prepare();
  bool try_again(errc code, const std::string& sentence);
  void fail_job(errc code, const std::string& sentence);
  void rewind();
  void release();
  void begin_release();
  void release_ranks();
  template <class Answer, class Handle, class Question>
  void ask_all(const std::vector<Handle>& all, const Question& question,
               void (supervisor::*next)());
  void answer();
  void actor_ended(const caf::error& reason);

  std::vector<messages::rank_actor> ranks_;
  std::vector<messages::optimizer_actor> optimizers_;
  messages::collective_actor collective_;
  std::vector<caf::actor> others_;
  const index attempts_;

  stage stage_ = stage::idle;
  messages::job_ptr job_;
  messages::job_listener reply_to_;
  messages::phase_seconds seconds_;
  index attempt_ = 0;
  int next_phase_ = 0;
  int first_phase_ = 0;                   // of an attempt: after capture from the second one on
  std::set<messages::rank_id> answered_;  // ranks that have done what the stage waits for
  std::chrono::steady_clock::time_point phase_begin_;
  std::set<std::pair<index, messages::rank_id>> ledger_;

  bool failed_ = false;
  errc code_ = errc::internal;
  std::string sentence_;
  std::string spoiled_by_;  // what the attempt is rewound for
  std::string broken_;      // why no job can run any more

  index seen_operations_ = 0;
  std::chrono::steady_clock::time_point seen_at_;
  std::chrono::steady_clock::time_point looked_at_ = this->clock().now();
};

}  // namespace longstraw::actors
