#include <longstraw/models/reference/loss.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace longstraw::models::reference {
namespace {

struct term {
  double value = 0;
  double slope = 0;  ///< by the token's log-probability; at sequence level by the mean of all
};

/// The clipped surrogate, as it is maximized.
term surrogate(double ratio, double advantage, const loss_settings& s) {
  const double capped = s.delta ? std::min(ratio, *s.delta) : ratio;
  const double clipped = std::clamp(ratio, 1 - s.epsilon_low, 1 + s.epsilon_high);
  const bool takes_clipped = clipped * advantage < capped * advantage;
  const double taken = takes_clipped ? clipped : capped;
  return {taken * advantage, taken == ratio ? ratio * advantage : 0.0};
}

term policy_term(double ratio, double logp, double advantage, const loss_settings& s) {
  if (advantage == 0) return {};  // an infinite ratio must not make NaN of it
  if (s.type == loss_type::cispo) {
    const double weight = std::min(ratio, s.epsilon_high) * advantage;
    return {-weight * logp, -weight};
  }
  const term t = surrogate(ratio, advantage, s);
  return {-t.value, -t.slope};
}

term kl_term(double logp, double ref_logp) {
  const double gap = ref_logp - logp;
  return {std::exp(gap) - gap - 1, 1 - std::exp(gap)};
}

/// What the reduction of the loss multiplies every term of the response with.
double weight_of(const response& r, const group_counts& n, loss_type type) {
  switch (type) {
    case loss_type::grpo:
      return 1.0 / static_cast<double>(n.responses * r.loss_tokens);
    case loss_type::dr_grpo:
      return 1.0 / static_cast<double>(n.responses * n.max_completion_length);
    case loss_type::bnpo:
    case loss_type::dapo:
    case loss_type::cispo:
      break;
  }
  return 1.0 / static_cast<double>(n.loss_tokens);
}

/// Of every loss token, by the level of sampling.
std::vector<double> ratios_of(const response& r, std::span<const double> logps,
                              const loss_settings& s) {
  const auto tokens = static_cast<std::size_t>(r.loss_tokens);
  std::vector<double> log_ratios(tokens);
  if (!r.old_logps.empty())
    for (std::size_t t = 0; t < tokens; ++t)
      log_ratios[t] = logps[t] - static_cast<double>(r.old_logps[t]);
  double mean = 0;
  for (const double one : log_ratios) mean += one / static_cast<double>(tokens);
  std::vector<double> ratios;
  for (const double one : log_ratios)
    ratios.push_back(std::exp(s.level == sampling_level::sequence ? mean : one));
  return ratios;
}

bool is_clipped(double ratio, double advantage, const loss_settings& s) {
  if (s.type == loss_type::cispo) return advantage > 0 && ratio > s.epsilon_high;
  return advantage < 0 ? ratio < 1 - s.epsilon_low : advantage > 0 && ratio > 1 + s.epsilon_high;
}

}  // namespace

group_counts count_group(const group& g, const loss_settings& s) {
  group_counts n;
  n.max_completion_length = s.max_completion_length;
  for (const response& r : g.responses) {
    ++n.responses;
    n.loss_tokens += r.loss_tokens;
    if (s.max_completion_length == 0)
      n.max_completion_length =
          std::max(n.max_completion_length, static_cast<index>(r.tokens.size()));
  }
  return n;
}

double response_loss(const response& r, std::span<const double> logps, const group_counts& counts,
                     const loss_settings& s, std::span<double> d_logps) {
  std::fill(d_logps.begin(), d_logps.end(), 0.0);
  if (r.loss_tokens == 0) return 0;
  const std::vector<double> ratios = ratios_of(r, logps, s);
  double sum = 0;
  const double weight = weight_of(r, counts, s.type);
  for (std::size_t t = 0; t < ratios.size(); ++t) {
    // Every token's term depends on the mean, which every token moves by 1 / tokens: equal slopes
    // add up to one of them.
    term all = policy_term(ratios[t], logps[t], r.advantage, s);
    if (s.beta != 0) {
      const term kl = kl_term(logps[t], static_cast<double>(r.ref_logps[t]));
      all.value += s.beta * kl.value;
      all.slope += s.beta * kl.slope;
    }
    sum += weight * all.value;
    if (!d_logps.empty()) d_logps[t] = weight * all.slope;
  }
  return sum;
}

response_metrics metrics_of(const response& r, std::span<const double> logps,
                            const loss_settings& s) {
  response_metrics m;
  if (r.loss_tokens == 0) return m;
  const std::vector<double> ratios = ratios_of(r, logps, s);
  for (std::size_t t = 0; t < ratios.size(); ++t) {
    m.clipped += is_clipped(ratios[t], r.advantage, s);
    if (s.beta != 0) m.kl += kl_term(logps[t], static_cast<double>(r.ref_logps[t])).value;
  }
  return m;
}

}  // namespace longstraw::models::reference
