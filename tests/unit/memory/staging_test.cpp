#include <longstraw/memory/staging.hpp>

#include <catch2/catch_test_macros.hpp>

#include <thread>

namespace longstraw::memory {

TEST_CASE("a staging buffer is used again when its last holder has let go", "[unit]") {
  const auto job = budget::make(0);
  staging s(job->named("staging"));
  auto first = s.take(100);
  const auto also = first;
  const float* place = first->floats().data();
  first.reset();
  CHECK(s.take(100)->floats().data() != place);  // somebody still reads it
  CHECK(job->current_bytes() == 800);
}

TEST_CASE("free buffers that are too small make room for a larger one", "[unit]") {
  const auto job = budget::make(1000);
  staging s(job->named("staging"));
  s.take(100);
  s.take(200);
  CHECK(job->current_bytes() == 800);
  CHECK(s.take(150)->floats().size() == 200);
  s.clear();
  CHECK(job->current_bytes() == 0);
}

TEST_CASE("what another thread has read is not overwritten before", "[unit][threads]") {
  const auto job = budget::make(0);
  staging s(job->named("staging"));
  for (int round = 0; round < 200; ++round) {
    auto given = s.take(64);
    for (float& v : given->floats()) v = static_cast<float>(round);
    bool same = true;
    std::thread reader([mine = std::move(given), round, &same]() mutable {
      for (const float v : mine->floats()) same &= v == static_cast<float>(round);
      mine.reset();
    });
    auto next = s.take(64);
    for (float& v : next->floats()) v = -1;
    reader.join();
    REQUIRE(same);
  }
}

}  // namespace longstraw::memory
