#pragma once
// Where results go: checked before any work starts, so that an hour's step does not end at a folder
// that cannot be written, and never over what somebody else put there.

#include <filesystem>
#include <string>
#include <vector>

namespace longstraw::program {

/// A folder that will be replaced as a whole. errc::bad_input if it is a file, or holds files and
/// none of them is called `mark` (an older result of ours); errc::io_failed if nothing can be
/// created there.
void check_output_folder(const std::filesystem::path& folder, const std::string& mark);
/// A file that will be written. errc::bad_input if it is a folder; errc::io_failed as above.
void check_output_file(const std::filesystem::path& file, const std::string& flag);

/// A result of its own that may lie in the folder of another: errc::bad_input if it would take the place of something
/// that the command itself writes there. written: names in the folder; one that ends in '-' stands for all that begin so.
void check_beside_results(const std::filesystem::path& file, const std::string& flag,
                          const std::filesystem::path& folder,
                          const std::vector<std::string>& written);

/// Where `file` lies while the folder `target` is written as `fresh`: inside `fresh` if it is
/// inside `target`, else nothing (an empty path).
std::filesystem::path inside(const std::filesystem::path& file, const std::filesystem::path& target,
                             const std::filesystem::path& fresh);

}  // namespace longstraw::program
