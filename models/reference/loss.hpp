#pragma once
// The losses of models/grpo.hpp in double, term by term as their definitions are written there.

#include <longstraw/models/grpo.hpp>

#include <span>

namespace longstraw::models::reference {

/// What one response adds to the group's loss. logps [tokens] of the current parameters. Missing
/// old_logps are `logps` as constants. d_logps [tokens], if given, written: the derivative.
double response_loss(const response& r, std::span<const double> logps, const group_counts& counts,
                     const loss_settings& s, std::span<double> d_logps = {});

}  // namespace longstraw::models::reference
