#pragma once
// Groups for the audit: random tokens, and log-probabilities near the model's own, so that some
// tokens are clipped and the KL term matters.

#include <longstraw/models/grpo.hpp>
#include <longstraw/models/reference/decoder.hpp>

#include <vector>

namespace longstraw::audit {

/// Random tokens and rewards that differ; no log-probabilities are given.
models::group plain_group(index prompt_tokens, const std::vector<index>& response_tokens,
                          index vocabulary, unsigned seed);

/// Gives the group old and reference log-probabilities: those of `d` with noise. Ratios keep away
/// from the bounds of the clip, where rounding would decide which branch is taken.
void add_given_logps(models::group& g, const models::reference::decoder& d,
                     const models::loss_settings& s, unsigned seed);

}  // namespace longstraw::audit
