// The whole protocol under thousands of seeds, each a shape, an order of messages and a trouble of its own.
//
//   LONGSTRAW_SIM_SEED=N    run that seed alone and print its messages as they are handled
//   LONGSTRAW_SIM_SEEDS=N   so many seeds in each of the parts

#include "simulation.hpp"

#include <catch2/catch_test_macros.hpp>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <optional>

namespace longstraw::testing {
namespace {

std::optional<std::uint64_t> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (!text) return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

std::string report(const simulation_plan& plan, const simulation_result& result) {
  return fmt::format("LONGSTRAW_SIM_SEED={}\n  {}\n{}last job failure: {}\n{}\n", plan.seed,
                     to_string(plan), result.last_messages, result.sentence, result.violation);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t seeds_of_a_part = 150;
#else
constexpr std::uint64_t seeds_of_a_part = 2000;
#endif

void run_part(std::uint64_t part) {
  if (const auto alone = number_of("LONGSTRAW_SIM_SEED")) {
    if (part != 0) return;
    const simulation_plan plan = plan_of_seed(*alone);
    fmt::print("{}\n", to_string(plan));
    const simulation_result result = simulate(plan, true);
    fmt::print("last job failure: {}\nviolation: {}\n", result.sentence, result.violation);
    CHECK(result.violation == "");
    return;
  }
  std::map<std::string, int> seen;
  const std::uint64_t count = number_of("LONGSTRAW_SIM_SEEDS").value_or(seeds_of_a_part);
  for (std::uint64_t seed = part * 1'000'000; seed < part * 1'000'000 + count; ++seed) {
    const simulation_plan plan = plan_of_seed(seed);
    INFO("LONGSTRAW_SIM_SEED=" << seed);  // seen if the process ends in it
    const simulation_result result = simulate(plan);
    if (!result.violation.empty()) FAIL_CHECK(report(plan, result));
    seen["messages"] += static_cast<int>(result.messages);
    seen["committed"] += result.committed;
    seen["failed"] += result.failed;
    seen["rewound"] += result.rewound;
    seen[fmt::format("{} fired", to_string(plan.what))] += result.fired;
  }
  for (const auto& [what, times] : seen) fmt::print("{}: {}\n", what, times);
}

TEST_CASE("SV, CO, LY, OP: every seed keeps the invariants, part 1", "[sim]") { run_part(0); }
TEST_CASE("SV, CO, LY, OP: every seed keeps the invariants, part 2", "[sim]") { run_part(1); }
TEST_CASE("SV, CO, LY, OP: every seed keeps the invariants, part 3", "[sim]") { run_part(2); }
TEST_CASE("SV, CO, LY, OP: every seed keeps the invariants, part 4", "[sim]") { run_part(3); }

TEST_CASE("seeds that once broke an invariant", "[sim]") {
  constexpr std::pair<std::uint64_t, const char*> seeds[] = {
      {295, "memory of queued operations was freed when their layer ended"},
      {804, "submissions in the lane's mailbox held memory of a released job"},
      {914, "a late lane_ready was believed after a rewind"},
      {974, "entries that ended during a rewind counted for the next attempt"},
      {24, "a lease granted too late was never returned"},
      {55, "the same, by the clock alone"},
      {426, "a late sum of an aborted step was added to the next one's gradient"},
      {650, "a decided commit was given up while actors could still work on it"},
      {2001934, "a layer that began with the second attempt counted from 0"},
      {3002769, "the same, after a lost message"},
  };
  for (const auto& [seed, what] : seeds) {
    const simulation_plan plan = plan_of_seed(seed);
    INFO("LONGSTRAW_SIM_SEED=" << seed << ": " << what);
    CHECK(simulate(plan).violation == "");
  }
}

TEST_CASE("a seed gives the same messages in the same order each time", "[sim]") {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const simulation_plan plan = plan_of_seed(seed);
    const simulation_result once = simulate(plan), again = simulate(plan);
    INFO(report(plan, again));
    CHECK(once.sequence == again.sequence);
    CHECK(once.messages == again.messages);
  }
}

}  // namespace
}  // namespace longstraw::testing
