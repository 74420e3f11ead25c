#include "training.hpp"

#include <longstraw/models/case.hpp>

#include <nlohmann/json.hpp>

namespace longstraw::program {

void training_options::declare(options& o) {
  o.section("Loss");
  o.choice(
      "--gradient", gradient_, {"frozen", "full"},
      "frozen: the prompt's captured state is a constant; full: gradient through the prompt too");
  o.choice("--checkpoint", checkpoint_, {"none", "layer"},
           "layer: keep only the input of each layer for its backward and run the layer once more, "
           "for less memory");
  o.choice("--loss", loss_, {"grpo", "bnpo", "dr_grpo", "dapo", "cispo"}, "grpo",
           "loss type, as in TRL");
  o.choice("--importance-sampling", level_, {"token", "sequence"}, "token",
           "level of the ratio; sequence is GSPO");
  o.number("--epsilon-low", epsilon_low_, not_negative, "0.2", "ratio is clipped below 1 - this");
  o.number("--epsilon-high", epsilon_high_, not_negative, "as --epsilon-low",
           "ratio is clipped above 1 + this; for cispo the bound of the ratio itself");
  o.number("--delta", delta_, positive, "none",
           "bound of the ratio where the advantage is negative (two-sided clip)");
  o.number("--beta", beta_, not_negative, "0", "weight of the KL term against the reference");
  o.number("--temperature", temperature_, positive, "1", "divides the logits");
  o.choice("--scale-rewards", scale_, {"group", "batch", "none"}, "group",
           "what rewards are divided by to become advantages");
  o.whole("--max-completion-length", max_completion_length_, 1, index{1} << 40, "longest response",
          "normalizer of dr_grpo");
  o.path("--reference", reference,
         "checkpoint that reference log-probabilities are scored with (needed if --beta is not 0 "
         "and the data has none)");
  o.section("Optimizer (AdamW)");
  constexpr limits rate{0.0, 1000.0};  // beyond it an update only destroys
  o.number("--learning-rate", learning_rate_, rate, "1e-6", "learning rate");
  o.number("--adam-beta1", beta1_, below_one, "0.9", "decay of the first moment");
  o.number("--adam-beta2", beta2_, below_one, "0.999", "decay of the second moment");
  o.number("--adam-eps", eps_, positive, "1e-8", "added to the root of the second moment");
  o.number("--weight-decay", weight_decay_, rate, "0", "decoupled weight decay");
  o.toggle("--no-decay-1d", no_decay_1d_, "do not decay norms and biases");
  o.number("--max-grad-norm", max_grad_norm_, not_negative, "1",
           "gradients are scaled to at most this norm; 0: never");
  o.section("Golden cases");
  o.path("--case", case_file_,
         "take all hyperparameters from this case.json; flags that are given win");
  o.text("--case-loss", case_loss_, "which of the case's losses");
}

namespace {

template <class T>
void override_with(T& into, const std::optional<T>& given) {
  if (given) into = *given;
}

/// A case without a batch of its own names the sibling folder whose hyperparameters apply.
models::case_settings read_case_following(const std::filesystem::path& file) {
  models::case_settings c = models::read_case(file);
  if (c.expected_from.empty()) return c;
  const auto folder = std::filesystem::absolute(file).parent_path().parent_path();
  c = models::read_case(folder / c.expected_from / file.filename());
  if (!c.expected_from.empty())
    fail(errc::bad_input, "{} refers to case {}, which refers to another one", file.string(),
         c.name);
  return c;
}

}  // namespace

training_settings training_options::settings() const {
  training_settings s;
  s.gradient =
      gradient_ == "full" ? messages::gradient_mode::full : messages::gradient_mode::frozen;
  s.checkpoint =
      checkpoint_ == "layer" ? messages::checkpointing::layer : messages::checkpointing::none;
  if (!case_file_.empty()) {
    const models::case_settings c = read_case_following(case_file_);
    s.loss = c.loss(case_loss_).settings;
    s.optimizer.adamw = c.optimizer;
    s.optimizer.max_grad_norm = c.max_grad_norm;
  }
  if (loss_) s.loss.type = models::parse_loss_type(*loss_, "--loss");
  if (level_) s.loss.level = models::parse_sampling_level(*level_, "--importance-sampling");
  if (scale_) s.scale = models::parse_reward_scale(*scale_, "--scale-rewards");
  override_with(s.loss.epsilon_low, epsilon_low_);
  if (case_file_.empty()) s.loss.epsilon_high = s.loss.epsilon_low;
  override_with(s.loss.epsilon_high, epsilon_high_);
  if (delta_) s.loss.delta = delta_;
  override_with(s.loss.beta, beta_);
  override_with(s.loss.temperature, temperature_);
  override_with(s.loss.max_completion_length, max_completion_length_);
  override_with(s.optimizer.adamw.learning_rate, learning_rate_);
  override_with(s.optimizer.adamw.beta1, beta1_);
  override_with(s.optimizer.adamw.beta2, beta2_);
  override_with(s.optimizer.adamw.eps, eps_);
  override_with(s.optimizer.adamw.weight_decay, weight_decay_);
  override_with(s.optimizer.max_grad_norm, max_grad_norm_);
  s.optimizer.no_decay_one_dimensional = no_decay_1d_;
  return s;
}

actors::step_settings training_settings::step(index optimizer_step, bool separate_score) const {
  actors::step_settings s;
  s.loss = loss;
  s.optimizer = optimizer;
  s.optimizer_step = optimizer_step;
  s.gradient = gradient;
  s.checkpoint = checkpoint;
  s.separate_score = separate_score;
  return s;
}

nlohmann::ordered_json as_json(const training_settings& s) {
  return {
      {"gradient", messages::to_string(s.gradient)},
      {"loss", models::to_string(s.loss.type)},
      {"importance_sampling", models::to_string(s.loss.level)},
      {"epsilon_low", s.loss.epsilon_low},
      {"epsilon_high", s.loss.epsilon_high},
      {"delta",
       s.loss.delta ? nlohmann::ordered_json(*s.loss.delta) : nlohmann::ordered_json(nullptr)},
      {"beta", s.loss.beta},
      {"temperature", s.loss.temperature},
      {"max_completion_length", s.loss.max_completion_length},
      {"scale_rewards", models::to_string(s.scale)},
      {"learning_rate", s.optimizer.adamw.learning_rate},
      {"adam_beta1", s.optimizer.adamw.beta1},
      {"adam_beta2", s.optimizer.adamw.beta2},
      {"adam_eps", s.optimizer.adamw.eps},
      {"weight_decay", s.optimizer.adamw.weight_decay},
      {"no_decay_1d", s.optimizer.no_decay_one_dimensional},
      {"max_grad_norm", s.optimizer.max_grad_norm},
  };
}

void check_reference(const models::group& g, const training_settings& s) {
  if (s.loss.beta == 0) return;
  for (const models::response& r : g.responses)
    if (r.loss_tokens > 0 && r.ref_logps.empty())
      fail(errc::bad_input,
           "{}: --beta is {}, which needs reference log-probabilities; give --reference DIR, or "
           "ref_logprobs in the data",
           g.name, s.loss.beta);
}

void check_vocabularies(const models::checkpoint& reference, const models::checkpoint& policy) {
  if (reference.config().vocabulary < policy.config().vocabulary)
    fail(errc::bad_input,
         "--reference {} has a vocabulary of {} ids; expected the {} of --model {}",
         reference.folder().string(), reference.config().vocabulary, policy.config().vocabulary,
         policy.folder().string());
}

void score_reference(models::group& g, actors::runtime& reference, double temperature) {
  auto scored = reference.score(g, temperature);
  for (std::size_t r = 0; r < g.responses.size(); ++r)
    g.responses[r].ref_logps = std::move(scored.responses[r].logps);
}

}  // namespace longstraw::program
