#pragma once
// Choosing the next token from one row of logits.

#include <longstraw/memory/view.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace longstraw::kernels {

struct sampling_settings {
  double temperature = 1.0;  ///< 0: greedy
  double top_p =
      1.0;          ///< keep the smallest set of most likely tokens whose probability reaches this
  index top_k = 0;  ///< keep that many most likely tokens; 0: all
};

/// uniform: a number in [0, 1). Ties go to the lower id. `order` is workspace, resized to the vocabulary.
/// Greedy ignores `uniform`.
token_id sample_token(std::span<const float> logits, const sampling_settings& settings,
                      double uniform, std::vector<token_id>& order);

}  // namespace longstraw::kernels
