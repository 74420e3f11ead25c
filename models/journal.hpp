#pragma once
// The journal of a training run: an append-only file that decides which saved step a restart goes
// on from.
//
// A save of step N by n ranks, in this order:
//
//    1. sync metrics.jsonl
//         The state that is saved counts on its lines.
//    2. journal: begin N, n
//         From here on a folder of step N may be found that is not to be used. One of a later step
//         that was never begun shows that the journal has lost lines.
//    3. each rank r: write its part of the optimizer's state into a hidden folder, sync the file;
//       journal: prepared N, r, checksum
//         A commit is possible only when every rank's part is on disk.
//    4. write model/, state.json, and last manifest.json: size and checksum of all other files
//    5. sync every file and folder of the hidden folder
//         Before the rename: a name that is found never leads to bytes that are not there.
//    6. rename the hidden folder to checkpoint-N, sync the folder above
//         Before the commit: what the journal names is there under its name.
//    7. journal: commit N, checksum of manifest.json
//         The one instant at which the saved step changes from the old one to the new one.
//    8. remove older checkpoints
//         After the commit only: until then they are what a restart needs. Each is renamed to a
//         hidden name first, so that a folder under its own name is always whole.
//
// A process or machine that ends between any two of these leaves a journal whose last commit names
// a whole checkpoint. What it left half-written or half-removed is removed when the run goes on.
//
// A record is one line of JSON that ends with a checksum of what stands before it. Its text is
// synced before its newline is written, and the newline before the next record: a crash can only
// leave a last line without its newline, which is ignored and cut. Any other line that is not what
// it was when it was written is an error, never skipped: a restart from an older step than the
// committed one must be somebody's decision.

#include <longstraw/memory/view.hpp>
#include <longstraw/models/files.hpp>

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace longstraw::models {

/// Ranks that one save may have; a bound for what is read.
constexpr index journal_parts_max = index{1} << 20;

struct committed_step {
  index step = 0;
  index parts = 0;       ///< of the optimizer's state: one a rank
  std::string manifest;  ///< checksum of the checkpoint's manifest.json
};

/// What the whole lines of a journal say.
struct journal_content {
  index lines = 0;
  std::uint64_t bytes = 0;  ///< of the whole lines; what follows is torn
  std::optional<committed_step> last;

  std::set<index> begun;  ///< steps since the last commit, whose folders may be there

  // The save that has begun.
  index step = -1;
  std::vector<bool> prepared;  ///< by part
};

/// Reads a journal. `name` begins sentences. errc::bad_input names the damaged line and what was
/// expected.
journal_content read_journal(std::string_view text, const std::string& name);

class journal {
 public:
  /// The text of a journal that holds no save.
  static std::string opening();
  /// Reads the file, cuts a torn last line and opens it for appending. errc::io_failed,
  /// errc::bad_input.
  explicit journal(std::filesystem::path file);

  const std::optional<committed_step>& last_commit() const { return content_.last; }

  /// Whether a folder of that step, which is not committed, can be what a killed process left.
  bool has_begun(index step) const { return content_.begun.contains(step); }

  // Each is on disk on return. errc::io_failed: the record does not count, and the next one may be
  // tried. (After a failed sync a crash may still bring the record back; that is harmless, since
  // what it speaks of is on disk before it.)
  void begin(index step, index parts);
  void prepared(index step, index part, const std::string& checksum);
  void commit(index step, const std::string& manifest_checksum);

 private:
  void append(nlohmann::ordered_json record);
  void cut();

  const std::filesystem::path file_;
  descriptor descriptor_;
  journal_content content_;
  bool torn_ = false;  ///< a record that failed may have left bytes
};

}  // namespace longstraw::models
