#pragma once
// One rank: moves hidden states through its layers in the order of the schedule, and runs
// embedding, head and loss.
//
// receives  run_phase, release_job (supervisor); entry_done, entry_failed (layers);
//           operation_done, operation_failed (lane)
// sends     run_entry, release_job (layers); submit_operation, begin_lane_job (lane);
//           phase_done, response_replayed, fault (supervisor)
// owns      the workspace that passes use in turn
//
//   RK-1  Entries are issued in order, at most `window` ahead of the oldest unfinished one.
//   RK-2  response_replayed is sent once for a response, after its embed_backward.
//   RK-3  A job's workspace is freed or reused only after the lane said that nothing of the job
//         runs.

#include <longstraw/actors/actor_base.hpp>
#include <longstraw/actors/plan.hpp>

#include <memory>
#include <set>
#include <vector>

namespace longstraw::actors {

class rank : public actor_base<messages::rank_actor> {
 public:
  /// Entries issued ahead: enough that the lane never waits for a message, few enough that a job
  /// stops quickly.
  static constexpr index window = 64;

  rank(caf::actor_config& config, environment e, std::string name, messages::rank_id number,
       messages::lane_actor lane, std::vector<messages::layer_actor> layers,
       std::shared_ptr<memory::budget> budget);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void run(const messages::run_phase& m);
  caf::result<messages::job_released> release(const messages::release_job& m);
  void entry_finished(const messages::entry_done& m);
  void entry_broke(const messages::entry_failed& m);
  void operation_finished(const messages::operation_done& m);
  void operation_broke(const messages::operation_failed& m);

  void start_job(const messages::job_ptr& of);
  void pump();
  void issue(index number);
  void begin_pass(const messages::schedule_entry& e);
  void submit(index number, const messages::schedule_entry& e,
              std::function<void(kernels::executor&)> run);
  void finish_entry(index number);
  void report(errc code, const std::string& sentence);

  void embed(index number, const messages::schedule_entry& e);
  void score_head(index number, const messages::schedule_entry& e);
  void loss_head(index number, const messages::schedule_entry& e);
  void embed_backward(index number, const messages::schedule_entry& e);
  void sample(index number, const messages::schedule_entry& e);

  const messages::rank_id number_;
  messages::lane_actor lane_;
  std::vector<messages::layer_actor> layers_;
  const std::shared_ptr<memory::budget> budget_;

  messages::phase_listener supervisor_;
  messages::job_ptr job_;
  messages::phase phase_ = messages::phase::capture;
  messages::schedule::range range_;
  index next_ = 0;            // entry to issue next
  index oldest_ = 0;          // oldest unfinished entry
  std::set<index> finished_;  // finished entries after oldest_
  bool lane_ready_ = false;
  messages::token_pass_ptr pass_;  // the pass being issued
  std::shared_ptr<messages::workspace> space_;
  workspace_sizes space_sizes_;
};

/// Head, loss and gradient of one suffix; what score_head and loss_head run on the lane.
void run_head(messages::token_pass& pass, bool with_loss, kernels::executor& on);

}  // namespace longstraw::actors
