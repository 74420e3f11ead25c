#include <longstraw/kernels/reference/adamw.hpp>
#include <longstraw/models/reference/loss.hpp>
#include <longstraw/models/reference/step.hpp>

#include <algorithm>
#include <cmath>

namespace longstraw::models::reference {
namespace {

std::span<const token_id> captured_tokens(const group& g) {
  return std::span(g.prompt).first(g.prompt.size() - 1);
}

/// [last prompt token] + response[:-1], behind the rest of the prompt if that is no state.
std::vector<token_id> tokens_of(const group& g, const response& r, bool whole) {
  std::vector<token_id> ids;
  if (whole) ids.assign(g.prompt.begin(), g.prompt.end() - 1);
  ids.push_back(g.prompt.back());
  ids.insert(ids.end(), r.tokens.begin(), r.tokens.end() - 1);
  return ids;
}

}  // namespace

decoder_state capture_prompt(const decoder& d, const group& g) {
  return d.capture(d.empty_state(), captured_tokens(g));
}

group_evaluation evaluate_group(const decoder& d, const group& g, const loss_settings& s,
                                const decoder_state* captured, std::span<double> gradients) {
  const group_counts counts = count_group(g, s);
  const decoder_state empty = d.empty_state();
  const decoder_state& before = captured ? *captured : empty;
  group_evaluation all;
  all.loss_tokens = counts.loss_tokens;
  for (const response& r : g.responses) {
    const std::vector<token_id> ids = tokens_of(g, r, !captured);
    all.scores.push_back(d.score(before, ids, r.tokens, s.temperature));
    const std::vector<double>& logps = all.scores.back().logps;
    std::vector<double> d_logps(logps.size());
    all.loss += response_loss(r, logps, counts, s, d_logps);
    const response_metrics m = metrics_of(r, logps, s);
    all.kl += m.kl / static_cast<double>(std::max<index>(counts.loss_tokens, 1));
    all.clipped += m.clipped;
    if (!gradients.empty()) d.backward(gradients, before, ids, r.tokens, d_logps, s.temperature);
  }
  return all;
}

double norm_of(std::span<const double> gradients) {
  return std::sqrt(kernels::reference::sum_of_squares(gradients));
}

std::vector<double> first_update(std::span<const double> weights, std::span<const double> gradients,
                                 const kernels::adamw_settings& adamw, double max_grad_norm) {
  const double norm = norm_of(gradients);
  const double scale = max_grad_norm > 0 ? std::min(1.0, max_grad_norm / (norm + 1e-6)) : 1.0;
  std::vector<double> after(weights.begin(), weights.end()), m(after.size()), v(after.size());
  kernels::reference::adamw_update<double>(after, m, v, gradients, scale, adamw, 1);
  return after;
}

}  // namespace longstraw::models::reference
