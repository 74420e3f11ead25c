#pragma once
// One rank: moves hidden states of its slice of tokens through its layers in the order of the schedule, and runs
// embedding, head and loss.
//
// receives  run_phase, rewind_job, release_job (supervisor); entry_done, entry_failed (layers);
//           operation_done, operation_failed (lane); exchanged, exchange_missed (collective)
// sends     run_entry, rewind_job, release_job (layers); submit_operation, begin_lane_job (lane);
//           contribute (collective); phase_done, response_replayed, fault (supervisor)
// owns      the workspace that passes use in turn
//
//   RK-1  Entries are issued in order, at most `window` ahead of the oldest unfinished one.
//   RK-2  response_replayed is sent once for a response, after its embed_backward.
//   RK-3  A job's workspace is freed or reused only after the lane said that nothing of the job
//         runs.
//   RK-4  A loss is computed from the log-probabilities of the whole response, whoever computed them.

#include <longstraw/actors/actor_base.hpp>
#include <longstraw/actors/plan.hpp>
#include <longstraw/actors/rank_parts.hpp>

#include <map>
#include <memory>
#include <set>
#include <vector>

namespace longstraw::actors {

class rank : public actor_base<messages::rank_actor> {
 public:
  /// Entries issued ahead: enough that the lane never waits for a message, few enough that a job
  /// stops quickly.
  static constexpr index window = 64;

  rank(caf::actor_config& config, environment e, std::string name, rank_parts parts,
       std::vector<messages::layer_actor> layers);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  void run(const messages::run_phase& m);
  caf::result<messages::job_rewound> rewind(const messages::rewind_job& m);
  caf::result<messages::job_released> release(const messages::release_job& m);
  void entry_finished(const messages::entry_done& m);
  void entry_broke(const messages::entry_failed& m);
  void operation_finished(const messages::operation_done& m);
  void operation_broke(const messages::operation_failed& m);
  void take_exchanged(const messages::exchanged& m);
  void exchange_failed(const messages::exchange_missed& m);

  void start_job(const messages::job_ptr& of);
  void begin_lane(index first_entry);
  void pump();
  void issue(index number);
  void begin_pass(const messages::schedule_entry& e);
  using body = std::function<void(kernels::executor&)>;
  void submit(index number, index part, bool last, body run);
  bool runs(index job_number) const;
  void finish_entry(index number);
  void forget_entries();
  template <class Answer, class Question>
  caf::result<Answer> ask_layers(Question question, Answer answer);
  void report(errc code, const std::string& sentence);

  void embed(index number, const messages::schedule_entry& e);
  void head(index number);
  void embed_backward(index number);
  void sample(index number);

  rank_parts parts_;
  std::vector<messages::layer_actor> layers_;

  messages::phase_listener supervisor_;
  messages::job_ptr job_;
  index attempt_ = 0;
  messages::phase phase_ = messages::phase::capture;
  messages::schedule::range range_;
  index next_ = 0;            // entry to issue next
  index oldest_ = 0;          // oldest unfinished entry
  std::set<index> finished_;  // finished entries after oldest_
  bool lane_ready_ = false;
  messages::token_pass_ptr pass_;  // the pass being issued
  // Heads whose log-probabilities are on their way to the other ranks, by entry.
  struct shared_head {
    messages::token_pass_ptr pass;
    std::shared_ptr<memory::buffer> given;  // written by its operation
  };
  std::map<index, std::shared_ptr<shared_head>> heads_;
  std::shared_ptr<messages::workspace> space_;
  workspace_sizes space_sizes_;
};

}  // namespace longstraw::actors
