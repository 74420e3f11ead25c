#pragma once
// case.json of a golden case: the hyperparameters under which its expected values were computed.

#include <longstraw/kernels/adamw.hpp>
#include <longstraw/models/grpo.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace longstraw::models {

struct case_loss {
  std::string name;  ///< "grpo", "gspo", "cispo_max1p1", ...
  loss_settings settings;
  double value = 0;  ///< of the loss on the case's batch
};

struct case_settings {
  std::string name;
  /// Set if this case has no batch of its own: the case whose batch and expected values apply. All
  /// else is then empty.
  std::string expected_from;
  double temperature = 1.0;
  std::vector<case_loss> losses;
  kernels::adamw_settings optimizer;
  double max_grad_norm = 0;

  /// errc::bad_input lists the names.
  const case_loss& loss(std::string_view name) const;
};

/// errc::bad_input names file, field, value and what was expected.
case_settings read_case(const std::filesystem::path& file);
case_settings parse_case(std::string_view text, const std::string& file);

}  // namespace longstraw::models
