#pragma once
// report.json of a step, and the parts of it that other commands print too.

#include "machine.hpp"
#include "training.hpp"

#include <nlohmann/json_fwd.hpp>

namespace longstraw::program {

struct step_report {
  const actors::step_outcome& outcome;
  const models::group& data;
  const training_settings& settings;
  const machine_options& machine;
  const memory::budget& budget;
  index seed = 0;
  double total_seconds = 0;           ///< from the start of the command to the report
  double reference_seconds = 0;       ///< scoring with the reference model
  double step_processor_seconds = 0;  ///< user and system time of the step alone
};

nlohmann::ordered_json as_json(const step_report& r);

/// Why a group was skipped: one sentence.
std::string skip_reason(const models::group& g);
double reward_mean(const models::group& g);
/// User and system time of this process so far.
double processor_seconds();

}  // namespace longstraw::program
