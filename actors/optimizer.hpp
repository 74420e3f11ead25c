#pragma once
// The optimizer of one rank: its sum of gradients, its shard of weights and moments, and its part of the transaction.
//
// receives  begin_step, prepare_step, commit_step, abort_step (supervisor);
//           operation_done, operation_failed (lane); exchanged, exchange_missed (collective)
// sends     submit_operation (lane); contribute (collective); step_begun, vote, step_committed, fault (supervisor)
// owns      nothing but the right to change the weights of its shard: kernels run in the lane, memory is the
//           parameter store's
//
//   OP-1  Weights and moments change in commit_step only, after a yes vote for the same job.
//   OP-2  Gradients are zero when step_begun is sent, whatever became of the step before.
//   OP-3  A rank reads what all ranks have summed up in its shard, and writes its shard only.

#include <longstraw/actors/actor_base.hpp>
#include <longstraw/actors/rank_parts.hpp>

namespace longstraw::actors {

class optimizer : public actor_base<messages::optimizer_actor> {
 public:
  optimizer(caf::actor_config& config, environment e, std::string name, rank_parts parts,
            std::shared_ptr<models::parameter_store> parameters);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  enum class stage { idle, clearing, accumulating, summing, measuring, prepared, committing };
  using body = std::function<void(kernels::executor&)>;

  void begin(const messages::begin_step& m);
  void prepare(const messages::prepare_step& m);
  void commit(const messages::commit_step& m);
  caf::result<messages::step_aborted> abort(const messages::abort_step& m);
  void operation_finished(const messages::operation_done& m);
  void operation_broke(const messages::operation_failed& m);
  void take_exchanged(const messages::exchanged& m);
  void exchange_failed(const messages::exchange_missed& m);

  bool current(index job_number) const { return job_ && job_number == job_->number; }
  void meet(const char* what, index entry, messages::given_data given);
  void sum_shard(std::shared_ptr<const std::vector<messages::given_data>> given);
  void take_norm(double squares);
  void submit(const char* name, body run);

  rank_parts parts_;
  const std::shared_ptr<models::parameter_store> parameters_;

  messages::commit_listener supervisor_;
  messages::job_ptr job_;
  index attempt_ = 0;
  stage stage_ = stage::idle;
  std::shared_ptr<double> squares_;  // of the shard
  double clip_scale_ = 1;
};

}  // namespace longstraw::actors
