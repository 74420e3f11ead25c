#pragma once
// Where results go: checked before any work starts, so that an hour's step does not end at a folder
// that cannot be written, and never over what somebody else put there.

#include <filesystem>
#include <string>

namespace longstraw::program {

/// A folder that will be replaced as a whole. errc::bad_input if it is a file, or holds files and
/// none of them is called `mark` (an older result of ours); errc::io_failed if nothing can be
/// created there.
void check_output_folder(const std::filesystem::path& folder, const std::string& mark);
/// A file that will be written. errc::bad_input if it is a folder; errc::io_failed as above.
void check_output_file(const std::filesystem::path& file, const std::string& flag);

/// Where `file` lies while the folder `target` is written as `fresh`: inside `fresh` if it is
/// inside `target`, else nothing (an empty path).
std::filesystem::path inside(const std::filesystem::path& file, const std::filesystem::path& target,
                             const std::filesystem::path& fresh);

}  // namespace longstraw::program
