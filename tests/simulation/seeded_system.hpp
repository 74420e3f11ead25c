#pragma once
// An actor system in which nothing happens by itself: the caller says which actor handles its next message, and when
// time passes. All that a CAF release spells in its own way stands here.
//
// CAF 0.17 brings a scheduler for it, scheduler::test_coordinator. CAF 1.x has caf::test::fixture::deterministic
// instead, whose events are picked by receiver: the class below is then to be written on top of it. Until then the
// simulation is not built there.

#include <longstraw/messages/conversations.hpp>

#include <caf/scheduler/test_coordinator.hpp>

#include <chrono>

namespace longstraw::testing {

class seeded_system {
 public:
  seeded_system();
  /// All actors must have ended.
  ~seeded_system();

  caf::actor_system& actors() { return system_; }

  /// Actors with a message to handle.
  std::size_t runnable() const { return coordinator_->jobs.size(); }
  /// Who that is: a number of its own for each actor, the same in every run.
  std::uint64_t who(std::size_t place) const;
  /// That actor handles one message.
  void run(std::size_t place);

  std::chrono::nanoseconds now() const;
  void pass_time(std::chrono::milliseconds t);
  /// To the next deadline or delayed message; false if there is none.
  bool pass_time_to_next();

 private:
  struct config : messages::system_config {
    config();
  };
  config config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator* coordinator_;
};

/// What the program sees of its jobs.
struct program_view {
  int answers = 0;  ///< job_done messages
  messages::job_done last;
  bool supervisor_ended = false;
};

/// The actor that stands for the program: starts jobs and gets their ends.
class program_actor : public messages::watching<messages::job_listener::base> {
 public:
  using behavior_type = messages::job_listener::behavior_type;
  program_actor(caf::actor_config& c, std::shared_ptr<program_view> view, caf::actor supervisor);
  behavior_type make_behavior() override;

 private:
  std::shared_ptr<program_view> view_;
};

}  // namespace longstraw::testing
