#include "data.hpp"

#include <longstraw/models/reference/step.hpp>

#include <cmath>
#include <random>

namespace longstraw::audit {
namespace {

/// Of log-ratios: a good part of tokens lies beyond clip bounds of 0.2 and 0.28.
constexpr double old_spread = 0.25, ref_spread = 0.4;
/// Far above the error of a float32 log-probability.
constexpr double clip_distance = 2e-3;

std::vector<token_id> random_tokens(index count, index vocabulary, std::mt19937_64& engine) {
  std::uniform_int_distribution<token_id> draw(0, static_cast<token_id>(vocabulary - 1));
  std::vector<token_id> ids(static_cast<std::size_t>(count));
  for (token_id& id : ids) id = draw(engine);
  return ids;
}

}  // namespace

models::group plain_group(index prompt_tokens, const std::vector<index>& response_tokens,
                          index vocabulary, unsigned seed) {
  std::mt19937_64 engine(seed);
  models::group g;
  g.name = "synthetic group";
  g.prompt = random_tokens(prompt_tokens, vocabulary, engine);
  std::vector<double> rewards;
  for (const index tokens : response_tokens) {
    models::response r;
    r.tokens = random_tokens(tokens, vocabulary, engine);
    r.loss_tokens = tokens;
    r.reward = static_cast<double>(rewards.size() % 5);
    rewards.push_back(r.reward);
    g.responses.push_back(std::move(r));
  }
  const auto advantages = models::advantages_of(rewards, models::reward_scale::group);
  for (std::size_t r = 0; r < advantages.size(); ++r) g.responses[r].advantage = advantages[r];
  return g;
}

void add_given_logps(models::group& g, const models::reference::decoder& d,
                     const models::loss_settings& s, unsigned seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal;
  const auto near_clip = [&](double log_ratio) {
    return std::abs(std::exp(log_ratio) - (1 - s.epsilon_low)) < clip_distance ||
           std::abs(std::exp(log_ratio) - (1 + s.epsilon_high)) < clip_distance;
  };
  // Neither term of the loss needs anything given to be scored.
  models::loss_settings scored = s;
  scored.beta = 0;
  const auto captured = models::reference::capture_prompt(d, g);
  const auto truth = models::reference::evaluate_group(d, g, scored, &captured);
  for (std::size_t r = 0; r < g.responses.size(); ++r)
    for (const double logp : truth.scores[r].logps) {
      double log_ratio = old_spread * normal(engine);
      while (near_clip(log_ratio)) log_ratio = old_spread * normal(engine);
      g.responses[r].old_logps.push_back(static_cast<float>(logp - log_ratio));
      g.responses[r].ref_logps.push_back(static_cast<float>(logp + ref_spread * normal(engine)));
    }
}

}  // namespace longstraw::audit
