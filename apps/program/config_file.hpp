#pragma once
// The lines of a --config file, checked before the parser sees them: it skips what it does not
// understand and knows no line numbers.

#include <longstraw/memory/view.hpp>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace longstraw::program {

struct config_file {
  std::string name;  ///< as given
  std::map<std::string, index>
      lines;  ///< "SECTION.NAME", or "NAME" before any section, to its line

  /// "run.toml line 3".
  std::string place(const std::string& key) const;
};

/// Throws usage_error, with file and line: not a regular file, larger than 1 MiB, or a line that is
/// neither [SECTION] nor NAME = VALUE with a value on that line, or names an option twice.
config_file read_config_file(const std::filesystem::path& file);

/// The same for a text; `name` begins sentences.
config_file check_config_text(std::string_view text, const std::string& name);

}  // namespace longstraw::program
