#pragma once
// The schedule of a job: a plain, printable list, known before the job starts and the same on every
// rank. It fixes the order in which lanes run, and with it every sum: same schedule, same bits.

#include <longstraw/memory/view.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace longstraw::messages {

enum class phase : std::uint8_t { capture, score, replay, sweep, decode };
std::string_view to_string(phase p);

enum class verb : std::uint8_t {
  embed,          ///< rank: token embedding and rotary angles of the pass
  capture_layer,  ///< layer: prompt chunk without gradient, conditional state kept
  score_layer,    ///< layer: suffix without gradient
  forward_layer,  ///< layer: suffix or swept chunk; what backward needs is kept, or only the layer's input
  rebuild_layer,   ///< layer: forward once more from the kept input, just before its backward
  decode_layer,    ///< layer: one token against a sample's own fork of the state
  score_head,      ///< rank: log-probabilities and entropies of the suffix
  loss_head,       ///< rank: the same, then the loss and the gradient of the last hidden state
  backward_layer,  ///< layer: suffix or swept chunk backward
  embed_backward,  ///< rank: gradient of the embedding
  sample,          ///< rank: logits of the last token, choice of the next
};
std::string_view to_string(verb v);

/// One entry. Its number is its place in the list.
struct schedule_entry {
  phase in = phase::capture;
  verb what = verb::embed;
  index layer = -1;
  index chunk = -1;     ///< capture, sweep: number of the prompt chunk
  index response = -1;  ///< score, replay, decode: number of the response or sample
  token_range tokens;   ///< positions in the whole sequence, of all ranks together
};

/// "17 capture capture_layer layer=3 chunk=2 tokens=[2048,3072)"
std::string to_string(const schedule_entry& entry, index number);

struct schedule {
  std::vector<schedule_entry> entries;

  /// Entries [begin, end) of a phase; phases follow each other without mixing.
  struct range {
    index begin = 0;
    index end = 0;
    bool empty() const { return begin == end; }
  };
  range of(phase p) const;
};

/// The chunks that the captured prompt tokens 0 .. prompt_tokens - 2 are cut in.
std::vector<token_range> chunks_of_prompt(index prompt_tokens, index chunk_tokens);

/// What a pass with gradient keeps of a layer until its backward.
enum class checkpointing : std::uint8_t {
  none,   ///< all that backward needs
  layer,  ///< the layer's input; the rest is rebuilt by another forward just before backward
};

std::string_view to_string(checkpointing c);

/// Prompt tokens 0 .. prompt_tokens - 2 by chunks, each through all layers (chunk-major). The last
/// layer computes only its state.
void add_capture(schedule& s, index prompt_tokens, index chunk_tokens, index layers);
/// The suffix of one response: prompt's last token and the response but its last, `tokens` long.
void add_score(schedule& s, index response, index prompt_tokens, index tokens, index layers);
void add_replay(schedule& s, index response, index prompt_tokens, index tokens, index layers,
                checkpointing kept = checkpointing::none);
/// The chunks of add_capture from last to first, each forward with gradient and backward.
void add_sweep(schedule& s, index prompt_tokens, index chunk_tokens, index layers,
               checkpointing kept = checkpointing::none);
/// `tokens` decode steps of one sample, starting with the prompt's last token.
void add_decode(schedule& s, index sample, index prompt_tokens, index tokens, index layers);

}  // namespace longstraw::messages
