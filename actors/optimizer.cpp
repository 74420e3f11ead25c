#include <longstraw/actors/optimizer.hpp>

#include <cmath>
#include <cstring>

namespace longstraw::actors {

using namespace messages;

optimizer::optimizer(caf::actor_config& config, environment e, std::string name, rank_id number,
                     lane_actor lane, std::shared_ptr<models::parameter_store> parameters)
    : actor_base(config, std::move(e), std::move(name)),
      number_(number),
      lane_(std::move(lane)),
      parameters_(std::move(parameters)) {}

optimizer::behavior_type optimizer::make_behavior() {
  return {
      on(&optimizer::begin),               // -> step_begun, later
      on(&optimizer::prepare),             // -> vote, later
      on(&optimizer::commit),              // -> step_committed, later
      on(&optimizer::abort),               //
      on(&optimizer::operation_finished),  // from the lane
      on(&optimizer::operation_broke),     // from the lane
  };
}

void optimizer::on_exit() {
  let_go(lane_);
  let_go(supervisor_);
  job_.reset();
}

void optimizer::begin(const begin_step& m) {
  job_ = m.what;
  supervisor_ = m.reply_to;
  stage_ =
      stage::clearing;  // OP-2: an earlier step, or an earlier runtime, may have left something
  submit("clear_gradients", [p = parameters_](kernels::executor& on) {
    constexpr index block = index{1} << 20;
    const auto all = p->gradients();
    const auto count = static_cast<index>(all.size());
    on.parallel_for(kernels::blocks_of(count, block), [&](index b, kernels::scratch&) {
      const index n = std::min(block, count - b * block);
      std::memset(all.data() + b * block, 0, static_cast<std::size_t>(n) * sizeof(float));
    });
  });
}

void optimizer::prepare(const prepare_step& m) {
  if (!job_ || m.job_number != job_->number || stage_ != stage::accumulating) return;
  stage_ = stage::preparing;
  submit("gradient_norm", [p = parameters_, j = job_](kernels::executor& on) {
    const double norm = gradient_norm(*p, on);
    j->commit.grad_norm = norm;
    const double limit = j->optimizer.max_grad_norm;
    j->commit.clip_scale = limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
  });
}

void optimizer::commit(const commit_step& m) {
  if (!job_ || m.job_number != job_->number || stage_ != stage::prepared) {  // OP-1
    tell(supervisor_,
         fault{{}, m.job_number, errc::actor_lost, "a commit was asked for that was not prepared"});
    return;
  }
  stage_ = stage::committing;
  submit("adamw", [p = parameters_, j = job_](kernels::executor& on) {
    apply_adamw(*p, j->optimizer, j->commit.clip_scale, j->optimizer_step, on);
    j->commit.committed = true;
  });
}

void optimizer::abort(const abort_step& m) {
  if (!job_ || m.job_number != job_->number) return;
  job_.reset();
  stage_ = stage::idle;
}

void optimizer::operation_finished(const operation_done& m) {
  if (!job_ || m.job_number != job_->number) return;
  switch (stage_) {
    case stage::clearing:
      stage_ = stage::accumulating;
      return tell(supervisor_, step_begun{{}, number_, job_->number});
    case stage::preparing:
      stage_ = stage::prepared;
      return tell(supervisor_, vote{{}, number_, job_->number, true, errc::not_finite, ""});
    case stage::committing:
      stage_ = stage::idle;
      tell(supervisor_, step_committed{{}, number_, job_->number});
      job_.reset();
      return;
    case stage::idle:
    case stage::accumulating:
    case stage::prepared:
      return;
  }
}

void optimizer::operation_broke(const operation_failed& m) {
  if (!job_ || m.job_number != job_->number) return;
  if (stage_ == stage::preparing)
    tell(supervisor_, vote{{}, number_, job_->number, false, m.code, m.sentence});
  else
    tell(supervisor_, fault{{}, job_->number, m.code, m.sentence});
}

void optimizer::submit(const char* name, std::function<void(kernels::executor&)> run) {
  auto op = std::make_shared<operation>();
  op->name = op->detail = name;
  op->run = std::move(run);
  tell(lane_,
       submit_operation{
           {}, job_->number, -1, 0, true, std::move(op), job_, self_as<operation_listener>()});
}

double gradient_norm(const models::parameter_store& parameters, kernels::executor& on) {
  double sum = 0;
  for (const models::parameter& p : parameters.layout().all()) {
    const double squares = kernels::sum_of_squares(parameters.gradients(p), on);
    if (!std::isfinite(squares))
      fail(errc::not_finite, "the gradient of parameter '{}' is not finite; nothing was committed",
           p.name);
    sum += squares;
  }
  return std::sqrt(sum);
}

void apply_adamw(const models::parameter_store& parameters, const optimizer_settings& s,
                 double gradient_scale, index step, kernels::executor& on) {
  for (const models::parameter& p : parameters.layout().all()) {
    kernels::adamw_settings settings = s.adamw;
    if (s.no_decay_one_dimensional && p.shape.size() < 2) settings.weight_decay = 0;
    const auto part = [&p](std::span<float> all) {
      return all.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
    };
    kernels::adamw_update(part(parameters.weights()), part(parameters.first_moments()),
                          part(parameters.second_moments()), part(parameters.gradients()),
                          gradient_scale, settings, step, on);
    if (!std::isfinite(kernels::sum_of_squares(parameters.weights(p), on)))
      fail(errc::not_finite,
           "the update of parameter '{}' is not finite (learning rate {}, weight decay {}, eps {})",
           p.name, settings.learning_rate, settings.weight_decay, settings.eps);
  }
}

}  // namespace longstraw::actors
