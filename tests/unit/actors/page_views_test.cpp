// Where a rank's tokens lie in its pages.

#include <longstraw/actors/page_views.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <map>

namespace longstraw::actors {
namespace {

TEST_CASE("on one rank a page is one view, however the prompt was cut", "[unit]") {
  std::vector<float> memory(12);
  const std::vector<float*> pages{memory.data(), memory.data() + 4, memory.data() + 8};
  const std::vector<token_range> chunks{{0, 3}, {3, 6}, {6, 9}};
  std::vector<models::state_page> views;
  add_page_views(views, pages, 4, chunks, {});
  REQUIRE(views.size() == 3);
  for (std::size_t p = 0; p < 3; ++p) {
    CHECK(views[p].data == pages[p]);
    CHECK(views[p].slot == 0);
    CHECK(views[p].position == static_cast<index>(4 * p));
    CHECK(views[p].capacity == 4);
  }
  CHECK(views[2].tokens == 1);
}

TEST_CASE("ranks together hold each token once, packed without a gap", "[unit]") {
  const index ranks = GENERATE(1, 2, 3, 7, 16);
  const index page_tokens = GENERATE(1, 3, 64);
  const std::vector<token_range> chunks{{0, 10}, {10, 20}, {20, 23}};
  std::map<index, int> seen;
  for (index r = 0; r < ranks; ++r) {
    const models::rank_share at{r, ranks};
    const index tokens = tokens_of_rank(chunks, at);
    std::vector<float> memory(static_cast<std::size_t>(tokens + page_tokens));
    std::vector<float*> pages;
    for (index p = 0; p * page_tokens < tokens; ++p)
      pages.push_back(memory.data() + p * page_tokens);
    std::vector<models::state_page> views;
    add_page_views(views, pages, page_tokens, chunks, at);
    index place = 0;
    for (const models::state_page& v : views)
      for (index i = 0; i < v.tokens; ++i, ++place) {
        CHECK(v.data + v.slot + i == memory.data() + place);
        ++seen[v.position + i];
      }
    CHECK(place == tokens);
  }
  REQUIRE(seen.size() == 23);
  for (const auto& [position, times] : seen) CHECK(times == 1);
}

}  // namespace
}  // namespace longstraw::actors
