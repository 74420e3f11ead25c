#pragma once
// manifest.json: every file of a folder with its size and checksum, so that a damaged or missing
// one is found before anything is read from it.
//
//   {"files": [{"name": "model/config.json", "bytes": 812, "checksum": "16 digits"}, ...]}

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace longstraw::models {

constexpr const char* manifest_name = "manifest.json";

struct manifest_entry {
  std::string name;  ///< relative to the folder, with slashes
  std::uint64_t bytes = 0;
  std::string checksum;
};

/// Lists all files below `folder`, in the order of their names, and writes the manifest there. Its
/// own checksum.
std::string write_manifest(const std::filesystem::path& folder);

/// errc::bad_input if the manifest is missing, or is not the one with that checksum. `said_by` says
/// who knows the checksum ("journal.jsonl").
std::vector<manifest_entry> read_manifest(const std::filesystem::path& folder,
                                          const std::string& checksum, const std::string& said_by);

/// errc::bad_input names the file, what was expected and what was found, if it is not as listed.
void check_file(const std::filesystem::path& folder, const manifest_entry& e);

}  // namespace longstraw::models
