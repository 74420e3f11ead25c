#include <longstraw/actors/page_store.hpp>

namespace longstraw::actors {

using namespace messages;

page_store::page_store(caf::actor_config& config, environment e, std::string name,
                       std::shared_ptr<memory::arena> states,
                       std::shared_ptr<memory::arena> gradients)
    : actor_base(config, std::move(e), std::move(name)),
      states_(std::move(states)),
      gradients_(std::move(gradients)) {}

page_store::behavior_type page_store::make_behavior() {
  return {
      on(&page_store::reserve),    // -> pages_reserved | over_budget
      on(&page_store::lease),      // -> pages_leased | bad_input
      on(&page_store::give_back),  //
      on(&page_store::drop),       // -> pages_dropped
  };
}

caf::result<pages_reserved> page_store::reserve(const reserve_pages& m) {
  try {
    pool_of(m.owner).reserve(m.owner, kernels::blocks_of(m.tokens, m.page_tokens),
                             m.page_tokens * m.floats_per_token);
    return stamped(pages_reserved{{}, m.owner});
  } catch (const error& e) {
    return to_caf(e);
  }
}

caf::result<pages_leased> page_store::lease(const lease_pages& m) {
  try {
    return stamped(pages_leased{{}, m.owner, pool_of(m.owner).lease(m.owner)});
  } catch (const error& e) {
    return to_caf(e);
  }
}

void page_store::give_back(const return_pages& m) { pool_of(m.owner).give_back(m.owner); }

caf::result<pages_dropped> page_store::drop(const drop_pages& m) {
  const auto match = [&](const page_owner& o) {
    return o.job_number == m.job_number && o.layer == m.layer;
  };
  gradients_.drop_if(match);
  if (!m.gradients_only) states_.drop_if(match);
  return stamped(pages_dropped{});
}

}  // namespace longstraw::actors
