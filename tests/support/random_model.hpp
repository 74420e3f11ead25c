#pragma once
// Small models with random weights, one for each way in which the supported architectures differ.

#include <longstraw/models/config.hpp>
#include <longstraw/models/parameters.hpp>

#include <memory>
#include <string>
#include <vector>

namespace longstraw::testing {

struct named_config {
  std::string name;
  models::model_config config;
};
std::vector<named_config> small_configs();

/// Weights of a size that lets every parameter matter, and dt_bias such that the recurrent state
/// remembers.
std::shared_ptr<models::parameter_store> random_parameters(const models::model_config& config,
                                                           unsigned seed);

std::vector<token_id> random_tokens(index count, index vocabulary, unsigned seed);

}  // namespace longstraw::testing
