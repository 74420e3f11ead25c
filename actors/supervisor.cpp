#include <longstraw/actors/supervisor.hpp>

namespace longstraw::actors {

using namespace messages;
using clock = std::chrono::steady_clock;

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

double since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}
}  // namespace

supervisor::supervisor(caf::actor_config& config, environment e, std::string name, rank_actor rank,
                       optimizer_actor optimizer, std::vector<caf::actor> others)
    : actor_base(config, std::move(e), std::move(name)),
      rank_(std::move(rank)),
      optimizer_(std::move(optimizer)),
      others_(std::move(others)) {}

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
  let_go(rank_);
  let_go(optimizer_);
  others_.clear();
  let_go(reply_to_);
  job_.reset();
}

bool supervisor::current(index job_number, stage expected) const {
  return job_ && job_->number == job_number && stage_ == expected;
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
  ledger_.clear();
  next_phase_ = 0;
  failed_ = false;
  seen_operations_ = 0;
  seen_at_ = clock::now();
  env.log->debug("job_begin number={} name={} entries={}", job_->number, job_->name,
                 job_->plan.entries.size());
  if (job_->commits) {
    stage_ = stage::beginning;
    tell(optimizer_, begin_step{{}, job_, self_as<commit_listener>()});
  } else {
    start_next_phase();
  }
}

void supervisor::begun(const step_begun& m) {
  if (current(m.job_number, stage::beginning)) start_next_phase();
}

void supervisor::start_next_phase() {
  stage_ = stage::running;
  while (next_phase_ < static_cast<int>(std::size(order_of_phases)) &&
         job_->plan.of(order_of_phases[next_phase_]).empty())
    ++next_phase_;
  phase_begin_ = clock::now();
  if (next_phase_ == static_cast<int>(std::size(order_of_phases)))
    return job_->commits ? prepare() : release();
  tell(rank_, run_phase{{}, job_, order_of_phases[next_phase_], self_as<phase_listener>()});
}

void supervisor::phase_finished(const phase_done& m) {
  if (!current(m.job_number, stage::running)) return;
  seconds_of(seconds_, m.which) = since(phase_begin_);
  env.log->debug("phase_done job={} phase={} seconds={:.3f}", m.job_number, to_string(m.which),
                 since(phase_begin_));
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
    if (!ledger_.contains({r, 0}))
      return fail_job(
          errc::actor_lost,
          fmt::format(
              "the ledger has no contribution of response {} from rank 0; nothing was committed",
              r));
  stage_ = stage::preparing;
  tell(optimizer_, prepare_step{{}, job_->number});
}

void supervisor::count_vote(const vote& m) {
  if (!current(m.job_number, stage::preparing)) return;
  if (!m.yes) return fail_job(m.code, m.sentence);
  stage_ = stage::committing;
  tell(optimizer_, commit_step{{}, job_->number});
}

void supervisor::committed(const step_committed& m) {
  if (!current(m.job_number, stage::committing)) return;
  seconds_.commit = since(phase_begin_);
  release();
}

void supervisor::handle_fault(const fault& m) {
  if (!job_ || m.job_number != job_->number || stage_ == stage::releasing) return;
  if (stage_ == stage::committing)
    broken_ = "an update of the weights broke off, they are to be loaded again: " + m.sentence;
  fail_job(m.code, m.sentence);
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
  env.log->debug("job_failed number={} code=\"{}\" cause=\"{}\"", job_->number,
                 longstraw::to_string(code), sentence);
  if (job_->commits) tell(optimizer_, abort_step{{}, job_->number});
  release();
}

// Memory of the job is free again before the program hears of its end. If that fails, operations of
// the job may still run: no further job may start beside them.
void supervisor::release() {
  stage_ = stage::releasing;
  const index number = job_->number;
  ask(rank_, env.limits.operation, release_job{{}, number})
      .then(on_answer<job_released>([this, number](const job_released&) {
              if (current(number, stage::releasing)) answer();
            }),
            [this, number](const caf::error& e) {
              if (!current(number, stage::releasing)) return;
              const error cause = from_caf(this->system(), e);
              if (broken_.empty())
                broken_ =
                    fmt::format("job '{}' could not be released: {}", job_->name, cause.what());
              answer();
            });
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
  const auto now = clock::now();
  // After a pause of the whole process (a stopped terminal job) the time without progress is not the lane's.
  const bool paused = now - looked_at_ > 4 * env.limits.watchdog;
  looked_at_ = now;
  if (job_ && stage_ != stage::idle) {
    const index finished = job_->operations_done.load(std::memory_order_relaxed);
    if (finished != seen_operations_ || paused) {
      seen_operations_ = finished;
      seen_at_ = now;
    } else if (now - seen_at_ > env.limits.operation && stage_ != stage::releasing) {
      const auto limit = std::chrono::duration<double>(env.limits.operation).count();
      fail_job(errc::timed_out,
               fmt::format("no operation of job '{}' finished within {} s (running: {})",
                           job_->name, limit, job_->running.load(std::memory_order_relaxed)));
    }
  }
  messages::send_after(this, self_as<supervisor_actor>(), env.limits.watchdog, watchdog_tick{});
}

}  // namespace longstraw::actors
