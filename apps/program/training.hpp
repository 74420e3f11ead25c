#pragma once
// The hyperparameters of a GRPO step as options of `step` and `train`, with TRL's names.

#include "options.hpp"

#include <longstraw/actors/runtime.hpp>
#include <longstraw/models/checkpoint.hpp>

#include <nlohmann/json_fwd.hpp>

namespace longstraw::program {

struct training_settings {
  models::loss_settings loss;
  messages::optimizer_settings optimizer;
  models::reward_scale scale = models::reward_scale::group;
  messages::gradient_mode gradient = messages::gradient_mode::frozen;
  messages::checkpointing checkpoint = messages::checkpointing::none;

  /// What the runtime is asked for.
  actors::step_settings step(index optimizer_step, bool separate_score = false) const;
};

class training_options {
 public:
  void declare(options& o);
  /// A flag that was given wins over the --case file, that over the defaults. errc::bad_input.
  training_settings settings() const;

  std::filesystem::path reference;

 private:
  std::filesystem::path case_file_;
  std::string case_loss_ = "grpo";
  std::string gradient_ = "frozen", checkpoint_ = "none";
  std::optional<std::string> loss_, level_, scale_;
  std::optional<double> epsilon_low_, epsilon_high_, delta_, beta_, temperature_;
  std::optional<index> max_completion_length_;
  std::optional<double> learning_rate_, beta1_, beta2_, eps_, weight_decay_, max_grad_norm_;
  bool no_decay_1d_ = false;
};

/// For reports, and to compare a run with the one it continues.
nlohmann::ordered_json as_json(const training_settings& s);

/// errc::bad_input if the KL term needs reference log-probabilities that neither the data nor
/// --reference gives.
void check_reference(const models::group& g, const training_settings& s);

/// errc::bad_input if the reference knows fewer ids than the policy, whose data could then hold one
/// that it cannot score.
void check_vocabularies(const models::checkpoint& reference, const models::checkpoint& policy);

/// Reference log-probabilities of all responses of `g`, from a model with its own capture.
void score_reference(models::group& g, actors::runtime& reference, double temperature);

}  // namespace longstraw::program
