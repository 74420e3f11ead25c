#pragma once
// A decoder: embedding, layer programs, final norm and head, over one parameter store.

#include <longstraw/kernels/sampling.hpp>
#include <longstraw/models/config.hpp>
#include <longstraw/models/layer_program.hpp>
#include <longstraw/models/parameters.hpp>

#include <memory>
#include <vector>

namespace longstraw::models {

/// Workspace and results of the head for one suffix, or one rank's slice of it. All sized for `tokens`; views of memory that the caller owns.
struct head_pass {
  mat hidden;                         ///< [tokens, hidden]: the last layer's output
  mat d_hidden;                       ///< [tokens, hidden] written by backward
  std::span<const token_id> targets;  ///< [tokens]
  float temperature = 1.0f;
  std::span<float> logps, entropies;  ///< [tokens] written by forward
  std::span<const float> d_logps;     ///< [tokens] read by backward
  std::span<float> gradients;         ///< [parameters] += by backward
  std::span<float>
      workspace;  ///< [head_workspace_floats(tokens)], kept between forward and backward
  kernels::executor* on = nullptr;
};

class language_model {
 public:
  /// Builds the layer programs of `config` over `parameters`.
  language_model(model_config config, std::shared_ptr<parameter_store> parameters);
  /// A model of the caller's own layer programs; `parameters` holds embedding, final norm and head under the usual
  /// names, and whatever the programs need.
  language_model(model_config config, std::shared_ptr<parameter_store> parameters,
                 std::vector<std::unique_ptr<layer_program>> layers);

  const model_config& config() const { return config_; }
  const std::shared_ptr<parameter_store>& parameters() const { return parameters_; }
  index layer_count() const { return static_cast<index>(layers_.size()); }
  const layer_program& layer(index l) const { return *layers_[static_cast<std::size_t>(l)]; }

  /// hidden [tokens, hidden] written from the embedding; angles [tokens, rotary width] written for `positions`.
  void embed(mat hidden, mat angles, std::span<const token_id> ids, token_range positions,
             kernels::executor& on) const;
  /// Adds d_hidden to the embedding's gradient within `gradients` [parameters].
  void embed_backward(cmat d_hidden, std::span<const token_id> ids, std::span<float> gradients,
                      kernels::executor& on) const;

  /// Final norm, head, log-softmax, gather, entropy: fills pass.logps and pass.entropies.
  void head_forward(head_pass& pass) const;
  /// From pass.d_logps to pass.d_hidden; adds the gradients of final norm and head. Follows head_forward of the same
  /// pass.
  void head_backward(head_pass& pass) const;
  index head_workspace_floats(index tokens) const;
  /// logits [1, vocabulary] of the last token of `hidden`; workspace [hidden size + 1].
  void last_logits(mat logits, cmat hidden, std::span<float> workspace,
                   kernels::executor& on) const;

 private:
  struct head_workspace;
  head_workspace carve(const head_pass& pass) const;

  model_config config_;
  std::shared_ptr<parameter_store> parameters_;
  std::vector<std::unique_ptr<layer_program>> layers_;
  matrix_parameter embedding_;
  matrix_parameter head_;
  vector_parameter final_norm_;
  std::vector<double> rotary_frequencies_;
};

}  // namespace longstraw::models
