#pragma once
// What is audited: a small model with its weights in memory.

#include <longstraw/models/config.hpp>
#include <longstraw/models/parameters.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace longstraw::audit {

struct subject {
  std::string name;
  std::string config_text;  ///< config.json
  models::model_config config;
  models::parameter_layout layout;
  std::vector<float> weights;  ///< in the order of the layout

  /// "4 layers, 83,712 parameters"
  std::string about() const;
  bool hybrid() const;  ///< has a gated delta net
};

/// Architectures that need no checkpoint: their small configurations are built in.
std::vector<std::string> architecture_names();
/// With random weights of a fixed seed; an architecture can have several.
std::vector<subject> built_in_subjects(const std::string& architecture);

/// errc::bad_input, besides what a checkpoint itself says, if the double reference would take too
/// long on it.
subject checkpoint_subject(const std::filesystem::path& folder);

}  // namespace longstraw::audit
