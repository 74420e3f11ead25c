#include <longstraw/models/kv_pages.hpp>
#include <longstraw/models/workspace.hpp>

#include <algorithm>

namespace longstraw::models {
namespace {
/// Calls body(page, first token of its run, end, first token of `positions`) for each page that
/// shares positions.
template <class F>
void for_shared_tokens(std::span<const state_page> pages, token_range positions, F&& body) {
  index covered = 0;
  for (const state_page& page : pages) {
    const index begin = std::max(positions.begin, page.position);
    const index end = std::min(positions.end, page.position + page.tokens);
    if (begin >= end) continue;
    body(page, begin - page.position, end - page.position, begin - positions.begin);
    covered += end - begin;
  }
  LS_ASSERT(covered == positions.count(), "the pages have room for every token of the pass");
}
}  // namespace

heads kv_pages::keys(const state_page& page, index begin, index end) const {
  LS_ASSERT(begin >= 0 && page.slot >= 0 && page.slot + end <= page.capacity,
            "a page holds no more tokens than its capacity");
  const index head_stride = page.capacity * head_dim;
  return {page.data + (page.slot + begin) * head_dim,
          end - begin,
          kv_heads,
          head_dim,
          head_dim,
          head_stride};
}

heads kv_pages::values(const state_page& page, index begin, index end) const {
  heads v = keys(page, begin, end);
  v.data += kv_heads * page.capacity * head_dim;
  return v;
}

kernels::kv_piece kv_pages::piece(const state_page& page) const {
  const heads k = keys(page, 0, page.tokens), v = values(page, 0, page.tokens);
  return {k.data, v.data, page.tokens, page.position, k.token_stride, k.head_stride};
}

kernels::kv_piece_gradient kv_pages::gradient(const state_page& page) const {
  return {keys(page, 0, 0).data, values(page, 0, 0).data};
}

void kv_pages::write(std::span<const state_page> pages, token_range positions, cheads k, cheads v,
                     kernels::executor& on) const {
  for_shared_tokens(pages, positions, [&](const state_page& page, index begin, index end, index t) {
    copy(keys(page, begin, end), k.token_range(t, t + end - begin), on);
    copy(values(page, begin, end), v.token_range(t, t + end - begin), on);
  });
}

void kv_pages::read(heads k, heads v, std::span<const state_page> pages, token_range positions,
                    kernels::executor& on) const {
  for_shared_tokens(pages, positions, [&](const state_page& page, index begin, index end, index t) {
    copy(k.token_range(t, t + end - begin), keys(page, begin, end), on);
    copy(v.token_range(t, t + end - begin), values(page, begin, end), on);
  });
}

}  // namespace longstraw::models
