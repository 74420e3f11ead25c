#pragma once
// What a training run leaves on disk, and how it goes on from there. longstraw/models/journal.hpp
// says in which order a save writes, and why a process or machine may end at any moment.
//
//   OUT/run.json              the settings that a continued run must share
//   OUT/journal.jsonl         which saved step counts
//   OUT/metrics.jsonl         one line a step; cut back to the saved step when a run goes on
//   OUT/checkpoint-N/         the state after step N, complete or absent
//       model/                a Hugging Face checkpoint in the original's dtypes
//       optimizer-00001-of-00002.safetensors
//                             one part a rank: moments; float32 weights too unless model/ holds float32
//       state.json            step, optimizer steps, ranks, length of metrics.jsonl, settings
//       manifest.json         size and checksum of all files above

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/journal.hpp>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <optional>
#include <string>

namespace longstraw::program {

struct run_position {
  index step = 0;             ///< groups taken from the data so far
  index optimizer_steps = 0;  ///< committed updates
  index skipped = 0;          ///< groups without signal
  index moment_steps = 0;     ///< updates that the moments hold: fewer if they were started anew
  std::uint64_t metrics_bytes = 0;
};

/// What to do if the optimizer's parts of the last save are damaged, and the weights are not.
enum class damaged_moments { refuse, restart };

class train_folder {
 public:
  /// Takes the folder for this process alone and removes what a killed process left half-written.
  /// errc::bad_input if it holds something else, another process trains in it, or its journal is
  /// damaged.
  train_folder(std::filesystem::path folder, nlohmann::ordered_json settings);

  /// Position and state of the last committed save, read into `parameters`; none if there is no
  /// save. errc::bad_input names the setting in which that run differs from this one, or the file
  /// that is damaged.
  std::optional<run_position> resume(const models::parameter_store& parameters,
                                     damaged_moments d) const;
  /// Cuts metrics.jsonl back to that position and opens it; writes run.json; removes what the last
  /// save of a killed process did not come to remove.
  void begin(const run_position& at, index keep);

  /// errc::io_failed: the file ends with its last whole line, and the next save writes this one
  /// first.
  void add_metrics(const nlohmann::ordered_json& line);
  /// Saves the state after `at.step` steps, one part of the optimizer's state a rank, the model in
  /// the files and dtypes of `origin`; keeps the last `keep` saves. `at.metrics_bytes` is filled in.
  void save(run_position at, const models::checkpoint& origin, const models::parameter_store& store,
            index ranks, index keep);

  std::filesystem::path checkpoint(index step) const;
  const std::filesystem::path& path() const { return folder_; }

 private:
  std::vector<index> saved_steps() const;
  void check_journal() const;
  void write_metrics();
  void write_checkpoint(const std::filesystem::path& fresh, const run_position& at,
                        const models::checkpoint& origin, const models::parameter_store& store,
                        index ranks);
  void remove(const std::filesystem::path& checkpoint) const;
  void prune(index newest, index keep) const;

  const std::filesystem::path folder_;
  const nlohmann::ordered_json settings_;
  models::descriptor lock_, metrics_;
  std::optional<models::journal> journal_;
  std::string unwritten_metrics_;
  std::string manifest_checksum_;  ///< of the save that is being written
};

}  // namespace longstraw::program
