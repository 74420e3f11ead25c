// Uses a header of every installed layer, and runs a step of the smallest kind: one that is
// skipped.

#include <longstraw/actors/runtime.hpp>
#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/data.hpp>

#include <cstdio>

int main() {
  using namespace longstraw;
  const auto config = models::parse_config(models::preset_config("llama-tiny"), "preset");
  auto budget = memory::budget::make(0);
  auto parameters = std::make_shared<models::parameter_store>(
      models::layout_of(config), models::parameter_use::train, *budget);
  actors::runtime runtime({}, std::make_shared<models::language_model>(config, parameters), budget);
  models::data_rules rules;
  rules.vocabulary = config.vocabulary;
  const auto group = models::parse_group(
      R"({"prompt": "a", "responses": ["b", "c"], "rewards": [1, 1]})", "group", rules);
  const bool skipped = runtime.step(group, {}).skipped;
  const auto scored = runtime.score(group, 1.0);
  std::printf("skipped %d, %zu responses scored\n", skipped, scored.responses.size());
  return skipped && scored.responses.size() == 2 ? 0 : 1;
}
