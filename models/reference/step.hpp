#pragma once
// A GRPO step in double: the loss of a group as a function of the weights, its gradient with or
// without the path through the prompt, and one AdamW update.

#include <longstraw/kernels/adamw.hpp>
#include <longstraw/models/grpo.hpp>
#include <longstraw/models/reference/decoder.hpp>

#include <span>
#include <vector>

namespace longstraw::models::reference {

struct group_evaluation {
  double loss = 0;
  double kl = 0;                     ///< mean over loss tokens of the k3 estimator; 0 if beta is 0
  index clipped = 0;                 ///< loss tokens
  index loss_tokens = 0;             ///< of the group
  std::vector<token_scores> scores;  ///< a response
};

/// The state after prompt tokens 0 .. P-2.
decoder_state capture_prompt(const decoder& d, const group& g);

/// The loss of the group. With `captured`, responses run as suffixes against that state, which is a
/// constant (`frozen`); without, every response is a whole sequence from the first prompt token
/// (`full`), as in conventional training. gradients [parameters], if given, += its derivative.
group_evaluation evaluate_group(const decoder& d, const group& g, const loss_settings& s,
                                const decoder_state* captured, std::span<double> gradients = {});

double norm_of(std::span<const double> gradients);

/// Weights after the first AdamW step from zero moments, gradients clipped to max_grad_norm.
std::vector<double> first_update(std::span<const double> weights, std::span<const double> gradients,
                                 const kernels::adamw_settings& adamw, double max_grad_norm);

}  // namespace longstraw::models::reference
