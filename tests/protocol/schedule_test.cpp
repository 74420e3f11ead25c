// The schedule is the order in which everything happens.

#include <longstraw/messages/schedule.hpp>

#include <catch2/catch_test_macros.hpp>

namespace longstraw::messages {
namespace {

TEST_CASE("capture covers all prompt tokens but the last, chunk by chunk through all layers",
          "[protocol]") {
  schedule s;
  add_capture(s, 11, 4, 2);
  REQUIRE(s.entries.size() == 9);
  CHECK(to_string(s.entries[0], 0) == "0 capture embed chunk=0 tokens=[0,4)");
  CHECK(to_string(s.entries[2], 2) == "2 capture capture_layer layer=1 chunk=0 tokens=[0,4)");
  CHECK(s.entries[8].tokens == token_range{8, 10});
}

TEST_CASE("a prompt of one token has nothing to capture", "[protocol]") {
  schedule s;
  add_capture(s, 1, 4, 2);
  CHECK(s.entries.empty());
}

TEST_CASE("a replay runs its layers forward, the loss, and the layers backward", "[protocol]") {
  schedule s;
  add_replay(s, 3, 11, 5, 2);
  REQUIRE(s.entries.size() == 7);
  CHECK(to_string(s.entries[1], 1) == "1 replay forward_layer layer=0 response=3 tokens=[10,15)");
  CHECK(s.entries[3].what == verb::loss_head);
  CHECK(s.entries[4].layer == 1);
  CHECK(s.entries[5].layer == 0);
  CHECK(s.entries[6].what == verb::embed_backward);
}

TEST_CASE("phases are found as ranges", "[protocol]") {
  schedule s;
  add_capture(s, 5, 4, 1);
  add_score(s, 0, 5, 2, 1);
  add_replay(s, 0, 5, 2, 1);
  CHECK(s.of(phase::capture).end == 2);
  CHECK(s.of(phase::score).begin == 2);
  CHECK(s.of(phase::score).end == 5);
  CHECK(s.of(phase::replay).end == 10);
  CHECK(s.of(phase::decode).empty());
}

}  // namespace
}  // namespace longstraw::messages
