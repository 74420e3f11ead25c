#pragma once
// The pages of one rank's conditional state and of its gradient, each within the arena of that name.
//
// receives  reserve_pages, lease_pages, return_pages, drop_pages (from layers)
// sends     answers only
// owns      two page pools; their rules PP-1 to PP-4 are this actor's invariants
//
// In this version all pages are in host memory.

#include <longstraw/actors/actor_base.hpp>
#include <longstraw/memory/page_pool.hpp>

namespace longstraw::actors {

class page_store : public actor_base<messages::page_store_actor> {
 public:
  page_store(caf::actor_config& config, environment e, std::string name,
             std::shared_ptr<memory::arena> states, std::shared_ptr<memory::arena> gradients);
  behavior_type make_behavior() override;

 private:
  caf::result<messages::pages_reserved> reserve(const messages::reserve_pages& m);
  caf::result<messages::pages_leased> lease(const messages::lease_pages& m);
  void give_back(const messages::return_pages& m);
  caf::result<messages::pages_dropped> drop(const messages::drop_pages& m);

  using pool = memory::page_pool<messages::page_owner>;
  pool& pool_of(const messages::page_owner& owner) {
    return owner.use == messages::page_use::gradient ? gradients_ : states_;
  }

  pool states_, gradients_;
};

}  // namespace longstraw::actors
