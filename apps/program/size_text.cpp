#include "size_text.hpp"

#include <cctype>
#include <charconv>
#include <string>

namespace longstraw::program {

std::optional<std::size_t> parse_size(std::string_view text) {
  double value = 0;
  const auto [rest, failure] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (failure != std::errc() || !(value >= 0)) return std::nullopt;
  std::string unit;
  for (const char* c = rest; c != text.data() + text.size(); ++c)
    if (*c != ' ') unit.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(*c))));

  double scale = 1;
  if (!unit.empty() && unit != "b" && unit != "bytes") {
    constexpr std::string_view prefixes = "kmgt";
    const std::size_t power = prefixes.find(unit[0]);
    const std::string_view tail = std::string_view(unit).substr(1);
    if (power == std::string_view::npos || (tail != "" && tail != "ib" && tail != "b"))
      return std::nullopt;
    for (std::size_t i = 0; i <= power; ++i) scale *= tail == "b" ? 1000.0 : 1024.0;
  }
  const double bytes = value * scale;
  if (bytes >= 0x1p63) return std::nullopt;
  return static_cast<std::size_t>(bytes);
}

}  // namespace longstraw::program
