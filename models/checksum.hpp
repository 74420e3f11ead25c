#pragma once
// Checksums of what lies on disk, and short names for large contents: XXH3, as 16 hexadecimal
// digits. They find damage, not intent.

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace longstraw::models {

constexpr std::size_t checksum_digits = 16;

std::string checksum_of(std::string_view text);
std::string checksum_of(std::span<const float> values);
/// Of a file's bytes, read in blocks. errc::io_failed.
std::string checksum_of_file(const std::filesystem::path& file);

}  // namespace longstraw::models
