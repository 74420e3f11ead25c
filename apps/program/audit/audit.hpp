#pragma once
// The audit as a whole: which groups the matrix has, and in which order they are measured.

#include "matrix.hpp"
#include "subject.hpp"

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace longstraw::audit {

struct settings {
  std::vector<index> ranks{1, 2, 3, 4, 8};
  std::vector<messages::gradient_mode> gradients{messages::gradient_mode::frozen,
                                                 messages::gradient_mode::full};
  std::optional<index> threads;  ///< of each rank; cores / ranks otherwise
  /// Budget of the capacity row: room for the scratch memory of a dozen ranks with a thread each.
  std::size_t memory = std::size_t{128} << 20;
  /// What is done now; drawn as progress.
  std::function<void(const std::string&)> tell;
  /// A step of the audit is done; once a column.
  std::function<void()> column_done;
  /// False: stop; the audit then throws errc::cancelled.
  std::function<bool()> go_on;
};

/// Adds the groups of that subject, all cells not run.
std::vector<group> groups_of(const subject& s, const settings& o);
/// Measures one such group.
void audit_subject(group& g, const subject& s, const settings& o);

/// A folder of golden cases: for every case in it the rows that it has expected values for.
struct golden_case_folder {
  std::string name;
  std::filesystem::path path;
};
/// errc::bad_input if the folder holds no case.
std::vector<golden_case_folder> golden_cases(const std::filesystem::path& folder);
std::vector<group> groups_of(const golden_case_folder& c, const settings& o);
void audit_golden(group& g, const golden_case_folder& c, const settings& o);

}  // namespace longstraw::audit
