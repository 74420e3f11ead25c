#pragma once
// A step of the driver against the double reference, quantity by quantity.

#include "model_driver.hpp"
#include "random_model.hpp"

#include <longstraw/models/reference/decoder.hpp>

#include <string>
#include <vector>

namespace longstraw::testing {

using models::reference::decoder;
using models::reference::decoder_state;
using models::reference::layer_state;
using models::reference::token_scores;

/// A prompt, responses, and the gradient that each log-probability is given.
struct step_case {
  std::vector<token_id> prompt;
  std::vector<std::vector<token_id>> responses;
  std::vector<std::vector<float>> d_logps;

  /// All but the last token of the prompt: what is captured.
  std::span<const token_id> captured() const { return std::span(prompt).first(prompt.size() - 1); }
  /// [last prompt token] + response[:-1]
  std::vector<token_id> suffix(std::size_t response) const;
};
step_case random_step(index prompt_tokens, std::vector<index> response_tokens, index vocabulary,
                      unsigned seed);

/// What the step should give.
struct step_truth {
  decoder_state state, d_state;
  std::vector<token_scores> scores;
  std::vector<double> frozen, full;  ///< gradients in the order of the layout
};
step_truth reference_step(const decoder& reference, const step_case& c, float temperature = 1);

/// Largest relative error of each kind, and of which tensor.
struct step_errors {
  double scores = 0, state = 0, d_state = 0, frozen = 0, full = 0;
  std::string worst_state, worst_d_state, worst_frozen, worst_full;
};
step_errors compare_step(const models::language_model& model, const step_case& c,
                         const step_truth& truth, index page_tokens, index chunk_tokens,
                         float temperature = 1, index ranks = 1);

/// Error of one tensor of many: relative to its own norm, or to a thousandth of `scale` where the
/// truth is smaller. The gradient of a parameter can vanish (one key alone has weight 1 whatever
/// its score): rounding then has no norm of its own.
template <class A, class B>
double scaled_error(const A& got, const B& want, double scale) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < std::size(want); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return std::sqrt(difference) / std::max({std::sqrt(norm), 1e-3 * scale, 1e-30});
}

/// Root mean over tensors of a whole gradient's norm.
double scale_of(std::span<const double> values, std::size_t tensors);

}  // namespace longstraw::testing
