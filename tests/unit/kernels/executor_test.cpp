#include "support/runner.hpp"

#include <longstraw/kernels/executor.hpp>

#include <catch2/generators/catch_generators.hpp>

#include <numeric>

namespace longstraw::testing {

using namespace kernels;

TEST_CASE("a loop runs every item exactly once", "[unit]") {
  const int threads = GENERATE(1, 2, 3);
  const index count = GENERATE(0, 1, 2, 7, 1000);
  CAPTURE(threads, count);
  runner on(threads);
  std::vector<std::atomic<int>> runs(static_cast<std::size_t>(count));
  on.exec.parallel_for(count,
                       [&](index item, scratch&) { ++runs[static_cast<std::size_t>(item)]; });
  for (const auto& r : runs) CHECK(r == 1);
}

TEST_CASE("many short loops in a row lose no item and see each other's results", "[unit]") {
  const int threads = GENERATE(1, 2, 3);
  runner on(threads);
  std::vector<int> values(64, 0);  // plain memory: a loop that started early would race
  for (int round = 0; round < 3000; ++round) {
    const index count = 1 + round % 64;
    on.exec.parallel_for(count,
                         [&](index item, scratch&) { ++values[static_cast<std::size_t>(item)]; });
  }
  int sum = std::accumulate(values.begin(), values.end(), 0), want = 0;
  for (int round = 0; round < 3000; ++round) want += 1 + round % 64;
  CHECK(sum == want);
}

TEST_CASE("a loop wakes threads that have gone to sleep", "[unit]") {
  runner on(2);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic<int> runs{0};
    on.exec.parallel_for(100, [&](index, scratch&) { ++runs; });
    CHECK(runs == 100);
  }
}

TEST_CASE("a loop inside an item runs on that item's thread", "[unit]") {
  const int threads = GENERATE(1, 3);
  runner on(threads);
  std::vector<index> sums(20, 0);
  std::atomic<int> strangers{0};
  on.exec.parallel_for(20, [&](index outer, scratch& local) {
    const auto self = std::this_thread::get_id();
    const auto kept = local.floats(16);
    kept[0] = static_cast<float>(outer);
    on.exec.parallel_for(50, [&](index inner, scratch& nested) {
      if (std::this_thread::get_id() != self) ++strangers;
      nested.floats(16)[0] = -1.0f;
      sums[static_cast<std::size_t>(outer)] += inner;
    });
    if (kept[0] != static_cast<float>(outer)) ++strangers;
  });
  CHECK(strangers == 0);
  for (const index s : sums) CHECK(s == 50 * 49 / 2);
}

TEST_CASE("each item finds its thread's scratch free, and what the caller took stays", "[unit]") {
  const int threads = GENERATE(1, 2);
  const auto budget = memory::budget::make(0);
  executor on(threads, *budget->named("scratch"), 4096);
  const index mark = on.local().mark();
  const auto kept = on.local().floats(100);
  std::fill(kept.begin(), kept.end(), 3.0f);
  on.parallel_for(200, [&](index, scratch& local) {
    const auto all = local.floats(800);
    std::fill(all.begin(), all.end(), -1.0f);
  });
  for (const float x : kept) CHECK(x == 3.0f);
  on.local().rewind(mark);
  CHECK(on.local().floats(1024).size() == 1024);
}

TEST_CASE("scratch parts are aligned to cache lines and do not overlap", "[unit]") {
  runner on(1);
  scratch& local = on.exec.local();
  const mat a = local.matrix(3, 5), b = local.matrix(1, 1);
  CHECK(reinterpret_cast<std::uintptr_t>(a.data) % 64 == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(b.data) % 64 == 0);
  CHECK(b.data - a.data == 16);
}

TEST_CASE("an executor ends whether or not it has worked", "[unit]") {
  for (int round = 0; round < 20; ++round) {
    runner idle(3);
    runner used(3);
    std::atomic<int> runs{0};
    used.exec.parallel_for(5, [&](index, scratch&) { ++runs; });
    CHECK(runs == 5);
  }
}

TEST_CASE("an executor's scratch is drawn from its arena and given back", "[unit]") {
  const auto budget = memory::budget::make(0);
  {
    executor on(3, *budget->named("scratch"), 1 << 16);
    CHECK(budget->current_bytes() == 3u << 16);
  }
  CHECK(budget->current_bytes() == 0);
}

TEST_CASE("inside an item, local() is the scratch of the item's own thread", "[unit]") {
  runner on(3);
  std::atomic<int> entered{0}, same{0};
  on.exec.parallel_for(3, [&](index, scratch& mine) {
    ++entered;
    while (entered < 3) std::this_thread::yield();  // so that each thread has one item
    if (&on.exec.local() == &mine) ++same;
  });
  CHECK(same == 3);
}

}  // namespace longstraw::testing
