#pragma once
// The optimizer of one rank: its gradients, moments and weights, and the transaction over them.
//
// receives  begin_step, prepare_step, commit_step, abort_step (supervisor);
//           operation_done, operation_failed (lane)
// sends     submit_operation (lane); step_begun, vote, step_committed, fault (supervisor)
// owns      nothing but the right to change weights: kernels run in the lane, memory is the
//           parameter store's
//
//   OP-1  Weights and moments change in commit_step only, after a yes vote for the same job.
//   OP-2  Gradients are zero when step_begun is sent, whatever became of the step before.

#include <longstraw/actors/actor_base.hpp>

namespace longstraw::actors {

class optimizer : public actor_base<messages::optimizer_actor> {
 public:
  optimizer(caf::actor_config& config, environment e, std::string name, messages::rank_id number,
            messages::lane_actor lane, std::shared_ptr<models::parameter_store> parameters);
  behavior_type make_behavior() override;
  void on_exit() override;

 private:
  enum class stage { idle, clearing, accumulating, preparing, prepared, committing };

  void begin(const messages::begin_step& m);
  void prepare(const messages::prepare_step& m);
  void commit(const messages::commit_step& m);
  void abort(const messages::abort_step& m);
  void operation_finished(const messages::operation_done& m);
  void operation_broke(const messages::operation_failed& m);
  void submit(const char* name, std::function<void(kernels::executor&)> run);

  const messages::rank_id number_;
  messages::lane_actor lane_;
  const std::shared_ptr<models::parameter_store> parameters_;

  messages::commit_listener supervisor_;
  messages::job_ptr job_;
  stage stage_ = stage::idle;
};

/// Norm over all gradients, in the order of the layout. errc::not_finite names the first parameter
/// whose gradient is not finite.
double gradient_norm(const models::parameter_store& parameters, kernels::executor& on);

/// One AdamW step over all parameters.
void apply_adamw(const models::parameter_store& parameters, const messages::optimizer_settings& s,
                 double gradient_scale, index step, kernels::executor& on);

}  // namespace longstraw::actors
