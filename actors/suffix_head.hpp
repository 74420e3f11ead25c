#pragma once
// Head and loss of one suffix on one rank: what score_head and loss_head run on the lane. The rank's slice gives its
// log-probabilities; the loss needs those of the whole response.

#include <longstraw/messages/job.hpp>

namespace longstraw::actors {

/// Log-probabilities and entropies of the rank's slice, into its places of pass.logps and pass.entropies.
void score_slice(messages::token_pass& pass, kernels::executor& on);

/// Floats of a slice's result on its way to other ranks: log-probabilities, then entropies.
index score_floats(index tokens);
void give_scores(const messages::token_pass& pass, std::span<float> to);
/// given: by rank.
void take_scores(messages::token_pass& pass, std::span<const std::span<const float>> given);

/// pass.logps and pass.entropies are whole: rank 0 notes them as the response's result. scored: by an entry of their own.
void note_scores(const messages::token_pass& pass, bool scored);
/// The loss of the response and, through the head, the gradient of the slice's last hidden states. Rank 0 notes the
/// loss. errc::not_finite.
void backward_from_loss(messages::token_pass& pass, kernels::executor& on);

}  // namespace longstraw::actors
