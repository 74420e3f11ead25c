#pragma once
// GRPO losses, with the names and definitions of TRL's GRPOTrainer.
//
//   ratio_t = exp(logp_t - old_t)             importance sampling at token level
//   ratio   = exp(mean_t(logp_t - old_t))     at sequence level (GSPO), the same for every token, gradient through all
//   grpo, bnpo, dr_grpo, dapo:  -min(ratio A, clamp(ratio, 1 - epsilon_low, 1 + epsilon_high) A)
//       with delta: the first ratio is min(ratio, delta)
//   cispo:                      -stop_gradient(min(ratio, epsilon_high)) A logp
//   all, if beta != 0:          + beta (exp(ref - logp) - (ref - logp) - 1)
//
//   grpo      mean over responses of (sum of terms / loss tokens of the response)
//   bnpo      sum of terms / loss tokens of the group
//   dr_grpo   sum of terms / (responses * max_completion_length)
//   dapo, cispo   sum of terms / loss tokens of the optimizer step (here: of the group)

#include <longstraw/memory/view.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longstraw::models {

enum class loss_type { grpo, bnpo, dr_grpo, dapo, cispo };
enum class sampling_level { token, sequence };
enum class reward_scale { group, batch, none };

/// errc::bad_input names `flag`, the text and the choices.
loss_type parse_loss_type(std::string_view text, std::string_view flag);
sampling_level parse_sampling_level(std::string_view text, std::string_view flag);
reward_scale parse_reward_scale(std::string_view text, std::string_view flag);
std::string_view to_string(loss_type t);
std::string_view to_string(sampling_level l);
std::string_view to_string(reward_scale s);

struct loss_settings {
  loss_type type = loss_type::grpo;
  sampling_level level = sampling_level::token;
  double epsilon_low = 0.2;
  double epsilon_high = 0.2;
  std::optional<double> delta;
  double beta = 0.0;
  double temperature = 1.0;
  /// For dr_grpo; 0: the longest response of the group.
  index max_completion_length = 0;
};

/// One response and what is known about it before replay.
struct response {
  std::vector<token_id> tokens;
  /// The loss covers the first `loss_tokens` tokens. 0: fully masked, not replayed.
  index loss_tokens = 0;
  double reward = 0;
  double advantage = 0;
  std::vector<float> old_logps;  ///< [tokens], or empty: scored from the current parameters
  std::vector<float>
      ref_logps;  ///< [tokens], or empty: scored from the reference model if beta is not 0
};

/// One prompt and its responses.
struct group {
  std::vector<token_id> prompt;
  std::vector<response> responses;
  /// Name for logs and sentences, such as "data.jsonl line 3".
  std::string name;
};

/// (reward - mean) / (std + 1e-4), std unbiased, in float32 as TRL; `batch` and `group` are the same for one group;
/// `none`: reward - mean. One response alone gives 0. Equal rewards give exactly 0.
std::vector<double> advantages_of(std::span<const double> rewards, reward_scale scale);

/// Counts over the whole group, known before replay: losses use these only, so no rank or replay order scales a gradient.
struct group_counts {
  index responses = 0;
  index loss_tokens = 0;
  index max_completion_length = 0;
};
group_counts counts_of(const group& g, const loss_settings& s);

/// Whether replaying that response can contribute anything: it has loss tokens, and its advantage or beta is not 0.
bool has_signal(const response& r, const loss_settings& s);

/// What one response adds to the step.
struct response_loss {
  double loss = 0;         ///< its share of the group's loss
  double policy_loss = 0;  ///< the same without the KL term
  double kl = 0;           ///< sum over its loss tokens of the k3 estimator, unscaled
  double entropy = 0;      ///< sum over its loss tokens
  index clipped_low = 0;   ///< loss tokens whose ratio was clipped from below (advantage < 0)
  index clipped_high =
      0;  ///< ... from above (advantage > 0); for cispo: ratio above epsilon_high, advantage > 0
  double ratio_min = 0, ratio_max = 0;
};

/// Loss of one response and its gradient. d_logps [tokens] written (0 beyond loss_tokens).
/// logps, old_logps [tokens]; ref_logps [tokens], or empty if beta is 0.
response_loss evaluate_response(std::span<float> d_logps, std::span<const float> logps,
                                std::span<const float> old_logps, std::span<const float> ref_logps,
                                std::span<const float> entropies, double advantage,
                                index loss_tokens, const group_counts& counts,
                                const loss_settings& s);

}  // namespace longstraw::models
