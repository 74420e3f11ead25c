#pragma once
// The arithmetic of a transaction on one shard: a consecutive part of the flat arrays of a parameter store.

#include <longstraw/messages/job.hpp>

namespace longstraw::actors {

/// The part of the flat arrays that a rank's optimizer owns. Shards of all ranks cover them once, at any rank count.
token_range shard_of(const models::parameter_layout& layout, const models::rank_share& at);

/// sum [parameters] = the gradients [parameters] that all ranks gave, added in order of rank, within the shard. `sum` may
/// be what rank 0 gave.
void sum_gradients(std::span<float> sum, std::span<const std::span<const float>> given,
                   token_range shard, kernels::executor& on);

/// Sum of squares of the shard's gradients, tensor by tensor. errc::not_finite names the first parameter whose gradient
/// is not finite.
double gradient_squares(const models::parameter_store& parameters, token_range shard,
                        kernels::executor& on);

/// One AdamW step over the shard. errc::not_finite names the first parameter that is not finite afterwards.
void apply_adamw(const models::parameter_store& parameters, token_range shard,
                 const messages::optimizer_settings& s, double gradient_scale, index step,
                 kernels::executor& on);

/// For a step whose commit was decided, after every actor has ended: all ranks have voted yes, but perhaps not all have
/// updated their shards. Makes the remaining updates, so that weights and moments are of the new version, whole. False
/// if an update broke off within a shard: then they are of no version.
bool carry_through(messages::job& j, memory::arena& scratch);

}  // namespace longstraw::actors
