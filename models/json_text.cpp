#include <longstraw/models/json_text.hpp>

#include <algorithm>
#include <cmath>
#include <set>

namespace longstraw::models {
namespace {

using nlohmann::json;

constexpr int depth_max = 64;
constexpr std::size_t shown_characters = 60;

/// Byte offset where nesting first goes too deep, or npos. A scan of its own, since the document
/// must not be built.
std::size_t too_deep_at(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > depth_max) return i;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return std::string_view::npos;
}

std::string range_text(index least, index most) {
  if (most == std::numeric_limits<index>::max())
    return fmt::format("a whole number of at least {}", least);
  return fmt::format("a whole number from {} to {}", least, most);
}

std::string range_text(double least, double most) {
  if (most >= std::numeric_limits<double>::max())
    return fmt::format("a number of at least {}", least);
  return fmt::format("a number from {} to {}", least, most);
}

}  // namespace

std::string json_fault(std::string_view text, std::size_t byte) {
  const std::size_t at = std::min(byte == 0 ? 0 : byte - 1, text.size());
  if (text.substr(0, at).find_first_not_of(" \t\r\n") == std::string_view::npos &&
      at == text.size())
    return "it is empty";
  const auto before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_begin = before.rfind('\n');
  const std::size_t column = at - (line_begin == std::string_view::npos ? 0 : line_begin + 1) + 1;
  if (at == text.size())
    return fmt::format("it ends too early, in line {} at byte {}", line, column);
  // The parser stops inside a token; show it from its beginning.
  std::size_t begin = at;
  const auto in_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '+';
  };
  while (begin > 0 && at - begin < 20 && in_word(text[begin - 1])) --begin;
  std::size_t end = at;
  while (end < text.size() && end - begin < 20 && in_word(text[end])) ++end;
  return fmt::format("unexpected {} in line {} at byte {}",
                     in_quotes(text.substr(begin, std::max(end, begin + 1) - begin)), line, column);
}

json parse_json(std::string_view text, const std::string& name) {
  if (const std::size_t at = too_deep_at(text); at != std::string_view::npos)
    fail(errc::bad_input, "{} is nested deeper than {} levels at byte {}", name, depth_max, at);

  std::vector<std::set<std::string>> open_objects;
  std::string duplicate;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key && duplicate.empty()) {
      const auto& key = value.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) duplicate = key;
    }
    return true;
  };
  try {
    json parsed = json::parse(text.begin(), text.end(), watch);
    if (!duplicate.empty())
      fail(errc::bad_input, "{} names {} twice in one object", name, in_quotes(duplicate));
    return parsed;
  } catch (const json::parse_error& e) {
    fail(errc::bad_input, "{} is not JSON: {}", name, json_fault(text, e.byte));
  } catch (const json::out_of_range&) {
    fail(errc::bad_input, "{} holds a number beyond the range of a double", name);
  } catch (const json::exception& e) {
    fail(errc::bad_input, "{} is not JSON: {}", name, e.what());
  }
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size(); ++used) {
    if (used >= shown_characters) return out + "...\"";
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
      ++i;
      continue;
    }
    const std::size_t width = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    bool whole = c < 0x80 || (width > 1 && i + width <= text.size());
    for (std::size_t k = 1; whole && k < width; ++k)
      whole = (static_cast<unsigned char>(text[i + k]) & 0xc0) == 0x80;
    if (whole) {
      out += text.substr(i, width);
      i += width;
    } else {
      out += fmt::format("\\x{:02x}", c);
      ++i;
    }
  }
  return out + "\"";
}

std::string shown(const json& value) {
  switch (value.type()) {
    case json::value_t::string:
      return in_quotes(value.get_ref<const std::string&>());
    case json::value_t::array:
      return fmt::format("an array of {} values", value.size());
    case json::value_t::object:
      return "an object";
    default:
      return value.dump();
  }
}

json_fields::json_fields(const json& value, std::string file, std::string path)
    : value_(&value), file_(std::move(file)), path_(std::move(path)) {
  if (value.is_object()) return;
  if (path_.empty())
    fail(errc::bad_input, "{} holds {}; expected a JSON object", file_, shown(value));
  fail(errc::bad_input, "{}: \"{}\" is {}; expected an object", file_,
       path_.substr(0, path_.size() - 1), shown(value));
}

const json* json_fields::find(const char* name) const {
  const auto at = value_->find(name);
  return at == value_->end() || at->is_null() ? nullptr : &*at;
}

json_fields json_fields::object(const char* name) const {
  return {need(name, "an object"), file_, path_ + name + "."};
}

const json& json_fields::need(const char* name, const char* expected) const {
  if (const json* v = find(name)) return *v;
  fail(errc::bad_input, "{}: \"{}{}\" is missing; expected {}", file_, path_, name, expected);
}

void json_fields::reject(const char* name, const std::string& expected) const {
  const json* v = find(name);
  fail(errc::bad_input, "{}: \"{}{}\" is {}; expected {}", file_, path_, name,
       v ? shown(*v) : "missing", expected);
}

index json_fields::integer(const char* name, index least, index most) const {
  const json& v = need(name, range_text(least, most).c_str());
  const bool too_large =
      v.is_number_unsigned() && v.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max();
  if (!v.is_number_integer() || too_large || v.get<index>() < least || v.get<index>() > most)
    reject(name, range_text(least, most));
  return v.get<index>();
}

index json_fields::integer(const char* name, index least, index most, index otherwise) const {
  return has(name) ? integer(name, least, most) : otherwise;
}

double json_fields::number(const char* name, double least, double most) const {
  const json& v = need(name, range_text(least, most).c_str());
  if (!v.is_number()) reject(name, range_text(least, most));
  const double d = v.get<double>();
  if (!std::isfinite(d) || d < least || d > most) reject(name, range_text(least, most));
  return d;
}

double json_fields::number(const char* name, double least, double most, double otherwise) const {
  return has(name) ? number(name, least, most) : otherwise;
}

bool json_fields::boolean(const char* name, bool otherwise) const {
  const json* v = find(name);
  if (!v) return otherwise;
  if (!v->is_boolean()) reject(name, "true or false");
  return v->get<bool>();
}

std::string json_fields::text(const char* name) const {
  const json& v = need(name, "a text");
  if (!v.is_string()) reject(name, "a text");
  return v.get<std::string>();
}

std::string json_fields::text(const char* name, const std::string& otherwise) const {
  return has(name) ? text(name) : otherwise;
}

}  // namespace longstraw::models
