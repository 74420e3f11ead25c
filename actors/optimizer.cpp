#include <longstraw/actors/optimizer.hpp>
#include <longstraw/actors/optimizer_step.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace longstraw::actors {

using namespace messages;

optimizer::optimizer(caf::actor_config& config, environment e, std::string name, rank_parts parts,
                     std::shared_ptr<models::parameter_store> parameters)
    : actor_base(config, std::move(e), std::move(name)),
      parts_(std::move(parts)),
      parameters_(std::move(parameters)) {}

optimizer::behavior_type optimizer::make_behavior() {
  return {
      on(&optimizer::begin),               // -> step_begun, later
      on(&optimizer::prepare),             // -> vote, later
      on(&optimizer::commit),              // -> step_committed, later
      on(&optimizer::abort),               // -> step_aborted
      on(&optimizer::operation_finished),  // from the lane
      on(&optimizer::operation_broke),     // from the lane
      on(&optimizer::take_exchanged),      // from the collective
      on(&optimizer::exchange_failed),     // from the collective
  };
}

void optimizer::on_exit() {
  parts_.let_go_of_actors();
  let_go(supervisor_);
  job_.reset();
}

void optimizer::begin(const begin_step& m) {
  job_ = m.what;
  attempt_ = m.attempt;
  supervisor_ = m.reply_to;
  stage_ = stage::clearing;  // OP-2: an earlier step, attempt or runtime may have left something
  submit("clear_gradients", [all = (*job_->gradients)[static_cast<std::size_t>(parts_.at.rank)]](
                                kernels::executor& on) {
    constexpr index block = index{1} << 20;
    const auto count = static_cast<index>(all.size());
    on.parallel_for(kernels::blocks_of(count, block), [&](index b, kernels::scratch&) {
      const index n = std::min(block, count - b * block);
      std::memset(all.data() + b * block, 0, static_cast<std::size_t>(n) * sizeof(float));
    });
  });
}

// Each rank says where its gradients lie; when all have, they are complete.
void optimizer::prepare(const prepare_step& m) {
  if (!current(m.job_number) || stage_ != stage::accumulating) return;
  stage_ = stage::summing;
  if (parts_.at.alone()) return sum_shard(nullptr);
  const auto own = (*job_->gradients)[static_cast<std::size_t>(parts_.at.rank)];
  meet("sum_gradients", 0, {job_, std::as_bytes(own)});
}

void optimizer::sum_shard(std::shared_ptr<const std::vector<given_data>> given) {
  squares_ = std::make_shared<double>(0);
  submit("sum_gradients", [p = parameters_, j = job_, at = parts_.at, given,
                           squares = squares_](kernels::executor& on) {
    const token_range shard = shard_of(p->layout(), at);
    if (given) {  // OP-3
      std::vector<std::span<const float>> by_rank;
      for (const given_data& g : *given) by_rank.push_back(g.as<float>());
      sum_gradients(p->gradients(), by_rank, shard, on);
    }
    *squares = gradient_squares(*p, shard, on);
  });
}

void optimizer::take_norm(double squares) {
  const double norm = std::sqrt(squares);
  const double limit = job_->optimizer.max_grad_norm;
  clip_scale_ = limit > 0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
  if (parts_.at.rank == 0) {
    job_->commit.grad_norm = norm;
    job_->commit.clip_scale = clip_scale_;
  }
  stage_ = stage::prepared;
  tell(supervisor_, vote{{}, parts_.at.rank, job_->number, true, errc::not_finite, ""});
}

void optimizer::commit(const commit_step& m) {
  if (!current(m.job_number) || stage_ != stage::prepared) {  // OP-1
    tell(supervisor_, fault{{},
                            m.job_number,
                            attempt_,
                            errc::actor_lost,
                            "a commit was asked for that was not prepared"});
    return;
  }
  stage_ = stage::committing;
  submit("adamw",
         [p = parameters_, j = job_, at = parts_.at, scale = clip_scale_](kernels::executor& on) {
           auto& update = j->commit.updates[static_cast<std::size_t>(at.rank)];
           update = commit_result::update::begun;
           apply_adamw(*p, shard_of(p->layout(), at), j->optimizer, scale, j->optimizer_step, on);
           update = commit_result::update::done;
         });
}

caf::result<step_aborted> optimizer::abort(const abort_step& m) {
  if (current(m.job_number)) {
    job_.reset();
    stage_ = stage::idle;
  }
  return stamped(step_aborted{{}, parts_.at.rank, m.job_number});
}

void optimizer::operation_finished(const operation_done& m) {
  if (!current(m.job_number)) return;
  switch (stage_) {
    case stage::clearing:
      stage_ = stage::accumulating;
      return tell(supervisor_, step_begun{{}, parts_.at.rank, job_->number, attempt_});
    case stage::summing:
      stage_ = stage::measuring;
      if (parts_.at.alone()) return take_norm(*squares_);
      return meet("sum_squares", 1,
                  {squares_, std::as_bytes(std::span<const double>(squares_.get(), 1))});
    case stage::committing:
      stage_ = stage::idle;
      tell(supervisor_, step_committed{{}, parts_.at.rank, job_->number});
      job_.reset();
      return;
    case stage::idle:
    case stage::accumulating:
    case stage::measuring:
    case stage::prepared:
      return;
  }
}

// The exchanges of the transaction are numbered after the schedule's last entry.
void optimizer::meet(const char* what, index entry, given_data given) {
  const index entries = static_cast<index>(job_->plan.entries.size());
  tell(parts_.collective, contribute{{},
                                     {job_->number, attempt_, entries + entry, 0},
                                     parts_.at.rank,
                                     what,
                                     "transaction",
                                     -1,
                                     std::move(given),
                                     self_as<exchange_listener>()});
}

void optimizer::take_exchanged(const exchanged& m) {
  if (!current(m.key.job_number) || m.key.attempt != attempt_) return;
  if (stage_ == stage::summing) return sum_shard(m.given);
  if (stage_ != stage::measuring) return;
  double squares = 0;
  for (const given_data& g : *m.given) squares += g.as<double>()[0];
  take_norm(squares);
}

void optimizer::exchange_failed(const exchange_missed& m) {
  if (current(m.key.job_number) && m.key.attempt == attempt_)
    tell(supervisor_, fault{{}, job_->number, attempt_, errc::rank_late, m.sentence});
}

void optimizer::operation_broke(const operation_failed& m) {
  if (!current(m.job_number)) return;
  if (stage_ == stage::summing)
    tell(supervisor_, vote{{}, parts_.at.rank, job_->number, false, m.code, m.sentence});
  else
    tell(supervisor_, fault{{}, job_->number, attempt_, m.code, m.sentence});
}

void optimizer::submit(const char* name, body run) {
  auto op = std::make_shared<operation>();
  op->name = op->detail = name;
  op->run = std::move(run);
  tell(parts_.lane, submit_operation{{},
                                     job_->number,
                                     -1,
                                     0,
                                     true,
                                     false,
                                     std::move(op),
                                     job_,
                                     self_as<operation_listener>()});
}

}  // namespace longstraw::actors
