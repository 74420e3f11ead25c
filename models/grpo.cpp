#include <longstraw/models/grpo.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace longstraw::models {
namespace {

template <class T, std::size_t N>
using names_of = std::array<std::pair<std::string_view, T>, N>;

constexpr names_of<loss_type, 5> loss_types{{{"grpo", loss_type::grpo},
                                             {"bnpo", loss_type::bnpo},
                                             {"dr_grpo", loss_type::dr_grpo},
                                             {"dapo", loss_type::dapo},
                                             {"cispo", loss_type::cispo}}};
constexpr names_of<sampling_level, 2> sampling_levels{
    {{"token", sampling_level::token}, {"sequence", sampling_level::sequence}}};
constexpr names_of<reward_scale, 3> reward_scales{
    {{"group", reward_scale::group}, {"batch", reward_scale::batch}, {"none", reward_scale::none}}};

template <class T, std::size_t N>
T parse(const names_of<T, N>& names, std::string_view text, std::string_view flag) {
  std::string choices;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    choices += fmt::format("{}{}", choices.empty() ? "" : ", ", name);
  }
  fail(errc::bad_input, "{} is \"{}\"; expected one of {}", flag, text, choices);
}

template <class T, std::size_t N>
std::string_view name_of(const names_of<T, N>& names, T value) {
  for (const auto& [name, v] : names)
    if (v == value) return name;
  return "unknown";
}

/// What a term -objective adds per unit of advantage-weighted ratio: value of the surrogate and its
/// derivative with respect to log ratio.
struct surrogate {
  double value = 0;
  double slope = 0;
};

surrogate clipped_surrogate(double ratio, double advantage, const loss_settings& s) {
  const double low = 1.0 - s.epsilon_low, high = 1.0 + s.epsilon_high;
  const bool capped = s.delta && ratio > *s.delta;
  const bool outside = ratio < low || ratio > high;
  const double free_value = (capped ? *s.delta : ratio) * advantage;
  const double clipped_value = std::clamp(ratio, low, high) * advantage;
  const double free_slope = capped ? 0.0 : ratio * advantage;
  const double clipped_slope = outside ? 0.0 : ratio * advantage;
  if (free_value < clipped_value) return {free_value, free_slope};
  if (clipped_value < free_value) return {clipped_value, clipped_slope};
  return {free_value, 0.5 * (free_slope + clipped_slope)};
}

/// What every token of a response is multiplied by in the group's loss.
double token_weight(index loss_tokens, const group_counts& n, loss_type type) {
  const auto at_least_one = [](index v) { return static_cast<double>(std::max<index>(v, 1)); };
  switch (type) {
    case loss_type::grpo:
      return 1.0 / (at_least_one(n.responses) * at_least_one(loss_tokens));
    case loss_type::dr_grpo:
      return 1.0 / (at_least_one(n.responses) * at_least_one(n.max_completion_length));
    case loss_type::bnpo:
    case loss_type::dapo:
    case loss_type::cispo:
      return 1.0 / at_least_one(n.loss_tokens);
  }
  return 0.0;
}

}  // namespace

loss_type parse_loss_type(std::string_view text, std::string_view flag) {
  return parse(loss_types, text, flag);
}
sampling_level parse_sampling_level(std::string_view text, std::string_view flag) {
  return parse(sampling_levels, text, flag);
}
reward_scale parse_reward_scale(std::string_view text, std::string_view flag) {
  return parse(reward_scales, text, flag);
}
std::string_view to_string(loss_type t) { return name_of(loss_types, t); }
std::string_view to_string(sampling_level l) { return name_of(sampling_levels, l); }
std::string_view to_string(reward_scale s) { return name_of(reward_scales, s); }

std::vector<double> advantages_of(std::span<const double> rewards, reward_scale scale) {
  const std::size_t n = rewards.size();
  std::vector<float> r(rewards.begin(), rewards.end());
  std::vector<double> out(n, 0.0);
  // Decided before any arithmetic: the float mean of equal rewards can differ from each of them,
  // and division by a deviation of 1e-4 would make a signal out of that rounding.
  if (std::all_of(r.begin(), r.end(), [&](float x) { return x == r.front(); })) return out;

  double sum = 0;
  for (const float x : r) sum += x;
  const double exact_mean = sum / static_cast<double>(n);
  double squares = 0;
  for (const float x : r) squares += (x - exact_mean) * (x - exact_mean);
  const auto mean = static_cast<float>(exact_mean);
  const auto deviation = static_cast<float>(std::sqrt(squares / static_cast<double>(n - 1)));
  for (std::size_t i = 0; i < n; ++i) {
    const float centred = r[i] - mean;
    out[i] = scale == reward_scale::none ? centred : centred / (deviation + 1e-4f);
  }
  return out;
}

