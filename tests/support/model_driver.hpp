#pragma once
// A step without actors: capture a prompt by chunks, run suffixes forward and backward against its
// state, sweep back through the prompt, decode. Plain loops over the segments of the layer
// programs; the product's schedule does the same by messages. Several ranks take turns in one
// thread, segment by segment, each with its own memory.

#include "compare.hpp"

#include <longstraw/models/language_model.hpp>

#include <memory>
#include <span>
#include <vector>

namespace longstraw::testing {

struct driver_scores {
  std::vector<float> logps, entropies;
};

/// Conditional state of one layer on one rank. Slots of a page that no token has reached hold NaN.
struct driver_layer_state {
  std::vector<std::vector<float>> pages, page_gradients;
  std::vector<float> recurrent, d_recurrent;
  std::vector<std::vector<float>> recurrent_at;  ///< before each chunk of the prompt
};

struct driver_state {
  index tokens = 0;
  /// Runs of tokens as they were computed: each rank keeps its slice of each, one behind the other
  /// in its pages.
  std::vector<token_range> chunks;
  std::vector<std::vector<driver_layer_state>> ranks;  ///< [rank][layer]
};

class model_driver {
 public:
  model_driver(const models::language_model& model, index page_tokens, index chunk_tokens,
               index ranks = 1);

  /// The prompt's state in chunks. The last layer computes its state only.
  driver_state capture(std::span<const token_id> ids);
  /// Runs ids after `state`; `targets` are predicted by the last targets.size() of them. `state`
  /// stays as it is.
  driver_scores score(const driver_state& state, std::span<const token_id> ids,
                      std::span<const token_id> targets, float temperature = 1);
  /// The same with gradient. full: adds to the gradients of the state as well.
  driver_scores replay(driver_state& state, std::span<const token_id> ids,
                       std::span<const token_id> targets, std::span<const float> d_logps, bool full,
                       float temperature = 1);
  /// After all replays of full mode: walks the chunks of the prompt from last to first.
  void sweep(driver_state& state, std::span<const token_id> ids);
  /// Runs ids and appends them to the state; logits [vocabulary] after the last.
  std::vector<float> decode(driver_state& state, std::span<const token_id> ids);

  // What all ranks hold together, in the order of one.
  /// Keys and values of a layer as [2, kv_heads, tokens, head_dim], keys first.
  std::vector<float> keys_and_values(const driver_state& state, index layer,
                                     bool gradients = false) const;
  /// The recurrent state of a gated delta layer.
  std::vector<float> recurrent(const driver_state& state, index layer,
                               bool gradients = false) const;

 private:
  struct rank_run;
  struct run;
  models::rank_share share(index rank) const { return {rank, ranks_}; }
  /// Appends a run of tokens to the state, and pages for it.
  void append(driver_state& state, index tokens) const;
  /// The runs of a rank's pages that hold its slices of the first `chunks` chunks.
  std::vector<models::state_page> pages_of(const std::vector<std::vector<float>>& memory,
                                           const driver_state& state, index rank,
                                           std::size_t chunks) const;

  const models::language_model& model_;
  index page_tokens_, chunk_tokens_, ranks_;
  std::shared_ptr<memory::budget> budget_ = memory::budget::make(0);
  kernels::executor on_{2, *budget_->named("scratch")};
};

}  // namespace longstraw::testing
