#include "matrix.hpp"

#include <algorithm>

namespace longstraw::audit {

std::string_view to_string(claim c) {
  switch (c) {
    case claim::execution_capacity:
      return "execution capacity";
    case claim::response_fidelity:
      return "response-operator fidelity";
    case claim::frozen_gradient:
      return "frozen-gradient parity";
    case claim::full_gradient:
      return "full-gradient parity";
    case claim::reference_gradient:
      return "reference gradient";
    case claim::optimizer_delta:
      return "optimizer-delta parity";
    case claim::distributed_consistency:
      return "distributed consistency";
    case claim::group_size_memory:
      return "group-size memory";
    case claim::restart_equivalence:
      return "restart equivalence";
    case claim::learning:
      break;
  }
  return "learning";
}

std::string_view meaning(claim c) {
  switch (c) {
    case claim::execution_capacity:
      return "A step on a longer prompt stays within the memory budget, and only the prompt's "
             "conditional state grows.";
    case claim::response_fidelity:
      return "Log-probabilities and entropies from the replayed suffixes are those of the whole "
             "sequence.";
    case claim::frozen_gradient:
      return "Every parameter's gradient with the prompt's state held constant is the reference's.";
    case claim::full_gradient:
      return "Every parameter's gradient, the path through the prompt included, is that of "
             "conventional full-sequence training.";
    case claim::reference_gradient:
      return "The reference gradient and the step's gradient are those of finite differences of "
             "the whole loss in double, on a short group.";
    case claim::optimizer_delta:
      return "What one AdamW step adds to the weights is what the reference gradient gives in "
             "double.";
    case claim::distributed_consistency:
      return "N ranks give the log-probabilities, gradients and gradient norm of one rank.";
    case claim::group_size_memory:
      return "The peak of the named memory does not depend on the number of responses.";
    case claim::restart_equivalence:
      return "Two steps in a row, and two steps with weights and moments written out and read in "
             "between, end in the same bits.";
    case claim::learning:
      break;
  }
  return "Training raises the reward.";
}

group::group(std::string subject_name, messages::gradient_mode mode, std::vector<index> rank_counts,
             const std::vector<claim>& claims)
    : subject(std::move(subject_name)), gradient(mode), ranks(std::move(rank_counts)) {
  for (const claim c : claims) rows.push_back({c, std::vector<cell>(ranks.size())});
}

bool group::has(claim c) const {
  return std::any_of(rows.begin(), rows.end(), [c](const row& r) { return r.of == c; });
}

cell& group::at(claim c, std::size_t column) {
  const auto at = std::find_if(rows.begin(), rows.end(), [c](const row& r) { return r.of == c; });
  LS_ASSERT(at != rows.end() && column < at->cells.size(), "the group has that cell");
  return at->cells[column];
}

void group::leave_out(const std::string& reason) {
  for (row& r : rows)
    for (cell& c : r.cells) c.leave_out(reason);
}

void group::fail(const std::string& sentence) {
  for (row& r : rows)
    for (cell& c : r.cells) c.fail(sentence);
}

tally matrix::count() const {
  tally t;
  for (const group& g : groups)
    for (const row& r : g.rows)
      for (const cell& c : r.cells) {
        t.proved += c.state() == verdict::proved;
        t.failed += c.state() == verdict::failed;
        t.not_run += c.state() == verdict::not_run;
      }
  return t;
}

}  // namespace longstraw::audit
