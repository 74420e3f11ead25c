#include <longstraw/actors/lane.hpp>

namespace longstraw::actors {

using namespace messages;

lane::lane(caf::actor_config& config, environment e, std::string name, messages::rank_id rank,
           std::shared_ptr<kernels::executor> on)
    : actor_base(config, std::move(e), std::move(name)), rank_(rank), on_(std::move(on)) {}

lane::behavior_type lane::make_behavior() {
  return {
      on(&lane::submit),     // -> operation_done | operation_failed, later
      on(&lane::begin_job),  // -> lane_ready
      on(&lane::run_next),   // from itself
  };
}

void lane::on_exit() { waiting_.clear(); }

void lane::submit(const submit_operation& m) {
  if (m.entry < 0) return run(m);
  if (m.job_number != job_number_ || job_failed_) return;
  waiting_.emplace(place{m.entry, m.part}, m);
  wake();
}

caf::result<lane_ready> lane::begin_job(const begin_lane_job& m) {
  job_number_ = m.job_number;
  job_failed_ = false;
  next_ = {m.first_entry, 0};
  waiting_.clear();
  return stamped(lane_ready{{}, m.job_number});
}

void lane::wake() {
  if (awake_ || waiting_.empty() || waiting_.begin()->first != next_) return;
  awake_ = true;
  tell(self_as<lane_actor>(), run_next_operation{});
}

void lane::run_next(const run_next_operation&) {
  awake_ = false;
  auto it = waiting_.begin();
  if (it == waiting_.end() || it->first != next_) return;
  const submit_operation m = std::move(it->second);
  waiting_.erase(it);
  next_ = m.last ? place{m.entry + 1, 0} : place{m.entry, m.part + 1};
  run(m);
  wake();
}

void lane::run(const submit_operation& m) {
  timeline_record record;
  const bool tracing = env.timeline->enabled();
  if (tracing) {
    record.what = timeline_record::kind::operation;
    record.name = m.what->name;
    record.detail = m.what->detail;
    record.track = track();
    record.from = m.ctx.from;
    record.span = m.ctx.span;
    record.cause = m.ctx.cause;
    record.sent_ns = m.ctx.sent_ns;
    record.step = m.job_number;
    record.entry = m.entry;
    record.response = m.what->entry.response;
    record.chunk = m.what->entry.chunk;
    record.layer = m.what->entry.layer;
    record.begin_ns = timeline::now_ns();
    timeline_record queue;
    queue.what = timeline_record::kind::counter;
    queue.name = "lane queue";
    queue.track = track();
    queue.begin_ns = record.begin_ns;
    queue.value = static_cast<std::int64_t>(waiting_.size());
    env.timeline->add(queue);
  }
  auto& running = m.of->running[static_cast<std::size_t>(rank_)];
  running.store(m.what->name, std::memory_order_relaxed);
  errc code = errc::internal;
  std::string sentence;
  bool failed = false;
  try {
    m.what->run(*on_);
  } catch (const error& e) {
    failed = true, code = e.code(), sentence = e.what();
  } catch (const std::exception& e) {
    failed = true, sentence = fmt::format("operation '{}' failed: {}", m.what->name, e.what());
  }
  m.of->operations_done.fetch_add(1, std::memory_order_relaxed);
  running.store(nullptr, std::memory_order_relaxed);
  if (tracing) {
    record.end_ns = timeline::now_ns();
    env.timeline->add(record);
  }
  if (!failed) {
    // Of most parts before the last nobody wants to know: an answer would only wake its receiver's
    // thread while the next operation waits.
    if (m.last || m.answers)
      tell(m.reply_to, operation_done{{}, m.job_number, m.entry, m.part, m.last});
    return;
  }
  if (m.job_number == job_number_) {
    job_failed_ = true;
    waiting_.clear();
  }
  tell(m.reply_to, operation_failed{{}, m.job_number, m.entry, code, sentence});
}

}  // namespace longstraw::actors
