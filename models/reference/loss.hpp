#pragma once
// The losses of models/grpo.hpp in double, term by term as their definitions are written there.

#include <longstraw/models/grpo.hpp>

#include <span>

namespace longstraw::models::reference {

/// What the reductions divide by, counted here and not where the step counts it.
group_counts count_group(const group& g, const loss_settings& s);

/// What one response adds to the group's loss. logps [tokens] of the current parameters. Missing
/// old_logps are `logps` as constants. d_logps [tokens], if given, written: the derivative.
double response_loss(const response& r, std::span<const double> logps, const group_counts& counts,
                     const loss_settings& s, std::span<double> d_logps = {});

struct response_metrics {
  double kl = 0;      ///< sum over loss tokens of the k3 estimator; 0 if beta is 0
  index clipped = 0;  ///< loss tokens whose ratio is clipped against the sign of the advantage
};
response_metrics metrics_of(const response& r, std::span<const double> logps,
                            const loss_settings& s);

}  // namespace longstraw::models::reference
