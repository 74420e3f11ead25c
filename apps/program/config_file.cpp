#include "config_file.hpp"

#include "options.hpp"

#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>

#include <algorithm>
#include <cctype>

namespace longstraw::program {
namespace {

constexpr std::uint64_t config_bytes_max = std::uint64_t{1} << 20;

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// Words of letters, digits, dashes and underscores, with dots between.
bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  });
}

/// A number, true, false or a word, or a text in quotes; a comment may follow.
bool is_value(std::string_view text) {
  if (text.empty() || text.front() == '#') return false;
  const char quote = text.front();
  if (quote != '"' && quote != '\'') return text.find_first_of("\"'[]{}") == std::string_view::npos;
  const auto end = text.find(quote, 1);
  if (end == std::string_view::npos) return false;
  const auto inside = text.substr(1, end - 1);
  const auto rest = trimmed(text.substr(end + 1));
  // The parser takes # for a comment wherever it stands, and a backslash as it is.
  return inside.find_first_of("#\\") == std::string_view::npos &&
         (rest.empty() || rest.front() == '#');
}

}  // namespace

std::string config_file::place(const std::string& key) const {
  const auto at = lines.find(key);
  return at == lines.end() ? name : fmt::format("{} line {}", name, at->second);
}

config_file check_config_text(std::string_view text, const std::string& name) {
  config_file found;
  found.name = name;
  std::string section;
  index number = 0;
  const auto reject = [&](std::string_view line, const char* expected) {
    throw usage_error(fmt::format("{} line {} is {}; expected {}", name, number,
                                  models::in_quotes(line), expected));
  };
  while (!text.empty()) {
    ++number;
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[') {
      const std::string_view inside =
          trimmed(line.substr(1, std::max<std::size_t>(line.size(), 2) - 2));
      if (line.back() != ']' || !is_name(inside)) reject(line, "[COMMAND]");
      section = std::string(inside) + ".";
      continue;
    }
    const auto equals = line.find('=');
    if (equals == std::string_view::npos) reject(line, "NAME = VALUE, [COMMAND] or # comment");
    const std::string_view option = trimmed(line.substr(0, equals));
    if (!is_name(option)) reject(line, "the name of an option before =");
    if (!is_value(trimmed(line.substr(equals + 1))))
      reject(line, "one value after =, a text in quotes");
    const auto [at, fresh] = found.lines.emplace(section + std::string(option), number);
    if (!fresh)
      reject(line, fmt::format("each option once; line {} gives it too", at->second).c_str());
  }
  return found;
}

config_file read_config_file(const std::filesystem::path& file) {
  try {
    return check_config_text(models::read_text(file, config_bytes_max), file.string());
  } catch (const usage_error&) {
    throw;
  } catch (const error& e) {
    throw usage_error(fmt::format("--config: {}", e.what()));
  }
}

}  // namespace longstraw::program
