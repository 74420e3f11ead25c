#pragma once
// A golden case: checkpoint, batch and what conventional training computed from them in float64.

#include "model_parity.hpp"

#include <longstraw/models/grpo.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace longstraw::testing {

struct golden_case {
  std::shared_ptr<models::parameter_store> parameters;
  models::model_config config;
  nlohmann::json about;  ///< case.json

  step_case step;  ///< without d_logps
  std::vector<std::vector<float>> old_logps, ref_logps;
  std::vector<double> advantages;
  models::loss_settings loss;  ///< "grpo"

  std::map<std::string, std::vector<double>> expected;  ///< [G * Rmax]: padded
  std::map<std::string, std::vector<float>> grads_frozen, grads_full, state, d_state;
  std::vector<token_id> greedy;
  index longest = 0;  ///< Rmax

  /// Name of that parameter in the files of expected gradients.
  std::string expected_name(const std::string& on_disk) const;
  /// Bounds of tolerance.`kind`: of that tensor; none: the result must be all zero.
  std::optional<double> bound(const std::string& kind, const std::string& tensor) const;
  /// 4 x the larger of the tensor's errors in PyTorch's float32 and the median over the case's
  /// tensors.
  double state_bound(const std::string& kind, const std::string& tensor) const;
  /// The first values of row `response` of an expected [G, Rmax] tensor.
  std::vector<double> expected_row(const std::string& tensor, std::size_t response) const;
};

/// Skips the test with a sentence if there are no golden files.
golden_case load_golden(const std::string& name);

}  // namespace longstraw::testing
