#include "seeded_system.hpp"

#include <algorithm>

namespace longstraw::testing {

seeded_system::config::config() : system_config(1) {
  set("scheduler.policy", caf::atom("testing"));
}

seeded_system::seeded_system()
    : system_(config_),
      coordinator_(&dynamic_cast<caf::scheduler::test_coordinator&>(system_.scheduler())) {}

seeded_system::~seeded_system() = default;

std::uint64_t seeded_system::who(std::size_t place) const {
  return dynamic_cast<caf::scheduled_actor&>(*coordinator_->jobs[place]).id();
}

void seeded_system::run(std::size_t place) {
  auto& jobs = coordinator_->jobs;
  const auto at = jobs.begin() + static_cast<std::ptrdiff_t>(place);
  std::rotate(jobs.begin(), at, at + 1);
  coordinator_->run_once();
}

std::chrono::nanoseconds seeded_system::now() const {
  return coordinator_->clock().now().time_since_epoch();
}

void seeded_system::pass_time(std::chrono::milliseconds t) { coordinator_->advance_time(t); }

bool seeded_system::pass_time_to_next() { return coordinator_->trigger_timeout(); }

program_actor::program_actor(caf::actor_config& c, std::shared_ptr<program_view> view,
                             caf::actor supervisor)
    : watching(c), view_(std::move(view)) {
  start_watching();
  watch(supervisor, [v = view_](const caf::error&) { v->supervisor_ended = true; });
}

program_actor::behavior_type program_actor::make_behavior() {
  return {[this](const messages::job_done& m) {
    ++view_->answers;
    view_->last = m;
  }};
}

}  // namespace longstraw::testing
