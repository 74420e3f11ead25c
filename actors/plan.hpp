#pragma once
// What a job will need, by name, computed from its schedule before anything runs: running out of
// memory is an answer, not a crash.

#include <longstraw/memory/arena.hpp>
#include <longstraw/messages/job.hpp>

#include <map>
#include <string>

namespace longstraw::actors {

/// Sizes of a job's workspace on one rank, in floats unless said otherwise.
struct workspace_sizes {
  index pass_tokens = 0;      ///< longest pass, all ranks together
  index gradient_tokens = 0;  ///< longest pass with gradient
  index hidden = 0;
  index d_hidden = 0;
  index inputs = 0;
  index angles = 0;
  index activations = 0;
  index head = 0;
  index logits = 0;
  bool operator==(const workspace_sizes&) const = default;
  bool covers(const workspace_sizes& other) const;
};
workspace_sizes workspace_of(const messages::job& j, const models::rank_share& at);
/// The same if only that gradient were computed.
workspace_sizes workspace_of(const messages::job& j, const models::rank_share& at,
                             messages::gradient_mode mode);

/// Names of the arenas, as the peak report shows them.
namespace arena_name {
inline constexpr const char* parameters = "parameters";
inline constexpr const char* gradients = "gradients";
inline constexpr const char* moments = "moments";
inline constexpr const char* conditional_state = "conditional state";
inline constexpr const char* snapshots = "state snapshots";  ///< recurrent state at chunk borders
inline constexpr const char* state_gradients =
    "gradient pages";                              ///< gradient of pages and recurrent state
inline constexpr const char* staging = "staging";  ///< on its way between ranks
inline constexpr const char* hidden_states = "hidden states";
inline constexpr const char* activations = "activations";
inline constexpr const char* head = "head";
inline constexpr const char* scratch = "scratch";
inline constexpr const char* program = "program";  ///< code, libraries and small data
}  // namespace arena_name

struct memory_plan {
  std::map<std::string, std::size_t>
      bytes;  ///< by arena name; what the job adds to what is allocated already
  std::size_t total() const;
};
memory_plan plan_of(const messages::job& j);
/// The same if only that gradient were computed.
memory_plan plan_of(const messages::job& j, messages::gradient_mode mode);

/// Throws errc::over_budget if the job does not fit beside what `budget` holds now. The sentence
/// names what is needed, what is there, the largest parts, and what would fit: fewer tokens a
/// chunk, or a shorter prompt.
void check_budget(const messages::job& j, const memory::budget& budget);

}  // namespace longstraw::actors
