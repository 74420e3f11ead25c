#include <longstraw/actors/supervisor.hpp>

namespace longstraw::actors {

using namespace messages;

namespace {
constexpr phase order_of_phases[] = {phase::capture, phase::score, phase::replay, phase::sweep,
                                     phase::decode};

double& seconds_of(phase_seconds& s, phase p) {
  switch (p) {
    case phase::capture:
      return s.capture;
    case phase::score:
      return s.score;
    case phase::replay:
      return s.replay;
    case phase::sweep:
      return s.sweep;
    case phase::decode:
      return s.decode;
  }
  return s.commit;
}

}  // namespace

supervisor::supervisor(caf::actor_config& config, environment e, std::string name,
                       std::vector<rank_actor> ranks, std::vector<optimizer_actor> optimizers,
                       collective_actor collective, std::vector<caf::actor> others, index attempts)
    : actor_base(config, std::move(e), std::move(name)),
      ranks_(std::move(ranks)),
      optimizers_(std::move(optimizers)),
      collective_(std::move(collective)),
      others_(std::move(others)),
      attempts_(attempts) {}

supervisor::behavior_type supervisor::make_behavior() {
  const auto ended = [this](const caf::error& reason) { actor_ended(reason); };
  for (const caf::actor& a : others_) this->watch(a, ended);
  messages::send_after(this, self_as<supervisor_actor>(), env.limits.watchdog, watchdog_tick{});
  return {
      on(&supervisor::run),              // -> job_done, later
      on(&supervisor::cancel),           //
      on(&supervisor::phase_finished),   // from the rank
      on(&supervisor::enter_in_ledger),  // from the rank
      on(&supervisor::begun),            // from the optimizer
      on(&supervisor::count_vote),       // from the optimizer
      on(&supervisor::committed),        // from the optimizer
      on(&supervisor::handle_fault),     // from any actor
      on(&supervisor::look),             // from itself
  };
}

void supervisor::on_exit() {
  ranks_.clear();
  optimizers_.clear();
  let_go(collective_);
  others_.clear();
  let_go(reply_to_);
  job_.reset();
}

bool supervisor::current(index job_number, stage expected) const {
  return job_ && job_->number == job_number && stage_ == expected;
}

double supervisor::seconds_since(std::chrono::steady_clock::time_point begin) const {
  return std::chrono::duration<double>(this->clock().now() - begin).count();
}

// Counts the answers of a stage; true at the one that completes them.
bool supervisor::last_of_all(rank_id rank) {
  answered_.insert(rank);
  if (answered_.size() < ranks_.size()) return false;
  answered_.clear();
  return true;
}

void supervisor::run(const run_job& m) {
  if (stage_ != stage::idle || !broken_.empty()) {
    const bool broken = !broken_.empty();
    tell(m.reply_to, job_done{{},
                              m.what,
                              {},
                              true,
                              broken ? errc::actor_lost : errc::bad_input,
                              broken ? broken_ : "a job was started while another one ran",
                              broken});
    return;
  }
  job_ = m.what;
  reply_to_ = m.reply_to;
  seconds_ = {};
  attempt_ = 0;
  first_phase_ = 0;
  failed_ = false;
  seen_operations_ = 0;
  seen_at_ = this->clock().now();
  env.log->debug("job_begin number={} name={} entries={}", job_->number, job_->name,
                 job_->plan.entries.size());
  start_attempt();
}

void supervisor::start_attempt() {
  ledger_.clear();
  answered_.clear();
  next_phase_ = first_phase_;
  tell(collective_, begin_exchanges{{}, job_->number, attempt_});
  if (!job_->commits) return start_next_phase();
  stage_ = stage::beginning;
  for (const optimizer_actor& o : optimizers_)
    tell(o, begin_step{{}, job_, attempt_, self_as<commit_listener>()});
}

void supervisor::begun(const step_begun& m) {
  if (current(m.job_number, stage::beginning) && m.attempt == attempt_ && last_of_all(m.rank))
    start_next_phase();
}

void supervisor::start_next_phase() {
  stage_ = stage::running;
  while (next_phase_ < static_cast<int>(std::size(order_of_phases)) &&
         job_->plan.of(order_of_phases[next_phase_]).empty())
    ++next_phase_;
  phase_begin_ = this->clock().now();
  if (next_phase_ == static_cast<int>(std::size(order_of_phases)))
    return job_->commits ? prepare() : release();
  for (const rank_actor& r : ranks_)
    tell(r, run_phase{{}, job_, attempt_, order_of_phases[next_phase_], self_as<phase_listener>()});
}

void supervisor::phase_finished(const phase_done& m) {
  if (!current(m.job_number, stage::running) || !last_of_all(m.rank)) return;
  const double seconds = seconds_since(phase_begin_);
  seconds_of(seconds_, m.which) += seconds;
  env.log->debug("phase_done job={} phase={} seconds={:.3f}", m.job_number, to_string(m.which),
                 seconds);
  ++next_phase_;
  start_next_phase();
}

void supervisor::enter_in_ledger(const response_replayed& m) {
  if (!current(m.job_number, stage::running)) return;
  if (!ledger_.emplace(m.response, m.rank).second)
    fail_job(errc::internal,
             fmt::format("rank {} reported response {} twice; nothing was committed", m.rank,
                         m.response));
}

void supervisor::prepare() {
  for (const index r : job_->replayed_responses)  // SV-2
    for (rank_id rank = 0; rank < static_cast<rank_id>(ranks_.size()); ++rank)
      if (!ledger_.contains({r, rank}))
        return fail_job(
            errc::actor_lost,
            fmt::format(
                "the ledger has no contribution of response {} from rank {}; nothing was committed",
                r, rank));
  stage_ = stage::preparing;
  for (const optimizer_actor& o : optimizers_) tell(o, prepare_step{{}, job_->number});
}

void supervisor::count_vote(const vote& m) {
  if (!current(m.job_number, stage::preparing)) return;
  if (!m.yes) return fail_job(m.code, m.sentence);
  if (!last_of_all(m.rank)) return;
  stage_ = stage::committing;
  job_->commit.decided = true;
  for (const optimizer_actor& o : optimizers_) tell(o, commit_step{{}, job_->number});
}

void supervisor::committed(const step_committed& m) {
  if (!current(m.job_number, stage::committing) || !last_of_all(m.rank)) return;
  seconds_.commit = seconds_since(phase_begin_);
  release();
}

void supervisor::handle_fault(const fault& m) {
  if (!job_ || m.job_number != job_->number || m.attempt != attempt_) return;
  if (stage_ == stage::releasing || stage_ == stage::rewinding || try_again(m.code, m.sentence))
    return;
  if (stage_ == stage::committing)
    broken_ = "an update of the weights broke off, they are to be loaded again: " + m.sentence;
  fail_job(m.code, m.sentence);
}

// SV-4. Before the end of capture there is nothing to keep.
bool supervisor::try_again(errc code, const std::string& sentence) {
  const bool captured =
      stage_ == stage::preparing ||
      (stage_ == stage::running && order_of_phases[next_phase_] != phase::capture);
  if (code != errc::rank_late || !captured || !job_->commits || attempt_ + 1 >= attempts_)
    return false;
  env.log->warn("attempt_aborted job={} attempt={}; the responses are replayed once more",
                job_->number, attempt_);
  stage_ = stage::rewinding;
  spoiled_by_ = sentence;
  ++attempt_;
  first_phase_ = 1;
  tell(collective_, begin_exchanges{{}, 0, 0});
  ask_all<step_aborted>(optimizers_, abort_step{{}, job_->number}, &supervisor::rewind);
  return true;
}

void supervisor::rewind() {
  ask_all<job_rewound>(ranks_, rewind_job{{}, job_->number, attempt_}, &supervisor::start_attempt);
}

void supervisor::cancel(const cancel_job&) {
  if (job_ && stage_ != stage::committing && stage_ != stage::releasing)
    fail_job(errc::cancelled,
             fmt::format("job '{}' was stopped; nothing was committed", job_->name));
}

void supervisor::fail_job(errc code, const std::string& sentence) {
  failed_ = true;
  code_ = code;
  sentence_ = sentence;
  if (code == errc::rank_late && job_->commits) sentence_ += "; nothing was committed";
  env.log->debug("job_failed number={} code=\"{}\" cause=\"{}\"", job_->number,
                 longstraw::to_string(code), sentence);
  if (!job_->commits) return release();
  begin_release();
  ask_all<step_aborted>(optimizers_, abort_step{{}, job_->number}, &supervisor::release_ranks);
}

void supervisor::release() {
  begin_release();
  release_ranks();
}

void supervisor::begin_release() {
  stage_ = stage::releasing;
  tell(collective_, begin_exchanges{{}, 0, 0});
}

// Memory of the job is free again before the program hears of its end.
void supervisor::release_ranks() {
  ask_all<job_released>(ranks_, release_job{{}, job_->number}, &supervisor::answer);
}

/// Asks the actors of all ranks and goes on when all have answered. A failure ends a rewind as it ends an attempt. While
/// a job is released it breaks the runtime: operations of the job may still run, and no further job may start beside
/// them.
template <class Answer, class Handle, class Question>
void supervisor::ask_all(const std::vector<Handle>& all, const Question& question,
                         void (supervisor::*next)()) {
  answered_.clear();
  const auto still = [this, number = job_->number, attempt = attempt_, during = stage_] {
    return current(number, during) && attempt == attempt_;
  };
  for (rank_id rank = 0; rank < static_cast<rank_id>(all.size()); ++rank) {
    const auto answered = [this, rank, next] {
      if (last_of_all(rank)) (this->*next)();
    };
    ask(all[static_cast<std::size_t>(rank)], env.limits.operation, question)
        .then(on_answer<Answer>([still, answered](const Answer&) {
                if (still()) answered();
              }),
              [this, still, answered](const caf::error& e) {
                if (!still()) return;
                const error cause = from_caf(this->system(), e);
                if (stage_ == stage::rewinding)
                  return fail_job(cause.code(),
                                  fmt::format("{}; the attempt could not be rewound: {}",
                                              spoiled_by_, cause.what()));
                if (broken_.empty())
                  broken_ =
                      fmt::format("job '{}' could not be released: {}", job_->name, cause.what());
                answered();
              });
  }
}

void supervisor::answer() {
  tell(reply_to_, job_done{{}, job_, seconds_, failed_, code_, sentence_, !broken_.empty()});
  job_.reset();
  stage_ = stage::idle;
}

void supervisor::actor_ended(const caf::error& reason) {
  const error cause = from_caf(this->system(), reason);
  if (broken_.empty()) broken_ = cause.what();
  if (!job_) return;
  // Others may wait for the actor that ended: no orderly release, the runtime is torn down by its
  // owner.
  if (!failed_) {
    failed_ = true;
    code_ = cause.code();
    sentence_ = cause.what();
  }
  answer();
}

void supervisor::look(const watchdog_tick&) {
  const auto now = this->clock().now();
  // After a pause of the whole process (a stopped terminal job) the time without progress is not the lane's.
  const bool paused = now - looked_at_ > 4 * env.limits.watchdog;
  looked_at_ = now;
  if (job_ && stage_ != stage::idle) {
    const index finished = job_->operations_done.load(std::memory_order_relaxed);
    if (finished != seen_operations_ || paused) {
      seen_operations_ = finished;
      seen_at_ = now;
    } else if (now - seen_at_ > env.limits.operation && stage_ != stage::releasing &&
               stage_ != stage::rewinding) {
      const auto limit = std::chrono::duration<double>(env.limits.operation).count();
      // The step is decided: who carries it through must know that no actor changes weights beside it.
      if (stage_ == stage::committing)
        broken_ = fmt::format("an update of the weights did not end within {} s", limit);
      fail_job(errc::timed_out,
               fmt::format("no operation of job '{}' finished within {} s (running: {})",
                           job_->name, limit, job_->running_now()));
    }
  }
  messages::send_after(this, self_as<supervisor_actor>(), env.limits.watchdog, watchdog_tick{});
}

}  // namespace longstraw::actors
