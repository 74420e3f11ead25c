// Any text as config.json and as case.json: refused with a sentence, or the result keeps what
// layouts rely on.

#include <longstraw/models/case.hpp>
#include <longstraw/models/config.hpp>
#include <longstraw/models/parameters.hpp>

#include <cstdint>

namespace longstraw::models {

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const model_config c = parse_config(text, "config.json");
    LS_ASSERT(c.query_heads % c.kv_heads == 0, "key heads divide query heads");
    LS_ASSERT(c.rotary.width > 0 && c.rotary.width % 2 == 0 && c.rotary.width <= c.head_dim,
              "an even part of the head turns");
    // Thousands of layers are allowed, but slow to lay out again and again.
    if (c.layer_count() <= 64) LS_ASSERT(layout_of(c).total() > 0, "a model has parameters");
  } catch (const error&) {
  }
  try {
    parse_case(text, "case.json");
  } catch (const error&) {
  }
  return 0;
}

}  // namespace longstraw::models
