#include <longstraw/models/layer_program.hpp>

#include <algorithm>

namespace longstraw::models {

std::string_view to_string(exchange e) {
  switch (e) {
    case exchange::none:
      return "none";
    case exchange::gather_queries:
      return "gather_queries";
    case exchange::merge_partials:
      return "merge_partials";
    case exchange::tokens_to_heads:
      return "tokens_to_heads";
    case exchange::heads_to_tokens:
      return "heads_to_tokens";
  }
  return "unknown exchange";
}

std::string_view to_string(direction d) { return d == direction::forward ? "forward" : "backward"; }

bool exchanges_after(std::span<const segment> segments, std::size_t s, bool state_only) {
  if (segments[s].after == exchange::none) return false;
  const auto later = segments.subspan(s + 1);
  return std::ranges::any_of(later, [&](const segment& l) { return l.for_state || !state_only; });
}

index layer_program::given_floats(std::size_t, direction, index, const rank_share&) const {
  return 0;
}

index layer_program::give(std::size_t, direction, const layer_pass&, std::span<float>) const {
  LS_ASSERT(false, "a program that names an exchange says what it gives");
}

void layer_program::take(std::size_t, direction, layer_pass&,
                         std::span<const std::span<const float>>) const {
  LS_ASSERT(false, "a program that names an exchange says how it takes");
}

}  // namespace longstraw::models
