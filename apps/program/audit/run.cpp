#include "run.hpp"

#include "compare.hpp"

#include <algorithm>
#include <thread>

namespace longstraw::audit {

actors::step_settings audit_step(messages::gradient_mode gradient, index optimizer_step) {
  actors::step_settings s;
  s.gradient = gradient;
  s.optimizer_step = optimizer_step;
  s.loss.epsilon_high = 0.28;
  s.loss.beta = 0.04;
  s.optimizer.adamw = {1e-3, 0.9, 0.95, 1e-6, 0.1};
  s.optimizer.max_grad_norm = 0.5;  // below the norm of every group here: the scale takes part
  return s;
}

trainer::trainer(const subject& s, const setup& how)
    : budget_(memory::budget::make(how.memory)),
      parameters_(std::make_shared<models::parameter_store>(s.layout, models::parameter_use::train,
                                                            *budget_)) {
  std::copy(s.weights.begin(), s.weights.end(), parameters_->weights().begin());
  model_ = std::make_shared<models::language_model>(s.config, parameters_);
  actors::runtime_options o;
  o.ranks = how.ranks;
  const auto cores = static_cast<index>(std::thread::hardware_concurrency());
  o.threads = static_cast<int>(how.threads.value_or(std::max<index>(cores / how.ranks, 1)));
  o.chunk_tokens = how.chunk_tokens;
  o.page_tokens = how.page_tokens;
  if (how.go_on) o.on_progress = [go_on = how.go_on](const messages::job&) { return go_on(); };
  runtime_ = std::make_unique<actors::runtime>(std::move(o), model_, budget_);
}

actors::step_outcome trainer::step(const models::group& g, const actors::step_settings& s) {
  actors::step_outcome outcome = runtime_->step(g, s);
  if (!outcome.committed) fail(errc::internal, "the step on {} was not committed", g.name);
  return outcome;
}

void check_scores(const step_record& r) {
  const auto& responses = r.outcome.responses;
  check_count(responses.size(), r.response_tokens.size(), "responses");
  for (std::size_t i = 0; i < responses.size(); ++i) {
    check_count(responses[i].logps.size(), r.response_tokens[i],
                fmt::format("logps of response {}", i));
    check_count(responses[i].entropies.size(), r.response_tokens[i],
                fmt::format("entropies of response {}", i));
  }
}

step_record first_step(const subject& s, const models::group& g, const setup& how,
                       const actors::step_settings& settings) {
  trainer t(s, how);
  step_record r;
  r.outcome = t.step(g, settings);
  for (const models::response& one : g.responses) r.response_tokens.push_back(one.tokens.size());
  r.gradients.assign(t.parameters().gradients().begin(), t.parameters().gradients().end());
  r.weights.assign(t.parameters().weights().begin(), t.parameters().weights().end());
  return r;
}

}  // namespace longstraw::audit
