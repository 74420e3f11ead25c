// The rules of the page pool.

#include <longstraw/memory/page_pool.hpp>

#include <catch2/catch_test_macros.hpp>

namespace longstraw::memory {
namespace {

struct pool_in_budget {
  std::shared_ptr<budget> all = budget::make(1 << 20);
  page_pool<int> pool{all->named("pages")};
};

TEST_CASE("PP-1: dropping ends leases, and who still holds pages keeps their memory", "[unit]") {
  pool_in_budget p;
  p.pool.reserve(1, 3, 64);
  auto first = p.pool.lease(1);
  p.pool.lease(1);
  REQUIRE(first->size() == 3);
  p.pool.drop_if([](int) { return true; });
  CHECK(p.pool.owners() == 0);
  CHECK(p.all->current_bytes() == 3 * 64 * sizeof(float));
  (*first)[2][63] = 1.0f;
  first.reset();
  CHECK(p.all->current_bytes() == 0);
  p.pool.give_back(1);  // came late
  p.pool.reserve(1, 1, 64);
  CHECK(p.all->current_bytes() == 64 * sizeof(float));
}

TEST_CASE("PP-2: what does not fit the budget takes nothing", "[unit]") {
  pool_in_budget p;
  CHECK_THROWS_AS(p.pool.reserve(1, 1024, 1024), error);
  CHECK(p.all->current_bytes() == 0);
  p.pool.reserve(1, 4, 64);
}

TEST_CASE("PP-3: dropped pages cannot be leased again, and nobody reserves twice", "[unit]") {
  pool_in_budget p;
  p.pool.reserve(1, 1, 64);
  p.pool.reserve(2, 1, 64);
  CHECK_THROWS_AS(p.pool.reserve(1, 1, 64), error);
  p.pool.lease(1);
  p.pool.drop_if([](int owner) { return owner == 1; });
  CHECK_THROWS_AS(p.pool.lease(1), error);
  CHECK_THROWS_AS(p.pool.lease(3), error);
  p.pool.lease(2);
}

TEST_CASE("PP-4: what a lease returned keeps the memory when the pool has ended", "[unit]") {
  const auto job = budget::make(0);
  auto pool = std::make_unique<page_pool<int>>(job->named("conditional state"));
  pool->reserve(1, 2, 16);
  auto pages = pool->lease(1);
  pool.reset();
  CHECK(job->current_bytes() == 2 * 16 * sizeof(float));
  for (float* page : *pages) page[15] = 1.0f;
  pages.reset();
  CHECK(job->current_bytes() == 0);
}

}  // namespace
}  // namespace longstraw::memory
