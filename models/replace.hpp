#pragma once
// Results that appear on disk whole or not at all: written beside the target, synced, and put in
// its place by a rename.

#include <filesystem>
#include <functional>
#include <string>

namespace longstraw::models {

/// Makes `target` the complete result of `fill(temporary folder)`: fill writes files into a sibling
/// folder, every file is synced, and the folder takes the target's place in one rename. An older
/// target is swapped out in the same system call where the file system can do that (else it is
/// moved out of the way first), and removed last. On any failure the target is as before and the
/// temporary folder is gone; what a process left that ended in the midst of this is removed by the next one.
/// errc::io_failed names file and reason.
void replace_folder(const std::filesystem::path& target,
                    const std::function<void(const std::filesystem::path&)>& fill);

/// The same for one file of text.
void replace_file(const std::filesystem::path& target, const std::string& text);

}  // namespace longstraw::models