group_counts counts_of(const group& g, const loss_settings& s) {
  group_counts n;
  n.responses = static_cast<index>(g.responses.size());
  index longest = 0;
  for (const response& r : g.responses) {
    n.loss_tokens += r.loss_tokens;
    longest = std::max(longest, static_cast<index>(r.tokens.size()));
  }
  n.max_completion_length = s.max_completion_length > 0 ? s.max_completion_length : longest;
  return n;
}

bool has_signal(const response& r, const loss_settings& s) {
  return r.loss_tokens > 0 && (r.advantage != 0.0 || s.beta != 0.0);
}

response_loss evaluate_response(std::span<float> d_logps, std::span<const float> logps,
                                std::span<const float> old_logps, std::span<const float> ref_logps,
                                std::span<const float> entropies, double advantage,
                                index loss_tokens, const group_counts& counts,
                                const loss_settings& s) {
  const auto n = static_cast<std::size_t>(loss_tokens);
  LS_ASSERT(loss_tokens >= 0 && n <= logps.size(), "the loss covers tokens of the response");
  LS_ASSERT(d_logps.size() == logps.size() && old_logps.size() == logps.size(),
            "every token has its log-probabilities and its gradient");
  LS_ASSERT(ref_logps.size() == logps.size() || (ref_logps.empty() && s.beta == 0.0),
            "a KL term needs the reference log-probabilities");
  LS_ASSERT(entropies.empty() || entropies.size() == logps.size(), "one entropy a token, or none");

  std::fill(d_logps.begin(), d_logps.end(), 0.0f);
  response_loss out;
  if (n == 0) return out;

  const auto log_ratio = [&](std::size_t t) {
    return static_cast<double>(logps[t]) - static_cast<double>(old_logps[t]);
  };
  double mean_log_ratio = 0;
  if (s.level == sampling_level::sequence) {
    for (std::size_t t = 0; t < n; ++t) mean_log_ratio += log_ratio(t);
    mean_log_ratio /= static_cast<double>(n);
  }

  const double weight = token_weight(loss_tokens, counts, s.type);
  double policy = 0;
  for (std::size_t t = 0; t < n; ++t) {
    const double ratio =
        std::exp(s.level == sampling_level::sequence ? mean_log_ratio : log_ratio(t));
    out.ratio_min = t == 0 ? ratio : std::min(out.ratio_min, ratio);
    out.ratio_max = t == 0 ? ratio : std::max(out.ratio_max, ratio);

    // At sequence level the slope of the n equal terms spreads evenly over n tokens, so each token
    // gets one term's slope.
    double slope = 0;
    if (advantage == 0.0) {
      // No term: an infinite ratio times zero must not become NaN.
    } else if (s.type == loss_type::cispo) {
      const double held = std::min(ratio, s.epsilon_high) * advantage;
      policy -= held * static_cast<double>(logps[t]);
      slope = -held;
      out.clipped_high += ratio > s.epsilon_high && advantage > 0;
    } else {
      const surrogate term = clipped_surrogate(ratio, advantage, s);
      policy -= term.value;
      slope = -term.slope;
      out.clipped_low += ratio < 1.0 - s.epsilon_low && advantage < 0;
      out.clipped_high += ratio > 1.0 + s.epsilon_high && advantage > 0;
    }
    if (!ref_logps.empty()) {
      const double gap = static_cast<double>(ref_logps[t]) - static_cast<double>(logps[t]);
      out.kl += std::expm1(gap) - gap;
      if (s.beta != 0.0) slope -= s.beta * std::expm1(gap);
    }
    if (!entropies.empty()) out.entropy += static_cast<double>(entropies[t]);
    d_logps[t] = static_cast<float>(weight * slope);
  }
  out.policy_loss = weight * policy;
  out.loss = s.beta != 0.0 ? out.policy_loss + weight * s.beta * out.kl : out.policy_loss;
  return out;
}

}  // namespace longstraw::models
