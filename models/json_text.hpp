#pragma once
// JSON from outside, read so that every fault ends in one sentence: syntax, nesting, duplicate
// names, and then each field's presence, type and range.

#include <longstraw/memory/view.hpp>

#include <nlohmann/json.hpp>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace longstraw::models {

/// Parses a whole text. `name` begins the sentence: "config.json is not JSON: ...". errc::bad_input
/// for a syntax error, text that is not UTF-8, nesting deeper than 64 levels (later recursion stays
/// bounded) and a name used twice in one object (which of the two was meant?).
nlohmann::json parse_json(std::string_view text, const std::string& name);

/// What is wrong with a JSON text at `byte` (1-based), as the end of a sentence.
std::string json_fault(std::string_view text, std::size_t byte);

/// A value for sentences: short scalars as written, long ones cut, others by kind.
std::string shown(const nlohmann::json& value);
/// A text for sentences: quoted, control characters escaped, cut after 60 characters.
std::string in_quotes(std::string_view text);

/// The fields of one JSON object. A field that is null counts as absent.
class json_fields {
 public:
  /// `path` goes in front of field names, such as "text_config.". errc::bad_input if `value` is no
  /// object.
  json_fields(const nlohmann::json& value, std::string file, std::string path = "");

  const std::string& file() const { return file_; }
  /// Null if absent.
  const nlohmann::json* find(const char* name) const;
  bool has(const char* name) const { return find(name) != nullptr; }
  json_fields object(const char* name) const;

  index integer(const char* name, index least, index most) const;
  index integer(const char* name, index least, index most, index otherwise) const;
  double number(const char* name, double least, double most) const;
  double number(const char* name, double least, double most, double otherwise) const;
  bool boolean(const char* name, bool otherwise) const;
  std::string text(const char* name) const;
  std::string text(const char* name, const std::string& otherwise) const;

  /// errc::bad_input: FILE: "NAME" is VALUE; expected EXPECTED.
  [[noreturn]] void reject(const char* name, const std::string& expected) const;

 private:
  const nlohmann::json& need(const char* name, const char* expected) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace longstraw::models
