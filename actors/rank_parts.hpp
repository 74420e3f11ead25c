#pragma once
// What the actors of one rank share.

#include <longstraw/actors/environment.hpp>
#include <longstraw/memory/staging.hpp>
#include <longstraw/messages/interfaces.hpp>

#include <memory>

namespace longstraw::actors {

struct rank_parts {
  models::rank_share at;
  messages::lane_actor lane;
  messages::page_store_actor pages;
  messages::collective_actor collective;
  /// What is on its way to other ranks lies here.
  std::shared_ptr<memory::staging> staging;
  std::shared_ptr<memory::budget> budget;
  std::string arena_prefix;

  std::shared_ptr<memory::arena> arena(const char* name) const {
    return budget->named(arena_prefix + name);
  }
  /// For on_exit.
  void let_go_of_actors() {
    messages::let_go(lane);
    messages::let_go(pages);
    messages::let_go(collective);
  }
};

}  // namespace longstraw::actors
