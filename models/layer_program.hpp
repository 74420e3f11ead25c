#pragma once
// The one interface that a model implements. A layer program knows its mathematics and its own conditional state; it
// knows nothing of actors, ranks, tiers or schedules. Trainers can bring their own.
//
// A program is a short list of segments joined by exchanges. A segment is local work on this rank's slice, forward and
// backward; an exchange is a named movement of data between ranks, each with its transpose for the backward pass. The
// program names the exchange, and says what it gives and how it takes; the runtime moves it. On one rank every exchange is
// the identity.
//
// Capture, scoring, replay, the sweep and decoding call the same segments on a `layer_pass`; they differ only in where the
// conditional state lies and in what is kept for backward. They therefore run the same arithmetic in the same blocks.

#include <longstraw/kernels/executor.hpp>
#include <longstraw/memory/view.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace longstraw::models {

/// What the ranks do with a segment's result before the next segment starts.
///
/// | exchange        | forward                                                    | backward, its transpose              |
/// |-----------------|------------------------------------------------------------|--------------------------------------|
/// | none            | nothing                                                    | nothing                              |
/// | gather_queries  | every rank gets all queries of the pass                    | dQ parts summed to the query's owner |
/// | merge_partials  | partial (O, LSE) to the query's owner, LSE merge           | (q, dO, LSE, delta) to all ranks     |
/// | tokens_to_heads | all-to-all from token slices to head slices                | heads_to_tokens                      |
/// | heads_to_tokens | all-to-all from head slices to token slices                | tokens_to_heads                      |
enum class exchange : std::uint8_t {
  none,
  gather_queries,
  merge_partials,
  tokens_to_heads,
  heads_to_tokens
};
std::string_view to_string(exchange e);

/// Which way data moves through an exchange.
enum class direction : std::uint8_t { forward, backward };
std::string_view to_string(direction d);

/// One rank's place among those that share every pass. What is split (tokens, heads) is split in `ranks` consecutive
/// parts whose sizes differ by at most one; a part may be empty.
struct rank_share {
  index rank = 0;
  index ranks = 1;

  token_range part(index count, index of_rank) const {
    return {count * of_rank / ranks, count * (of_rank + 1) / ranks};
  }
  token_range part(index count) const { return part(count, rank); }
  /// The part of consecutive tokens that falls to a rank.
  token_range slice(token_range whole, index of_rank) const {
    const token_range p = part(whole.count(), of_rank);
    return {whole.begin + p.begin, whole.begin + p.end};
  }
  token_range slice(token_range whole) const { return slice(whole, rank); }
  /// The largest part that any rank gets of `count`, which grows with `count`: room for a part of it or of less.
  index largest_part(index count) const { return (count + ranks - 1) / ranks; }
  bool alone() const { return ranks == 1; }
};

struct segment {
  std::string_view name;
  exchange after = exchange::none;
  /// Needed when only the layer's conditional state is wanted (the last layer in capture).
  bool for_state = true;
};

/// What a layer keeps of earlier tokens on one rank.
struct state_spec {
  index page_floats_per_token =
      0;  ///< grows with the rank's tokens, kept in pages (keys and values)
  index recurrent_floats =
      0;  ///< fixed size (recurrent matrix and convolution tail of the rank's heads)
};

/// Consecutive tokens in one page, as a program sees them. The page has room for `capacity` tokens of
/// page_floats_per_token floats each, in the program's own layout. Token i of `tokens` has position `position + i` and
/// lies in slot `slot + i`. On one rank a page is one such run; on several ranks a page may hold parts of several prompt
/// chunks, and is listed once for each.
struct state_page {
  float* data = nullptr;
  index capacity = 0;
  index tokens = 0;  ///< valid once the current pass has written its own
  index position = 0;
  index slot = 0;
};

