#include <longstraw/models/checksum.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>
#include <longstraw/models/manifest.hpp>

#include <algorithm>
#include <limits>

namespace longstraw::models {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t manifest_bytes_max = std::uint64_t{256} << 20;

/// A name from a file must not lead out of the folder.
bool stays_inside(const fs::path& name) {
  return !name.empty() && name.is_relative() &&
         std::none_of(name.begin(), name.end(), [](const fs::path& p) { return p == ".."; });
}

}  // namespace

std::string write_manifest(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory())
      names.push_back(entry.path().lexically_relative(folder).generic_string());
  std::sort(names.begin(), names.end());
  nlohmann::ordered_json files = nlohmann::ordered_json::array();
  for (const std::string& name : names)
    files.push_back({{"name", name},
                     {"bytes", fs::file_size(folder / name)},
                     {"checksum", checksum_of_file(folder / name)}});
  const fs::path file = folder / manifest_name;
  std::string text;
  try {
    text = nlohmann::ordered_json{{"files", files}}.dump(2) + "\n";
  } catch (const nlohmann::json::type_error&) {
    fail(errc::bad_input, "{} cannot be written: a file's name is not UTF-8 text", file.string());
  }
  const descriptor out = open_for_writing(file);
  write_all(out.get(), file, text);
  sync_file(out.get(), file);
  return checksum_of(text);
}

std::vector<manifest_entry> read_manifest(const fs::path& folder, const std::string& checksum,
                                          const std::string& said_by) {
  const fs::path file = folder / manifest_name;
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    fail(errc::bad_input, "{} is missing; {} says that this step was committed", file.string(),
         said_by);
  const std::string text = read_text(file, manifest_bytes_max);
  if (const std::string found = checksum_of(text); found != checksum)
    fail(errc::bad_input, "{} is damaged: its checksum is {}; {} expects {}", file.string(), found,
         said_by, checksum);
  const nlohmann::json document = parse_json(text, file.string());
  const json_fields top(document, file.string());
  const nlohmann::json* files = top.find("files");
  if (!files || !files->is_array()) top.reject("files", "an array of files");
  std::vector<manifest_entry> entries;
  for (const nlohmann::json& one : *files) {
    const json_fields f(one, file.string(), "files.");
    manifest_entry e;
    e.name = f.text("name");
    e.bytes = static_cast<std::uint64_t>(f.integer("bytes", 0, std::numeric_limits<index>::max()));
    e.checksum = f.text("checksum");
    if (!stays_inside(e.name)) f.reject("name", "a file in this folder");
    entries.push_back(std::move(e));
  }
  return entries;
}

void check_file(const fs::path& folder, const manifest_entry& e) {
  const fs::path file = folder / e.name;
  std::error_code ignored;
  if (!fs::exists(file, ignored))
    fail(errc::bad_input, "{} is missing; {} expects a file of {} bytes", file.string(),
         manifest_name, e.bytes);
  const descriptor opened = open_for_reading(file);
  if (const std::uint64_t bytes = size_of(opened.get(), file); bytes != e.bytes)
    fail(errc::bad_input, "{} has {} bytes; {} expects {}", file.string(), bytes, manifest_name,
         e.bytes);
  if (const std::string found = checksum_of_file(file); found != e.checksum)
    fail(errc::bad_input, "{} is damaged: its checksum is {}; {} expects {}", file.string(), found,
         manifest_name, e.checksum);
}

}  // namespace longstraw::models
