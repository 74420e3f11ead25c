#pragma once
// Short names for large contents: whether a run continues with the same data and the same first
// weights.

#include <filesystem>
#include <span>
#include <string>

namespace longstraw::program {

/// 16 hexadecimal digits (XXH3). Not a protection against intent.
std::string fingerprint_of(std::span<const float> values);
/// Of a file's bytes, read in blocks. errc::io_failed.
std::string fingerprint_of_file(const std::filesystem::path& file);

}  // namespace longstraw::program
