#include <longstraw/actors/actor_graph.hpp>
#include <longstraw/actors/collective.hpp>
#include <longstraw/actors/lane.hpp>
#include <longstraw/actors/layer.hpp>
#include <longstraw/actors/optimizer.hpp>
#include <longstraw/actors/page_store.hpp>
#include <longstraw/actors/plan.hpp>
#include <longstraw/actors/rank.hpp>
#include <longstraw/actors/supervisor.hpp>

namespace longstraw::actors {

using namespace messages;

namespace {
template <class Actor, class... Args>
auto spawn_with_thread(caf::actor_system& system, bool own_thread, Args&&... args) {
  return own_thread ? system.spawn<Actor, caf::detached>(std::forward<Args>(args)...)
                    : system.spawn<Actor>(std::forward<Args>(args)...);
}
}  // namespace

actor_graph::actor_graph(caf::actor_system& system, const environment& env, const graph_options& o,
                         const std::shared_ptr<const models::language_model>& model,
                         const std::shared_ptr<memory::budget>& budget)
    : system_(system), env_(env), options_(o), model_(model), budget_(budget) {
  gradients_ = allocate_gradients();
  tracer_ = spawn_with_thread<actors::tracer>(system_, o.own_threads, env_, "tracer", o.trace_file,
                                              budget_, o.on_record);
  all_but_supervisor_.push_back(caf::actor_cast<caf::actor>(tracer_));
  collective_ = system_.spawn<collective>(env_, "collective", o.ranks);
  all_but_supervisor_.push_back(caf::actor_cast<caf::actor>(collective_));
  try {
    for (index r = 0; r < o.ranks; ++r) add_rank(r);
  } catch (...) {  // no room for a rank's scratch memory
    for (const caf::actor& a : all_but_supervisor_)
      caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
    throw;
  }
  supervisor_ = system_.spawn<actors::supervisor>(env_, "supervisor", ranks_, optimizers_,
                                                  collective_, all_but_supervisor_, o.attempts);
}

rank_gradients actor_graph::allocate_gradients() const {
  struct arrays {
    std::vector<memory::buffer> memory;
    std::vector<std::span<float>> by_rank;
  };
  const auto& store = *model_->parameters();
  auto all = std::make_shared<arrays>();
  all->by_rank.push_back(store.gradients());
  all->by_rank.resize(static_cast<std::size_t>(options_.ranks));
  for (std::size_t r = 1; r < all->by_rank.size() && store.trains(); ++r) {
    auto& memory = all->memory.emplace_back(
        budget_->named(arena_name::gradients)->allocate_floats(store.layout().total()));
    memory.populate();
    all->by_rank[r] = memory.floats();
  }
  return {all, &all->by_rank};
}

void actor_graph::add_rank(index rank) {
  const auto name = [rank](const std::string& what) {
    return fmt::format("rank {} {}", rank, what);
  };
  const auto arena = [this](const char* a) { return budget_->named(options_.arena_prefix + a); };
  rank_parts parts;
  parts.at = {rank, options_.ranks};
  parts.budget = budget_;
  parts.arena_prefix = options_.arena_prefix;
  parts.staging = std::make_shared<memory::staging>(arena(arena_name::staging));
  parts.collective = collective_;
  auto executor =
      std::make_shared<kernels::executor>(options_.threads, *arena(arena_name::scratch));
  parts.lane = spawn_with_thread<lane>(system_, options_.own_threads, env_, name("lane"), rank,
                                       std::move(executor));
  parts.pages =
      system_.spawn<page_store>(env_, name("page store"), arena(arena_name::conditional_state),
                                arena(arena_name::state_gradients));
  for (const caf::actor& a :
       {caf::actor_cast<caf::actor>(parts.lane), caf::actor_cast<caf::actor>(parts.pages)})
    all_but_supervisor_.push_back(a);
  std::vector<layer_actor> layers;
  for (index l = 0; l < model_->layer_count(); ++l) {
    layers.push_back(system_.spawn<layer>(env_, name(fmt::format("layer {}", l)), l, parts));
    all_but_supervisor_.push_back(caf::actor_cast<caf::actor>(layers.back()));
  }
  optimizers_.push_back(
      system_.spawn<optimizer>(env_, name("optimizer"), parts, model_->parameters()));
  ranks_.push_back(system_.spawn<actors::rank>(env_, name("passes"), parts, std::move(layers)));
  all_but_supervisor_.push_back(caf::actor_cast<caf::actor>(optimizers_.back()));
  all_but_supervisor_.push_back(caf::actor_cast<caf::actor>(ranks_.back()));
}

actor_graph::~actor_graph() {
  all_but_supervisor_.push_back(caf::actor_cast<caf::actor>(supervisor_));
  for (const caf::actor& a : all_but_supervisor_)
    caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
}

}  // namespace longstraw::actors
