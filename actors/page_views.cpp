#include <longstraw/actors/page_views.hpp>

#include <algorithm>

namespace longstraw::actors {

index tokens_of_rank(std::span<const token_range> chunks, const models::rank_share& at) {
  index tokens = 0;
  for (const token_range& chunk : chunks) tokens += at.slice(chunk).count();
  return tokens;
}

void add_page_views(std::vector<models::state_page>& views, std::span<float* const> pages,
                    index page_tokens, std::span<const token_range> chunks,
                    const models::rank_share& at) {
  const std::size_t first = views.size();
  index place = 0;  // of the next token, counted from the first slot of the first page
  for (const token_range& chunk : chunks) {
    token_range left = at.slice(chunk);
    while (left.count() > 0) {
      float* const page = pages[static_cast<std::size_t>(place / page_tokens)];
      const index slot = place % page_tokens;
      const index tokens = std::min(left.count(), page_tokens - slot);
      models::state_page* const last = views.size() > first ? &views.back() : nullptr;
      if (last && last->data == page && last->position + last->tokens == left.begin)
        last->tokens += tokens;
      else
        views.push_back({page, page_tokens, tokens, left.begin, slot});
      place += tokens;
      left.begin += tokens;
    }
  }
}

}  // namespace longstraw::actors
