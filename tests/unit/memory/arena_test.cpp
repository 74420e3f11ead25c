#include <longstraw/memory/arena.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <thread>

namespace longstraw::memory {

TEST_CASE("a buffer is zero-filled and aligned to a cache line", "[unit]") {
  const auto job = budget::make(0);
  const auto a = job->named("activations");
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{4096}, std::size_t{20} << 20}) {
    const buffer b = a->allocate(bytes);
    CHECK(b.bytes() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
    const auto values = b.floats();
    CHECK(std::all_of(values.begin(), values.end(), [](float x) { return x == 0.0f; }));
  }
}

TEST_CASE("a buffer is counted from its allocation to its end", "[unit]") {
  const auto job = budget::make(1000);
  const auto a = job->named("moments");
  {
    const buffer first = a->allocate(600);
    CHECK(job->current_bytes() == 600);
    buffer second = a->allocate(400);
    CHECK(job->current_bytes() == 1000);
    second = buffer();
    CHECK(job->current_bytes() == 600);
  }
  CHECK(job->current_bytes() == 0);
  CHECK(job->peak_bytes() == 1000);
}

TEST_CASE("moving a buffer keeps one owner", "[unit]") {
  const auto job = budget::make(0);
  buffer first = job->named("pages")->allocate(64);
  std::byte* const data = first.data();
  buffer second = std::move(first);
  CHECK(second.data() == data);
  CHECK_FALSE(first);
  CHECK(first.bytes() == 0);
  CHECK(job->current_bytes() == 64);
}

TEST_CASE("going over budget fails with a sentence and takes nothing", "[unit]") {
  const auto job = budget::make(1024);
  const auto a = job->named("gradients");
  const buffer kept = a->allocate(1000);
  try {
    a->allocate(25);
    FAIL("the budget must refuse");
  } catch (const error& e) {
    CHECK(e.code() == errc::over_budget);
    CHECK_THAT(e.what(), Catch::Matchers::ContainsSubstring("gradients") &&
                             Catch::Matchers::ContainsSubstring("24 bytes"));
  }
  CHECK(job->current_bytes() == 1000);
  CHECK(a->allocate(24).bytes() == 24);
}

TEST_CASE("the report has one entry a name, each with its own peak", "[unit]") {
  const auto job = budget::make(0);
  { const buffer b = job->named("staging")->allocate(500); }
  const buffer b = job->named("pages")->allocate(300);
  CHECK(job->named("pages") == job->named("pages"));
  const auto report = job->report();
  REQUIRE(report.size() == 2);
  CHECK(report[0].name == "pages");
  CHECK(report[0].current_bytes == 300);
  CHECK(report[0].peak_bytes == 300);
  CHECK(report[1].name == "staging");
  CHECK(report[1].current_bytes == 0);
  CHECK(report[1].peak_bytes == 500);
  CHECK(job->peak_bytes() == 500);  // the two were never alive together
}

TEST_CASE("an empty request gives an empty buffer, an impossible one a sentence", "[unit]") {
  const auto job = budget::make(0);
  const auto a = job->named("pages");
  CHECK_FALSE(a->allocate(0));
  CHECK_FALSE(a->allocate_floats(0));
  CHECK_THROWS_AS(a->allocate_floats(std::numeric_limits<index>::max()), error);
  CHECK_THROWS_AS(a->allocate(std::size_t{1} << 60), error);
  CHECK(job->current_bytes() == 0);
}

TEST_CASE("buffers may be taken and given back by many threads at once", "[unit]") {
  const auto job = budget::make(1 << 20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&job, t] {
      const auto own = job->named(t % 2 ? "odd" : "even");
      for (int i = 0; i < 200; ++i) {
        buffer b = own->allocate(4096);
        b.floats()[0] = 1.0f;
      }
    });
  for (auto& t : threads) t.join();
  CHECK(job->current_bytes() == 0);
  CHECK(job->peak_bytes() <= 4 * 4096);
}

TEST_CASE("sizes print in the unit that fits", "[unit]") {
  CHECK(readable_bytes(0) == "0 bytes");
  CHECK(readable_bytes(1023) == "1023 bytes");
  CHECK(readable_bytes(1536) == "1.5 KiB");
  CHECK(readable_bytes(std::size_t{3} << 30) == "3.0 GiB");
}

TEST_CASE("the process's resident memory is known and not above its peak", "[unit]") {
  CHECK(process_resident_bytes() > 0);
  // The kernel counts pages in batches a processor, so two readings in a row may differ a little.
  constexpr std::size_t counting_error_bytes = std::size_t{1} << 20;
  CHECK(process_resident_bytes() <= process_peak_bytes() + counting_error_bytes);
}

}  // namespace longstraw::memory
