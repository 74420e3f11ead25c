// The page store alone, message by message.

#include <longstraw/actors/page_store.hpp>

#include <catch2/catch_test_macros.hpp>
#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

namespace longstraw::testing {
namespace {

using namespace messages;

struct store_alone {
  system_config config{1};
  caf::actor_system system{config};
  std::shared_ptr<memory::budget> budget = memory::budget::make(0);
  page_store_actor store;
  caf::scoped_actor self{system};

  store_alone() {
    actors::environment env;
    env.timeline = std::make_shared<timeline>(false);
    env.log =
        std::make_shared<spdlog::logger>("none", std::make_shared<spdlog::sinks::null_sink_mt>());
    store = system.spawn<actors::page_store>(env, "page store", budget->named("state"),
                                             budget->named("gradients"));
  }
  ~store_alone() { caf::anon_send_exit(store, caf::exit_reason::user_shutdown); }

  /// The code of the error, or nothing.
  template <class Answer, class Message>
  std::optional<errc> ask(Message m) {
    std::optional<errc> code;
    request(self.operator->(), store, std::chrono::seconds(10), std::move(m))
        .receive([](const Answer&) {},
                 [&](const caf::error& e) { code = from_caf(system, e).code(); });
    return code;
  }
};

TEST_CASE("pages of an older policy version cannot be leased", "[protocol]") {
  store_alone s;
  const page_owner old{1, 7, 0, -1, page_use::state};
  REQUIRE(s.ask<pages_reserved>(reserve_pages{{}, old, 10, 4, 8}) == std::nullopt);
  CHECK(s.ask<pages_leased>(lease_pages{{}, old}) == std::nullopt);
  page_owner now = old;
  now.policy_version = 2;
  CHECK(s.ask<pages_leased>(lease_pages{{}, now}) == errc::bad_input);
}

TEST_CASE("PP-1: pages whose lease was never returned go with their job", "[protocol]") {
  store_alone s;
  const page_owner owner{1, 7, 0, -1, page_use::state};
  REQUIRE(s.ask<pages_reserved>(reserve_pages{{}, owner, 10, 4, 8}) == std::nullopt);
  REQUIRE(s.ask<pages_leased>(lease_pages{{}, owner}) == std::nullopt);
  CHECK(s.budget->current_bytes() > 0);
  CHECK(s.ask<pages_dropped>(drop_pages{{}, 7, 0, false}) == std::nullopt);
  CHECK(s.budget->current_bytes() == 0);
  CHECK(s.ask<pages_leased>(lease_pages{{}, owner}) == errc::bad_input);
}

}  // namespace
}  // namespace longstraw::testing
