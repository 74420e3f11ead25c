#pragma once
// The matrix: a row a claim; a column an architecture (or checkpoint, or golden case), a gradient
// mode and a number of ranks. Columns that differ in ranks only form a group.

#include "cell.hpp"

#include <longstraw/memory/view.hpp>
#include <longstraw/messages/job.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longstraw::audit {

enum class claim {
  execution_capacity,
  response_fidelity,
  frozen_gradient,
  full_gradient,
  reference_gradient,
  optimizer_delta,
  distributed_consistency,
  group_size_memory,
  restart_equivalence,
  learning,
};
/// "execution capacity"
std::string_view to_string(claim c);
/// What the row says if it is proved, as one sentence.
std::string_view meaning(claim c);

struct row {
  claim of;
  std::vector<cell> cells;  ///< one a number of ranks
};

/// Columns of one subject and gradient mode, with the rows that are asked of them.
struct group {
  std::string subject;  ///< "qwen3_5_text", "golden qwen35-tiny"
  std::string about;    ///< sizes of the subject in a few words
  std::string truth;    ///< what parity rows compare with
  messages::gradient_mode gradient = messages::gradient_mode::frozen;
  std::vector<index> ranks;
  std::vector<row> rows;

  group(std::string subject_name, messages::gradient_mode mode, std::vector<index> rank_counts,
        const std::vector<claim>& claims);
  bool has(claim c) const;
  /// Asking for a row that is not there is a bug.
  cell& at(claim c, std::size_t column);
  /// The same reason for every cell that has measured nothing.
  void leave_out(const std::string& reason);
  /// Every cell, with that sentence.
  void fail(const std::string& sentence);
};

struct tally {
  index proved = 0, failed = 0, not_run = 0;
};

struct matrix {
  std::vector<group> groups;
  tally count() const;
};

/// What the three outputs say beside the matrix.
struct circumstances {
  std::string date;  ///< UTC, by the clock of this machine
  std::string machine;
  std::vector<std::pair<std::string, std::string>> versions;
  std::vector<std::pair<std::string, std::string>> settings;
  double seconds = 0;
};

}  // namespace longstraw::audit
