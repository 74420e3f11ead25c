#include <longstraw/actors/tracer.hpp>

namespace longstraw::actors {

using namespace messages;

tracer::tracer(caf::actor_config& config, environment e, std::string name,
               std::filesystem::path file, std::shared_ptr<memory::budget> budget,
               record_listener listener)
    : actor_base(config, std::move(e), std::move(name)),
      listener_(std::move(listener)),
      budget_(std::move(budget)) {
  if (!file.empty()) writer_.emplace(std::move(file));
}

tracer::behavior_type tracer::make_behavior() {
  if (wanted())
    messages::send_after(this, self_as<tracer_actor>(), flush_interval, flush_timeline{});
  return {
      on(&tracer::flush),  // from itself
      on(&tracer::close),  // -> timeline_closed | io_failed
  };
}

void tracer::flush(const flush_timeline&) {
  if (!wanted()) return;
  write();
  messages::send_after(this, self_as<tracer_actor>(), flush_interval, flush_timeline{});
}

void tracer::write() {
  auto batch = env.timeline->drain();
  const auto usage = budget_->report();
  const std::int64_t now = timeline::now_ns();
  // Names live until the batch is written.
  std::vector<std::string> names;
  names.reserve(usage.size());
  if (!batch.records.empty())
    for (const auto& u : usage) {
      timeline_record r;
      r.what = timeline_record::kind::counter;
      r.name = names.emplace_back(u.name + " bytes").c_str();
      r.begin_ns = now;
      r.value = static_cast<std::int64_t>(u.current_bytes);
      batch.records.push_back(r);
    }
  const std::vector<std::string> tracks = env.timeline->tracks();
  if (writer_) writer_->write(batch, tracks);
  if (listener_)
    for (const timeline_record& r : batch.records) listener_(r, tracks);
}

caf::result<timeline_closed> tracer::close(const close_timeline&) {
  if (!wanted()) return timeline_closed{};
  try {
    write();
    listener_ = {};
    if (!writer_) return timeline_closed{};
    writer_->close();
    timeline_closed answer{{}, writer_->records(), writer_->dropped()};
    writer_.reset();
    return answer;
  } catch (const error& e) {
    return to_caf(e);
  }
}

}  // namespace longstraw::actors
