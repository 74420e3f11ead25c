#pragma once
// What a job works on. The supervisor gets it from the program and every actor sees the same
// object. Its description is never changed while it runs; results are written by the lane only and
// read by others after the message that says they are complete (phase_done, vote, job_done).

#include <longstraw/kernels/adamw.hpp>
#include <longstraw/messages/schedule.hpp>
#include <longstraw/models/grpo.hpp>
#include <longstraw/models/language_model.hpp>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace longstraw::messages {

/// What is known of one response (or generated sample) after its entries have run.
struct response_result {
  std::vector<float> logps, entropies;  ///< [tokens]
  std::vector<float> old_logps;         ///< [tokens]: given, or scored
  models::response_loss loss;
  bool scored = false;
  bool replayed = false;

  // Generation.
  std::vector<token_id> tokens;  ///< chosen so far
  bool finished = false;         ///< an end-of-sequence token was chosen; what follows is skipped
  std::mt19937_64 random;
};

/// Which part of the gradient a step computes.
enum class gradient_mode : std::uint8_t {
  frozen,  ///< through the suffixes; the prompt's conditional state is a constant
  full,    ///< through the prompt as well: a reverse sweep over its chunks follows the replays
};
std::string_view to_string(gradient_mode m);
/// How the optimizer ends a step.
struct optimizer_settings {
  kernels::adamw_settings adamw;
  double max_grad_norm =
      1.0;  ///< gradients are scaled by min(1, max_grad_norm / (norm + 1e-6)); 0: never
  bool no_decay_one_dimensional = false;  ///< norms and biases are not decayed
};

/// Seconds of wall time by phase.
struct phase_seconds {
  double capture = 0, score = 0, replay = 0, sweep = 0, decode = 0, commit = 0;
};

/// Most ranks of a job.
inline constexpr index ranks_max = 16;

struct commit_result {
  double grad_norm = 0;
  double clip_scale = 1;
  /// Set by the supervisor when all ranks have voted yes: from here on the step is carried through.
  std::atomic<bool> decided{false};
  /// By rank: how far the update of its shard has come; written by the operation that makes it.
  enum class update : std::uint8_t { none, begun, done };
  std::array<std::atomic<update>, ranks_max> updates{};
};

/// By rank: where its sum of parameter gradients lies, in the layout of the parameter store. Rank 0's is the store's
/// own; prepare leaves the sum over ranks there. Keeps the memory: a lane may still write when all other actors have ended.
using rank_gradients = std::shared_ptr<const std::vector<std::span<float>>>;

struct job {
  // Description.
  index number = 0;  ///< of the job in this runtime, from 1; its pages and operations carry it
  std::string name;  ///< "step", "score", "generate": for logs and the timeline
  std::shared_ptr<const models::language_model> model;
  std::shared_ptr<const models::group> data;
  schedule plan;
  index ranks = 1;
  /// How many commits the parameters have seen: captured state belongs to one version.
  index policy_version = 0;
  std::vector<token_range> chunks;  ///< of the captured prompt
  models::loss_settings loss;
  models::group_counts counts;
  index page_tokens = 256;
  std::string arena_prefix;  ///< in front of the names of the arenas that the job draws on
  bool commits = false;      ///< ends in a transaction
  gradient_mode gradient = gradient_mode::frozen;
  checkpointing checkpoint = checkpointing::none;
  rank_gradients gradients;
  optimizer_settings optimizer;
  index optimizer_step = 1;  ///< for bias correction, from 1
  kernels::sampling_settings sampling;
  bool stop_at_end_of_sequence = true;
  /// Responses whose contribution must be in the ledger before the supervisor asks for votes.
  std::vector<index> replayed_responses;
  /// Responses without given old log-probabilities are scored before the replays; else a replay takes its own.
  bool scores_first = false;

  // Results.
  std::vector<response_result> results;
  commit_result commit;

  // Progress, for the watchdog and progress bars.
  std::atomic<index> operations_done{0};
  std::atomic<index> entries_done{0};
  std::array<std::atomic<const char*>, ranks_max>
      running{};  ///< by rank: the operation in its lane, if any
  /// "attend", or on several ranks "rank 0: attend, rank 3: recur"; "nothing".
  std::string running_now() const;
};
using job_ptr = std::shared_ptr<job>;

/// Buffers of one rank that every pass of a job uses in turn. Only lane operations touch their
/// contents, in schedule order, so the next pass may be issued while the lane still works on this
/// one.
struct workspace {
  memory::buffer hidden;    ///< [max tokens, hidden]
  memory::buffer d_hidden;  ///< [max tokens with gradient, hidden]
  memory::buffer angles;    ///< [max tokens, rotary width]
  /// Without gradient, or with checkpointing: one layer's; else all layers', one after another.
  memory::buffer activations;
  memory::buffer inputs;  ///< [layers, max tokens with gradient, hidden] with checkpointing
  memory::buffer head;    ///< head workspace, then d_logps
  memory::buffer logits;  ///< [vocabulary], for sampling
};

/// One run of consecutive tokens through all layers on one rank: a prompt chunk, a suffix, or a
/// decoded token. The rank has a slice of them, perhaps an empty one.
struct token_pass {
  job_ptr of;
  std::shared_ptr<workspace> space;
  models::rank_share at;
  token_range whole;      ///< of all ranks
  token_range positions;  ///< of this rank's slice
  index response = -1;
  std::vector<token_id>
      ids;  ///< empty while decoding: then the token chosen last, known when the embedding runs
  mat hidden, d_hidden, angles;
  std::span<float> activations;                    ///< shared by all layers
  std::vector<std::span<float>> kept_activations;  ///< with gradient: one a layer
  std::vector<mat> kept_inputs;                    ///< instead, with checkpointing: one a layer
  std::vector<float> logps, entropies;             ///< of the whole suffix

  /// A finished sample's remaining operations do nothing.
  bool skipped() const {
    return !of->results.empty() && response >= 0 &&
           of->results[static_cast<std::size_t>(response)].finished;
  }
};
using token_pass_ptr = std::shared_ptr<token_pass>;

}  // namespace longstraw::messages
