#pragma once
// The one interface that a model implements. A layer program knows its mathematics and its own conditional state; it
// knows nothing of actors, ranks, tiers or schedules. Trainers can bring their own.
//
// A program is a short list of segments joined by exchanges. A segment is local work on this rank's slice, forward and
// backward; an exchange is a named movement of data between ranks, each with its transpose for the backward pass. The
// program names the exchange, the runtime performs it. With one rank every exchange is the identity.
//
// Capture, scoring, replay and decoding call the same segments on a `layer_pass`; they differ only in where the
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
/// | merge_partials  | partial (O, LSE) to the query's owner, LSE merge           | (dO, LSE, delta) to all ranks        |
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

struct segment {
  std::string_view name;
  exchange after = exchange::none;
  /// Needed when only the layer's conditional state is wanted (the last layer in capture).
  bool for_state = true;
};

/// What a layer keeps of earlier tokens.
struct state_spec {
  index page_floats_per_token = 0;  ///< grows with tokens, kept in pages (keys and values)
  index recurrent_floats = 0;       ///< fixed size (recurrent matrix and convolution tail)
};

/// One page as a program sees it: room for `capacity` tokens of page_floats_per_token floats each, in the program's own
/// layout, of which the first `tokens` are valid once the current pass has written its own. Token i of the page has
/// position `position + i`.
struct state_page {
  float* data = nullptr;
  index capacity = 0;
  index tokens = 0;
  index position = 0;
};

/// One run of consecutive tokens through one layer. The same object is handed to every segment, forward and then, if
/// `keep`, backward in reverse order.
struct layer_pass {
  token_range positions;  ///< of the pass's tokens in the whole sequence
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

  /// Workspace [activation_floats(tokens)]. What backward needs stays in it between the calls.
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
  virtual state_spec state() const = 0;
  /// Floats of layer_pass::activations for a pass of that many tokens; grows with `tokens`.
  virtual index activation_floats(index tokens) const = 0;

  /// Runs segment number `s` of segments().
  virtual void forward(std::size_t s, layer_pass& pass) const = 0;
  /// Runs its backward: parameter gradients are added to (+=), pass.d_hidden is the gradient of the segment's input
  /// afterwards.
  virtual void backward(std::size_t s, layer_pass& pass) const = 0;
};

}  // namespace longstraw::models
