#include "job_runner.hpp"

#include <algorithm>

namespace longstraw::testing {

small_model make_small_model(const models::model_config& config, unsigned seed,
                             models::parameter_use use) {
  small_model m;
  const auto random = random_parameters(config, seed);
  m.parameters =
      std::make_shared<models::parameter_store>(models::layout_of(config), use, *m.budget);
  std::ranges::copy(random->weights(), m.parameters->weights().begin());
  m.model = std::make_shared<models::language_model>(config, m.parameters);
  return m;
}

small_model make_hybrid_model(unsigned seed, models::parameter_use use) {
  for (const named_config& c : small_configs())
    if (c.config.arch == models::architecture::qwen3_5)
      return make_small_model(c.config, seed, use);
  fail(errc::bad_input, "no hybrid configuration among the small ones");
}

models::group random_group(index prompt_tokens, std::vector<index> response_tokens,
                           index vocabulary, unsigned seed) {
  models::group g;
  g.name = "random group";
  g.prompt = random_tokens(prompt_tokens, vocabulary, seed);
  std::vector<double> rewards;
  for (const index tokens : response_tokens) {
    models::response r;
    r.tokens = random_tokens(tokens, vocabulary, ++seed);
    r.loss_tokens = tokens;
    r.reward = static_cast<double>(rewards.size());
    rewards.push_back(r.reward);
    g.responses.push_back(std::move(r));
  }
  const auto advantages = models::advantages_of(rewards, models::reward_scale::group);
  for (std::size_t i = 0; i < advantages.size(); ++i) g.responses[i].advantage = advantages[i];
  return g;
}

std::vector<float> copy_of(std::span<const float> values) { return {values.begin(), values.end()}; }

}  // namespace longstraw::testing
