#include <longstraw/messages/schedule.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace longstraw::messages {

std::string_view to_string(phase p) {
  switch (p) {
    case phase::capture:
      return "capture";
    case phase::score:
      return "score";
    case phase::replay:
      return "replay";
    case phase::sweep:
      return "sweep";
    case phase::decode:
      return "decode";
  }
  return "unknown";
}

std::string_view to_string(verb v) {
  switch (v) {
    case verb::embed:
      return "embed";
    case verb::capture_layer:
      return "capture_layer";
    case verb::score_layer:
      return "score_layer";
    case verb::forward_layer:
      return "forward_layer";
    case verb::rebuild_layer:
      return "rebuild_layer";
    case verb::decode_layer:
      return "decode_layer";
    case verb::score_head:
      return "score_head";
    case verb::loss_head:
      return "loss_head";
    case verb::backward_layer:
      return "backward_layer";
    case verb::embed_backward:
      return "embed_backward";
    case verb::sample:
      return "sample";
  }
  return "unknown";
}

std::string_view to_string(checkpointing c) { return c == checkpointing::layer ? "layer" : "none"; }

std::string to_string(const schedule_entry& entry, index number) {
  std::string line = fmt::format("{} {} {}", number, to_string(entry.in), to_string(entry.what));
  if (entry.layer >= 0) line += fmt::format(" layer={}", entry.layer);
  if (entry.chunk >= 0) line += fmt::format(" chunk={}", entry.chunk);
  if (entry.response >= 0) line += fmt::format(" response={}", entry.response);
  return line + fmt::format(" tokens=[{},{})", entry.tokens.begin, entry.tokens.end);
}

schedule::range schedule::of(phase p) const {
  const auto matches = [p](const schedule_entry& e) { return e.in == p; };
  const auto begin = std::find_if(entries.begin(), entries.end(), matches);
  const auto end = std::find_if_not(begin, entries.end(), matches);
  return {begin - entries.begin(), end - entries.begin()};
}

std::vector<token_range> chunks_of_prompt(index prompt_tokens, index chunk_tokens) {
  std::vector<token_range> chunks;
  const index end = prompt_tokens - 1;
  for (index begin = 0; begin < end; begin += chunk_tokens)
    chunks.push_back({begin, std::min(end, begin + chunk_tokens)});
  return chunks;
}

void add_capture(schedule& s, index prompt_tokens, index chunk_tokens, index layers) {
  index chunk = 0;
  for (const token_range& tokens : chunks_of_prompt(prompt_tokens, chunk_tokens)) {
    s.entries.push_back({phase::capture, verb::embed, -1, chunk, -1, tokens});
    for (index l = 0; l < layers; ++l)
      s.entries.push_back({phase::capture, verb::capture_layer, l, chunk, -1, tokens});
    ++chunk;
  }
}

namespace {
void add_backward(schedule& s, schedule_entry of, index layers, checkpointing kept) {
  for (index l = layers; l-- > 0;) {
    of.layer = l;
    if (kept == checkpointing::layer) {
      of.what = verb::rebuild_layer;
      s.entries.push_back(of);
    }
    of.what = verb::backward_layer;
    s.entries.push_back(of);
  }
  of.layer = -1;
  of.what = verb::embed_backward;
  s.entries.push_back(of);
}
}  // namespace

void add_score(schedule& s, index response, index prompt_tokens, index tokens, index layers) {
  const token_range range{prompt_tokens - 1, prompt_tokens - 1 + tokens};
  s.entries.push_back({phase::score, verb::embed, -1, -1, response, range});
  for (index l = 0; l < layers; ++l)
    s.entries.push_back({phase::score, verb::score_layer, l, -1, response, range});
  s.entries.push_back({phase::score, verb::score_head, -1, -1, response, range});
}

void add_replay(schedule& s, index response, index prompt_tokens, index tokens, index layers,
                checkpointing kept) {
  const token_range range{prompt_tokens - 1, prompt_tokens - 1 + tokens};
  s.entries.push_back({phase::replay, verb::embed, -1, -1, response, range});
  for (index l = 0; l < layers; ++l)
    s.entries.push_back({phase::replay, verb::forward_layer, l, -1, response, range});
  s.entries.push_back({phase::replay, verb::loss_head, -1, -1, response, range});
  add_backward(s, {phase::replay, verb::backward_layer, -1, -1, response, range}, layers, kept);
}

void add_sweep(schedule& s, index prompt_tokens, index chunk_tokens, index layers,
               checkpointing kept) {
  const auto chunks = chunks_of_prompt(prompt_tokens, chunk_tokens);
  for (index c = static_cast<index>(chunks.size()); c-- > 0;) {
    const token_range range = chunks[static_cast<std::size_t>(c)];
    s.entries.push_back({phase::sweep, verb::embed, -1, c, -1, range});
    for (index l = 0; l < layers; ++l)
      s.entries.push_back({phase::sweep, verb::forward_layer, l, c, -1, range});
    add_backward(s, {phase::sweep, verb::backward_layer, -1, c, -1, range}, layers, kept);
  }
}

void add_decode(schedule& s, index sample, index prompt_tokens, index tokens, index layers) {
  for (index t = 0; t < tokens; ++t) {
    const token_range range{prompt_tokens - 1 + t, prompt_tokens + t};
    s.entries.push_back({phase::decode, verb::embed, -1, -1, sample, range});
    for (index l = 0; l < layers; ++l)
      s.entries.push_back({phase::decode, verb::decode_layer, l, -1, sample, range});
    s.entries.push_back({phase::decode, verb::sample, -1, -1, sample, range});
  }
}

}  // namespace longstraw::messages
