#pragma once
// One step of the product on a model in memory, with everything that a claim looks at afterwards.

#include "subject.hpp"

#include <longstraw/actors/runtime.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace longstraw::audit {

/// Where and how steps run.
struct setup {
  messages::gradient_mode gradient = messages::gradient_mode::frozen;
  index ranks = 1;
  std::optional<index> threads;  ///< of each rank; cores / ranks otherwise
  index chunk_tokens = 64;
  index page_tokens = 16;
  std::size_t memory = 0;       ///< budget in bytes; 0: none
  std::function<bool()> go_on;  ///< false: the audit was stopped
};

/// Hyperparameters of every step: all terms of the loss and of the update take part.
actors::step_settings audit_step(messages::gradient_mode gradient, index optimizer_step = 1);

/// A model with its weights, gradients and moments, and the runtime that trains it.
class trainer {
 public:
  trainer(const subject& s, const setup& how);
  actors::step_outcome step(const models::group& g, const actors::step_settings& s);
  /// What that step would draw from the budget.
  actors::memory_plan plan(const models::group& g, const actors::step_settings& s) const {
    return runtime_->step_plan(g, s);
  }

  const models::parameter_store& parameters() const { return *parameters_; }
  const memory::budget& budget() const { return *budget_; }

 private:
  std::shared_ptr<memory::budget> budget_;
  std::shared_ptr<models::parameter_store> parameters_;
  std::shared_ptr<const models::language_model> model_;
  std::unique_ptr<actors::runtime> runtime_;
};

/// What a first step leaves behind.
struct step_record {
  actors::step_outcome outcome;
  std::vector<std::size_t> response_tokens;  ///< of the group that the step was on
  std::vector<float> gradients, weights;
};
/// Every response has a log-probability and an entropy for each of its tokens; errc::internal names
/// the first that has not.
void check_scores(const step_record& r);
step_record first_step(const subject& s, const models::group& g, const setup& how,
                       const actors::step_settings& settings);

}  // namespace longstraw::audit
