#pragma once
// Moves timeline records to the trace file while the job runs.
//
// receives  flush_timeline (itself), close_timeline (program)
// sends     timeline_closed (answer)
// owns      the trace file
//
// Runs on a thread of its own: a slow disk delays no other actor, it only fills the timeline's
// bounded buffer.

#include <longstraw/actors/actor_base.hpp>
#include <longstraw/actors/trace_writer.hpp>
#include <longstraw/memory/arena.hpp>

#include <functional>
#include <optional>

namespace longstraw::actors {

/// Sees every record of the timeline, with the names of its tracks.
using record_listener = std::function<void(const messages::timeline_record& record,
                                           const std::vector<std::string>& tracks)>;

class tracer : public actor_base<messages::tracer_actor> {
 public:
  static constexpr std::chrono::milliseconds flush_interval{50};

  /// file: empty for no file. listener: none, or called on this actor's thread.
  tracer(caf::actor_config& config, environment e, std::string name, std::filesystem::path file,
         std::shared_ptr<memory::budget> budget, record_listener listener = {});
  behavior_type make_behavior() override;

 private:
  void flush(const messages::flush_timeline& m);
  caf::result<messages::timeline_closed> close(const messages::close_timeline& m);
  void write();
  bool wanted() const { return writer_ || listener_; }

  std::optional<trace_writer> writer_;
  record_listener listener_;
  const std::shared_ptr<memory::budget> budget_;
};

}  // namespace longstraw::actors
