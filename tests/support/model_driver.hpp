#pragma once
// A step without actors: capture a prompt by chunks, run suffixes forward and backward against its
// state, sweep back through the prompt, decode. Plain loops over the segments of the layer
// programs; the product's schedule does the same by messages.

#include "compare.hpp"

#include <longstraw/models/language_model.hpp>

#include <memory>
#include <span>
#include <vector>

namespace longstraw::testing {

struct driver_scores {
  std::vector<float> logps, entropies;
};

/// Conditional state of one layer. Slots of a page that no token has reached hold NaN.
struct driver_layer_state {
  std::vector<std::vector<float>> pages, page_gradients;
  std::vector<float> recurrent, d_recurrent;
  std::vector<std::vector<float>> recurrent_at;  ///< before each chunk of the prompt
};

struct driver_state {
  index tokens = 0;
  std::vector<driver_layer_state> layers;
};

class model_driver {
 public:
  model_driver(const models::language_model& model, index page_tokens, index chunk_tokens);

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

  /// Keys and values of a layer as [2, kv_heads, tokens, head_dim], keys first.
  std::vector<float> keys_and_values(const driver_state& state, index layer,
                                     bool gradients = false) const;

 private:
  struct run;
  void make_room(driver_state& state, index tokens) const;
  std::vector<models::state_page> pages_of(std::vector<std::vector<float>>& memory, index layer,
                                           index tokens) const;

  const models::language_model& model_;
  index page_tokens_, chunk_tokens_;
  std::shared_ptr<memory::budget> budget_ = memory::budget::make(0);
  kernels::executor on_{2, *budget_->named("scratch")};
};

}  // namespace longstraw::testing
