#pragma once
// A whole decoder in double, composed of the plain reference kernels: no stacking, no chunks, no
// pages, no reuse of memory. What the layer programs and the step as a whole are held against.
//
// Everything is one operation: run `ids` against the state that earlier tokens left. With the state
// of the prompt held constant its gradient is the `frozen` one; with the prompt among `ids` and an
// empty state before, the `full` one.

#include <longstraw/models/config.hpp>
#include <longstraw/models/parameters.hpp>

#include <span>
#include <vector>

namespace longstraw::models::reference {

/// Conditional state of one layer; the parts that its kind does not have are empty.
struct layer_state {
  std::vector<double> keys, values;  ///< [tokens, kv_heads, head_dim], keys after norm and rotary
  std::vector<double> recurrent;     ///< [value_heads, key_dim, value_dim]
  std::vector<double> tail;          ///< [kernel - 1, channels], oldest first
};

struct decoder_state {
  index tokens = 0;
  std::vector<layer_state> layers;
};

struct token_scores {
  std::vector<double> logps, entropies;  ///< [targets]
};

class decoder {
 public:
  decoder(model_config config, parameter_layout layout, std::span<const float> weights);

  /// In the order of the layout; may be changed between calls (finite differences).
  std::vector<double>& weights() { return weights_; }
  const parameter_layout& layout() const { return layout_; }

  /// Before the first token.
  decoder_state empty_state() const;
  /// The state after `ids` as well.
  decoder_state capture(const decoder_state& before, std::span<const token_id> ids) const;
  /// Of `targets`, which the last targets.size() of `ids` predict.
  token_scores score(const decoder_state& before, std::span<const token_id> ids,
                     std::span<const token_id> targets, double temperature = 1) const;
  /// [vocabulary] after the last of `ids`.
  std::vector<double> last_logits(const decoder_state& before, std::span<const token_id> ids) const;

  /// gradients [layout().total()] += those of sum_t d_logps_t logp_t with `before` held constant;
  /// d_before, if given, += those by `before`.
  void backward(std::span<double> gradients, const decoder_state& before,
                std::span<const token_id> ids, std::span<const token_id> targets,
                std::span<const double> d_logps, double temperature = 1,
                decoder_state* d_before = nullptr) const;

 private:
  model_config config_;
  parameter_layout layout_;
  std::vector<double> weights_;
};

}  // namespace longstraw::models::reference
