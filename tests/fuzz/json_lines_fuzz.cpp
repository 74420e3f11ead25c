// Any text as a line of a data file: refused with a sentence, or a group whose ids and scores are
// all in range.

#include <longstraw/models/data.hpp>

#include <cmath>
#include <cstdint>

namespace longstraw::models {

namespace {

void check(const group& g, const data_rules& rules) {
  LS_ASSERT(!g.prompt.empty(), "a group has a prompt");
  for (const token_id id : g.prompt) LS_ASSERT(id >= 0 && id < rules.vocabulary, "id in range");
  for (const response& r : g.responses) {
    LS_ASSERT(r.loss_tokens == static_cast<index>(r.tokens.size()) && r.loss_tokens > 0,
              "every token that is left carries loss");
    for (const token_id id : r.tokens) LS_ASSERT(id >= 0 && id < rules.vocabulary, "id in range");
    LS_ASSERT(std::isfinite(r.reward) && std::isfinite(r.advantage), "rewards are finite");
    for (const auto* logps : {&r.old_logps, &r.ref_logps}) {
      LS_ASSERT(logps->empty() || logps->size() == r.tokens.size(), "one score a token");
      for (const float v : *logps) LS_ASSERT(v <= 0 && std::isfinite(v), "a log-probability");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  data_rules rules;
  rules.vocabulary = 258;
  rules.end_of_sequence = {256};
  for (const bool needs_responses : {true, false}) {
    rules.needs_responses = needs_responses;
    try {
      check(parse_group(line, "data.jsonl line 1", rules), rules);
    } catch (const error&) {
    }
  }
  return 0;
}

}  // namespace longstraw::models
