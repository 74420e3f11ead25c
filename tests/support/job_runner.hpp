#pragma once
// Runtimes on small models, for tests of the protocol.

#include "random_model.hpp"

#include <longstraw/actors/runtime.hpp>

#include <memory>

namespace longstraw::testing {

/// A model with weights of its own and the budget that it lives in.
struct small_model {
  std::shared_ptr<memory::budget> budget = memory::budget::make(0);
  std::shared_ptr<models::parameter_store> parameters;
  std::shared_ptr<const models::language_model> model;
};
small_model make_small_model(const models::model_config& config, unsigned seed,
                             models::parameter_use use = models::parameter_use::train);
/// The first hybrid configuration of small_configs().
small_model make_hybrid_model(unsigned seed = 3,
                              models::parameter_use use = models::parameter_use::train);

/// Random prompt and responses; rewards differ, old log-probabilities are not given.
models::group random_group(index prompt_tokens, std::vector<index> response_tokens,
                           index vocabulary, unsigned seed);

std::vector<float> copy_of(std::span<const float> values);

}  // namespace longstraw::testing
