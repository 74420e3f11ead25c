#pragma once
// Every bound of the audit, and why it is that number.

#include <longstraw/memory/view.hpp>

#include <string_view>

namespace longstraw::audit {

/// What float32 is held to against double precision.
struct parity_bounds {
  double logps, entropies;  ///< largest absolute difference
  double gradient;          ///< relative L2 error of a parameter
  double update;            ///< relative L2 error of the weights' change, all parameters together
  double loss;              ///< absolute difference
};
// Four times what PyTorch's own float32 loses against its float64 on random models of these kinds
// and sizes with prompts of a few hundred tokens, the largest over the golden cases of the kind.
// The gated delta net loses more: its norm divides by outputs that nearly cancel, and its decays
// multiply up over the prompt. An update loses more than a gradient: AdamW's first step divides
// every value by its own size, so the relative error of the smallest values counts like any other.
// Of a loss PyTorch loses less than 1e-6 on the dense ones, which counts as 1e-6. The mean KL has the
// bound of the log-probabilities: its derivative by one of them, 1 - exp(ref - logp), is below 1 in
// the mean over every group here.
inline constexpr parity_bounds dense_bounds{6.3e-6, 5.1e-6, 7.7e-6, 1.1e-4, 4e-6};
inline constexpr parity_bounds hybrid_bounds{6.6e-5, 2.6e-5, 1.4e-4, 2.4e-3, 7.3e-6};

/// A gradient may vanish (one visible key has weight 1 whatever its score) and then has no norm of
/// its own: errors are relative to at least this share of the root mean norm over all parameters.
inline constexpr double norm_floor_share = 1e-3;

/// The norm is one sum in double over all gradients, whose errors average out.
inline constexpr double grad_norm_relative = 1e-5;

/// Between ranks only the order of sums differs: some tens of roundings of 6e-8 each, far below what
/// a wrong or missing contribution would give. For the gradient as a whole and for each parameter.
inline constexpr double ranks_gradient = 1e-5, ranks_grad_norm = 1e-5, ranks_logps = 1e-5;

/// Two kinds of parameter go beyond that, to 1.1e-5 (three ranks, odd sizes): the gradients of A_log
/// and dt_bias are one number a head, a sum over all tokens of contributions of both signs that
/// nearly cancel, so the same roundings are a larger share of it. They are the two that lose most in
/// PyTorch's float32, 3.5e-5 on the hybrid golden cases, twice as much as any other: that is their
/// bound. (in_proj_a, through which the same sums go for each of its weights, stays below 5e-6.)
inline constexpr double ranks_decay_gradient = 3.5e-5;
inline bool is_decay(std::string_view parameter) {
  return parameter.ends_with(".linear_attn.A_log") || parameter.ends_with(".linear_attn.dt_bias");
}

/// Central differences in double with this step: the truncation error is its square times a third
/// derivative (1e-10), rounding 1e-16 / step (1e-11), and the smallest sampled gradients are
/// thousands of times smaller than their derivatives.
inline constexpr double difference_step = 1e-5;
inline constexpr double difference_reference = 1e-5;

/// Named memory with 32 responses against 2: what may differ is bookkeeping, not activations.
inline constexpr double group_memory_relative = 0.0025;

/// The same bits, or not.
inline constexpr double different_values = 0;

}  // namespace longstraw::audit
