#pragma once
// What a training run leaves on disk, and how it goes on from there.
//
//   OUT/run.json              the settings that a continued run must share
//   OUT/metrics.jsonl         one line a step; cut back to the saved step when a run goes on
//   OUT/checkpoint-N/         the state after step N, complete or absent
//       model/                a Hugging Face checkpoint in the original's dtypes
//       optimizer.safetensors first_moment.NAME, second_moment.NAME; master.NAME unless model/
//       holds float32 state.json            step, optimizer step, data position, seed, length of
//       metrics.jsonl, settings
//   OUT/latest                name of the last complete checkpoint, replaced after the folder is
//   there
//
// A process may die between any two of these writes: `latest` then still names the checkpoint
// before, which is removed only after `latest` names the next one.

#include "machine.hpp"

#include <longstraw/models/files.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace longstraw::program {

struct run_position {
  index step = 0;             ///< groups taken from the data so far
  index optimizer_steps = 0;  ///< committed updates
  index skipped = 0;          ///< groups without signal
  std::uint64_t metrics_bytes = 0;
};

class train_folder {
 public:
  /// Takes the folder for this process alone and removes what a killed process left half-written.
  /// errc::bad_input if it holds something else or another process trains in it.
  train_folder(std::filesystem::path folder, nlohmann::ordered_json settings);

  /// Position and state of the last save, read into `parameters`; none if there is no save.
  /// errc::bad_input names the setting in which that run differs from this one.
  std::optional<run_position> resume(const models::parameter_store& parameters) const;
  /// Cuts metrics.jsonl back to that position and opens it; writes run.json.
  void begin(const run_position& at);

  void add_metrics(const nlohmann::ordered_json& line);
  /// Saves the state after `at.step` steps; keeps the last `keep` saves. `at.metrics_bytes` is
  /// filled in.
  void save(run_position at, const loaded_model& policy, index keep);

  std::filesystem::path checkpoint(index step) const;
  const std::filesystem::path& path() const { return folder_; }

 private:
  std::optional<std::string> latest() const;
  void prune(index newest, index keep) const;

  const std::filesystem::path folder_;
  const nlohmann::ordered_json settings_;
  models::descriptor lock_, metrics_;
};

}  // namespace longstraw::program
