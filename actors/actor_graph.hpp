#pragma once
// All actors of a runtime: those of each rank, and the supervisor, collective and tracer that they share. Spawned into
// an actor system that somebody else owns.

#include <longstraw/actors/environment.hpp>
#include <longstraw/actors/rank_parts.hpp>
#include <longstraw/actors/tracer.hpp>
#include <longstraw/messages/interfaces.hpp>

#include <filesystem>
#include <memory>
#include <vector>

namespace longstraw::actors {

struct graph_options {
  index ranks = 1;
  int threads = 1;  ///< of each rank's lane
  index attempts = 1;
  std::string arena_prefix;
  std::filesystem::path trace_file;
  record_listener on_record;
  /// false: lane and tracer run in the system's scheduler as all others do. A long operation then starves messages: only
  /// for tests that schedule every message themselves.
  bool own_threads = true;
};

class actor_graph {
 public:
  /// errc::over_budget if gradients or scratch memory of the ranks do not fit.
  actor_graph(caf::actor_system& system, const environment& env, const graph_options& o,
              const std::shared_ptr<const models::language_model>& model,
              const std::shared_ptr<memory::budget>& budget);
  /// Ends all actors; the system waits for them.
  ~actor_graph();
  actor_graph(const actor_graph&) = delete;
  actor_graph& operator=(const actor_graph&) = delete;

  const messages::supervisor_actor& supervisor() const { return supervisor_; }
  const messages::tracer_actor& tracer() const { return tracer_; }
  /// Where the ranks' gradients are summed up.
  const messages::rank_gradients& gradients() const { return gradients_; }

 private:
  messages::rank_gradients allocate_gradients() const;
  void add_rank(index rank);

  caf::actor_system& system_;
  const environment env_;
  const graph_options options_;
  const std::shared_ptr<const models::language_model> model_;
  const std::shared_ptr<memory::budget> budget_;
  messages::rank_gradients gradients_;
  messages::tracer_actor tracer_;
  messages::collective_actor collective_;
  std::vector<messages::optimizer_actor> optimizers_;
  std::vector<messages::rank_actor> ranks_;
  std::vector<caf::actor> all_but_supervisor_;
  messages::supervisor_actor supervisor_;
};

}  // namespace longstraw::actors
