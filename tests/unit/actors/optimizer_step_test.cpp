// The arithmetic of a transaction by shards.

#include "support/job_runner.hpp"
#include "support/runner.hpp"

#include <longstraw/actors/optimizer_step.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace longstraw::actors {
namespace {

using testing::copy_of;

TEST_CASE("a step by shards has the bits of a step as a whole", "[unit]") {
  const index ranks = GENERATE(1, 2, 3, 16);
  std::vector<std::vector<float>> weights, moments;
  for (const index n : {index{1}, ranks}) {
    auto m = testing::make_hybrid_model();
    const auto& store = *m.parameters;
    for (std::size_t i = 0; i < store.gradients().size(); ++i)
      store.gradients()[i] = static_cast<float>(std::sin(static_cast<double>(i)));
    testing::runner on{1};
    messages::optimizer_settings s;
    s.adamw.weight_decay = 0.1;
    s.no_decay_one_dimensional = true;
    for (index r = 0; r < n; ++r)
      apply_adamw(store, shard_of(store.layout(), {r, n}), s, 0.5, 1, on.exec);
    weights.push_back(copy_of(store.weights()));
    moments.push_back(copy_of(store.second_moments()));
  }
  CHECK(weights[0] == weights[1]);
  CHECK(moments[0] == moments[1]);
}

TEST_CASE("gradients of ranks add up in rank 0's array, each shard by its owner", "[unit]") {
  auto m = testing::make_hybrid_model();
  const auto& store = *m.parameters;
  const auto total = static_cast<std::size_t>(store.layout().total());
  std::vector<std::vector<float>> arrays(3, std::vector<float>(total));
  for (std::size_t r = 0; r < 3; ++r)
    for (std::size_t i = 0; i < total; ++i) arrays[r][i] = static_cast<float>((i * (r + 1)) % 1000);
  std::ranges::copy(arrays[0], store.gradients().begin());
  const std::vector<std::span<const float>> given{store.gradients(), arrays[1], arrays[2]};
  testing::runner on{2};
  double squares = 0;
  for (index r = 0; r < 3; ++r) {
    const token_range shard = shard_of(store.layout(), {r, 3});
    sum_gradients(store.gradients(), given, shard, on.exec);
    squares += gradient_squares(store, shard, on.exec);
  }
  double expected = 0;
  for (const models::parameter& p : store.layout().all())
    for (auto i = static_cast<std::size_t>(p.offset);
         i < static_cast<std::size_t>(p.offset + p.count); ++i) {
      const double sum = static_cast<double>(i % 1000) + (2 * i) % 1000 + (3 * i) % 1000;
      REQUIRE(store.gradients()[i] == static_cast<float>(sum));
      expected += sum * sum;
    }
  CHECK(std::abs(squares / expected - 1) < 1e-6);
}

TEST_CASE("a gradient that is not finite is named by the rank that owns it", "[unit]") {
  auto m = testing::make_hybrid_model();
  const auto& store = *m.parameters;
  const models::parameter& last = store.layout().all().back();
  store.gradients(last).back() = std::numeric_limits<float>::infinity();
  testing::runner on{1};
  CHECK(gradient_squares(store, shard_of(store.layout(), {0, 2}), on.exec) == 0);
  try {
    gradient_squares(store, shard_of(store.layout(), {1, 2}), on.exec);
    FAIL("it must be refused");
  } catch (const error& e) {
    CHECK(e.code() == errc::not_finite);
    CHECK(std::string(e.what()).find(last.name) != std::string::npos);
  }
}

}  // namespace
}  // namespace longstraw::actors
