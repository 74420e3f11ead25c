#include <longstraw/models/layer_program.hpp>

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

}  // namespace longstraw::models
