#pragma once
// A model that counts. All values are small whole numbers kept in floats, so every sum is exact in any order, and the
// gradient of a step is known to the last bit from a plain loop: a contribution that is lost, counted twice, or computed
// from another version's state changes it. The arithmetic means nothing else.
//
//   sum layer    v = w x, q = 1 + x mod 2     out_t = (x_t + q_t * sum of v_s over s <= t) mod 5        pages
//   scan layer   u = w x                      out_t = (x_t + sum of u_s over s <= t) mod 5              recurrent state
//
// Going back, gradients are reduced mod 5 where those of a token are complete. Above the last layer stands the segment
// "count", whose backward starts the gradient: 1 + (out + position + column) mod 3. The head sees constant hidden states.

#include <longstraw/actors/runtime.hpp>

#include <memory>
#include <string>
#include <vector>

namespace longstraw::testing {

inline constexpr index counting_width = 3;
inline constexpr index counting_vocabulary = 4;

/// What the layers of all ranks write down, and what a test makes them do. One thread.
struct layer_probe {
  index version = 0;  ///< of the parameters: every state must carry it
  index replayed =
      0;  ///< responses whose gradient the state's gradient must hold when the sweep starts
  index captures = 0;         ///< chunks captured, over layers and ranks
  std::int64_t segments = 0;  ///< run so far
  std::int64_t throw_at = -1, poison_at = -1;
  bool thrown = false, poisoned = false;
  std::string violation;  ///< the first

  void expect(bool held, const char* what) {
    if (!held && violation.empty()) violation = what;
  }
};

enum class counting_kind { sum, scan };

/// Weights are set by set_counting_weights.
std::shared_ptr<const models::language_model> make_counting_model(
    const std::vector<counting_kind>& kinds, memory::budget& budget,
    const std::shared_ptr<layer_probe>& probe);

/// Makes the weights such that sums are exact: layers and embedding rounded, head 0, norm 1.
void set_counting_weights(const models::parameter_store& store);

/// The gradient of a step by plain loops: no pages, chunks, ranks or actors. In the layout of the parameter store; exact
/// but for the head's.
std::vector<double> expected_gradient(const models::language_model& model,
                                      const std::vector<counting_kind>& kinds,
                                      const models::group& g, const actors::step_settings& s);

}  // namespace longstraw::testing