/// One run of consecutive tokens through one layer, on one rank: its slice of the tokens. The same object is handed to
/// every segment, forward and then, if `keep`, backward in reverse order.
struct layer_pass {
  token_range positions;  ///< of this rank's tokens in the whole sequence; may be empty
  token_range whole;      ///< of the tokens of all ranks together; on one rank the same
  rank_share at;
  mat hidden;  ///< [tokens, hidden]: in, the layer's input; after the last segment, its output
  mat d_hidden;  ///< [tokens, hidden], backward: in, gradient of the output; out, gradient of the input
  cmat angles;  ///< [tokens, rotary width]: kernels::rotary_angles of `positions`

  /// Pages in order of position. If `writes_pages`, they include room for the pass's own tokens, which the program
  /// writes there; else they hold earlier tokens only and the pass's own stay in `activations`. A pass that writes pages
  /// gets the gradient of its own keys through `page_gradients`, so its backward needs them.
  std::span<const state_page> pages;
  bool writes_pages = false;

  /// [recurrent_floats]: the state before the first token, and where the state after the last goes (may be the same
  /// memory; empty: not wanted).
  std::span<const float> recurrent_before;
  std::span<float> recurrent_after;

  /// Full gradient only. Gradient pages of the same layout as `pages` (+=), and the gradient of the recurrent state: in,
  /// of the state after; out, of the state before. Empty: the earlier state is frozen.
  std::span<const state_page> page_gradients;
  std::span<float> d_recurrent;

  /// [parameters]: this rank's sum of parameter gradients, in the layout of the parameter store (+=). Read by backward
  /// only.
  std::span<float> gradients;

  /// Workspace [activation_floats(whole tokens, at)]. What backward needs stays in it between the calls.
  std::span<float> activations;
  bool keep = false;  ///< backward will follow
  /// Only segments with for_state run and `hidden` is not wanted, so a program may leave out what later segments would
  /// read. Their backward, if any, starts from the gradients of the state alone.
  bool state_only = false;

  kernels::executor* on = nullptr;

  index tokens() const { return positions.count(); }
};

class layer_program {
 public:
  virtual ~layer_program() = default;

  /// "attention", "gated_delta_net": for the schedule and the timeline.
  virtual std::string_view kind() const = 0;
  virtual std::span<const segment> segments() const = 0;
  // What a program can do beyond the frozen gradient on one rank; the runtime refuses the rest by its name.
  /// Backward honours page_gradients and d_recurrent.
  virtual bool gives_state_gradient() const { return false; }
  /// Passes may hold a slice of the tokens.
  virtual bool runs_on_ranks() const { return false; }
  virtual state_spec state(const rank_share& at) const = 0;
  /// Floats of layer_pass::activations on that rank for a pass of `tokens` tokens over all ranks; grows with `tokens`.
  virtual index activation_floats(index tokens, const rank_share& at) const = 0;

  /// Runs segment number `s` of segments().
  virtual void forward(std::size_t s, layer_pass& pass) const = 0;
  /// Runs its backward: parameter gradients are added to (+=), pass.d_hidden is the gradient of the segment's input
  /// afterwards.
  virtual void backward(std::size_t s, layer_pass& pass) const = 0;

  // The exchange after segment `s`, asked for on several ranks only, and only if a later segment follows in the pass.
  // Forward it stands between the segments s and s + 1; backward, between the backwards of s + 1 and of s. A program
  // whose segments have no exchange need not say anything here.

  /// Floats that this rank gives in a pass of `tokens` tokens over all ranks; at most that for fewer tokens.
  virtual index given_floats(std::size_t s, direction d, index tokens, const rank_share& at) const;
  /// Writes what this rank gives; returns how much of `to`, which has given_floats, it used.
  virtual index give(std::size_t s, direction d, const layer_pass& pass, std::span<float> to) const;
  /// Takes this rank's part of what all ranks gave, listed by rank. Sums are formed in that order.
  virtual void take(std::size_t s, direction d, layer_pass& pass,
                    std::span<const std::span<const float>> given) const;
};

/// Whether the ranks meet after segment `s` of a pass.
bool exchanges_after(std::span<const segment> segments, std::size_t s, bool state_only);

}  // namespace longstraw::models
