#include <longstraw/actors/rank.hpp>
#include <longstraw/kernels/head.hpp>

#include <algorithm>
#include <cmath>

namespace longstraw::actors {

using namespace messages;

rank::rank(caf::actor_config& config, environment e, std::string name, rank_id number,
           lane_actor lane, std::vector<layer_actor> layers, std::shared_ptr<memory::budget> budget)
    : actor_base(config, std::move(e), std::move(name)),
      number_(number),
      lane_(std::move(lane)),
      layers_(std::move(layers)),
      budget_(std::move(budget)) {}

rank::behavior_type rank::make_behavior() {
  return {
      on(&rank::run),                 // -> phase_done | fault, later
      on(&rank::release),             // -> job_released
      on(&rank::entry_finished),      // from a layer
      on(&rank::entry_broke),         // from a layer
      on(&rank::operation_finished),  // from the lane
      on(&rank::operation_broke),     // from the lane
  };
}

void rank::on_exit() {
  let_go(lane_);
  layers_.clear();
  let_go(supervisor_);
  job_.reset();
  pass_.reset();
  space_.reset();
}

void rank::run(const run_phase& m) {
  supervisor_ = m.reply_to;
  phase_ = m.which;
  if (job_ != m.what) {
    try {
      start_job(m.what);
    } catch (const error& e) {
      space_.reset();
      return report(e.code(), e.what());
    }
    ask(lane_, env.limits.operation, begin_lane_job{{}, job_->number})
        .then(on_answer<lane_ready>([this](const lane_ready& ready) {
                if (!job_ || ready.job_number != job_->number) return;
                lane_ready_ = true;
                pump();
              }),
              [this](const caf::error& e) {
                const error cause = from_caf(this->system(), e);
                report(cause.code(), cause.what());
              });
  }
  range_ = job_->plan.of(phase_);
  next_ = oldest_ = range_.begin;
  pump();
}

void rank::start_job(const job_ptr& of) {
  job_ = of;
  lane_ready_ = false;
  finished_.clear();
  const workspace_sizes need = workspace_of(*of);
  if (space_ && space_sizes_.covers(need)) return;
  space_.reset();
  space_ = std::make_shared<workspace>();
  const auto hidden = budget_->named(of->arena_prefix + arena_name::hidden_states);
  space_->hidden = hidden->allocate_floats(need.hidden);
  space_->d_hidden = hidden->allocate_floats(need.d_hidden);
  space_->angles = hidden->allocate_floats(need.angles);
  space_->activations =
      budget_->named(of->arena_prefix + arena_name::activations)->allocate_floats(need.activations);
  space_->head = budget_->named(of->arena_prefix + arena_name::head)->allocate_floats(need.head);
  space_->logits =
      budget_->named(of->arena_prefix + arena_name::head)->allocate_floats(need.logits);
  space_sizes_ = need;
}

void rank::pump() {
  if (!lane_ready_) return;
  while (next_ < range_.end && next_ - oldest_ < window) issue(next_++);
  if (oldest_ < range_.end) return;
  if (range_.end != -1) tell(supervisor_, phase_done{{}, number_, job_->number, phase_});
  range_ = {-1, -1};
  next_ = oldest_ = -1;
}

void rank::issue(index number) {
  const schedule_entry& e = job_->plan.entries[static_cast<std::size_t>(number)];
  switch (e.what) {
    case verb::embed:
      return embed(number, e);
    case verb::score_head:
      return score_head(number, e);
    case verb::loss_head:
      return loss_head(number, e);
    case verb::embed_backward:
      return embed_backward(number, e);
    case verb::sample:
      return sample(number, e);
    case verb::capture_layer:
    case verb::score_layer:
    case verb::forward_layer:
    case verb::rebuild_layer:
    case verb::decode_layer:
    case verb::backward_layer:
      tell(layers_[static_cast<std::size_t>(e.layer)],
           run_entry{{}, number, e, pass_, self_as<entry_listener>()});
  }
}

void rank::submit(index number, const schedule_entry& e,
                  std::function<void(kernels::executor&)> run) {
  auto op = std::make_shared<operation>();
  op->name = op->detail = to_string(e.what).data();
  op->entry = e;
  op->run = std::move(run);
  tell(lane_,
       submit_operation{
           {}, job_->number, number, 0, true, std::move(op), job_, self_as<operation_listener>()});
}

// Every pass starts with its embedding; the entries that follow, up to the next one, belong to it.
void rank::begin_pass(const schedule_entry& e) {
  auto p = std::make_shared<token_pass>();
  const models::language_model& model = *job_->model;
  const index tokens = e.tokens.count();
  p->of = job_;
  p->space = space_;
  p->positions = e.tokens;
  p->response = e.response;
  const auto& prompt = job_->data->prompt;
  if (e.in == phase::capture) {
    p->ids.assign(prompt.begin() + e.tokens.begin, prompt.begin() + e.tokens.end);
  } else if (e.in != phase::decode) {
    const auto& response = job_->data->responses[static_cast<std::size_t>(e.response)].tokens;
    p->ids.push_back(prompt.back());
    p->ids.insert(p->ids.end(), response.begin(), response.end() - 1);
  }
  p->hidden = {space_->hidden.floats().data(), tokens, model.config().hidden_size};
  p->angles = {space_->angles.floats().data(), tokens, model.config().rotary.width};
  p->activations = space_->activations.floats();
  if (e.in == phase::replay) {
    p->d_hidden = {space_->d_hidden.floats().data(), tokens, model.config().hidden_size};
    std::size_t used = 0;
    for (index l = 0; l < model.layer_count(); ++l) {
      const auto floats = static_cast<std::size_t>(model.layer(l).activation_floats(tokens, {}));
      p->kept_activations.push_back(space_->activations.floats().subspan(used, floats));
      used += floats;
    }
  }
  pass_ = std::move(p);
}

void rank::embed(index number, const schedule_entry& e) {
  begin_pass(e);
  submit(number, e, [p = pass_](kernels::executor& on) {
    if (p->skipped()) return;
    if (p->ids.empty()) {  // decoding: the prompt's last token, then what was sampled
      const auto& chosen = p->of->results[static_cast<std::size_t>(p->response)].tokens;
      p->ids = {chosen.empty() ? p->of->data->prompt.back() : chosen.back()};
    }
    p->of->model->embed(p->hidden, p->angles, p->ids, p->positions, on);
  });
}

/// What every result rests on: a NaN that goes unnoticed would be printed, or become a loss.
void check_finite(std::span<const float> values, const char* what, const job& of, index response) {
  for (std::size_t t = 0; t < values.size(); ++t)
    if (!std::isfinite(values[t]))
      fail(errc::not_finite, "the {} of token {} of response {} of {} is {}; {}", what, t, response,
           of.data->name, values[t],
           of.commits ? "nothing was committed" : "weights or data make it so");
}

void run_head(token_pass& pass, bool with_loss, kernels::executor& on) {
  job& of = *pass.of;
  const auto r = static_cast<std::size_t>(pass.response);
  const models::response& response = of.data->responses[r];
  response_result& result = of.results[r];
  const auto tokens = static_cast<std::size_t>(pass.positions.count());
  result.logps.resize(tokens);
  result.entropies.resize(tokens);

  auto memory = pass.space->head.floats();
  models::head_pass head;
  head.hidden = pass.hidden;
  head.d_hidden = pass.d_hidden;
  head.targets = response.tokens;
  head.temperature = static_cast<float>(of.loss.temperature);
  head.logps = result.logps;
  head.entropies = result.entropies;
  head.workspace = memory.subspan(tokens);
  head.on = &on;
  of.model->head_forward(head);
  check_finite(result.logps, "log-probability", of, pass.response);
  check_finite(result.entropies, "entropy", of, pass.response);
  if (!with_loss) return;

  // Nothing was given and nothing scored: the parameters are those of the sampling policy, and
  // scoring would have computed these very bits.
  if (result.old_logps.empty()) result.old_logps = result.logps;
  const std::span<float> d_logps = memory.first(tokens);
  result.loss = models::evaluate_response(d_logps, result.logps, result.old_logps,
                                          response.ref_logps, result.entropies, response.advantage,
                                          response.loss_tokens, of.counts, of.loss);
  if (!std::isfinite(result.loss.loss))
    fail(errc::not_finite, "the loss of response {} of {} is {}; nothing was committed",
         pass.response, of.data->name, result.loss.loss);
  head.d_logps = d_logps;
  head.gradients = of.model->parameters()->gradients();
  of.model->head_backward(head);
}

void rank::score_head(index number, const schedule_entry& e) {
  submit(number, e, [p = pass_](kernels::executor& on) {
    run_head(*p, false, on);
    response_result& result = p->of->results[static_cast<std::size_t>(p->response)];
    if (result.old_logps.empty()) result.old_logps = result.logps;
    result.scored = true;
  });
}

void rank::loss_head(index number, const schedule_entry& e) {
  submit(number, e, [p = pass_](kernels::executor& on) { run_head(*p, true, on); });
}

void rank::embed_backward(index number, const schedule_entry& e) {
  submit(number, e, [p = pass_](kernels::executor& on) {
    p->of->model->embed_backward(p->d_hidden, p->ids, p->of->model->parameters()->gradients(), on);
    p->of->results[static_cast<std::size_t>(p->response)].replayed = true;
  });
}

void rank::sample(index number, const schedule_entry& e) {
  submit(number, e, [p = pass_](kernels::executor& on) {
    if (p->skipped()) return;
    job& of = *p->of;
    response_result& result = of.results[static_cast<std::size_t>(p->response)];
    const models::model_config& config = of.model->config();
    auto memory = p->space->logits.floats();
    const mat logits{memory.data(), 1, config.vocabulary};
    const auto vocabulary = static_cast<std::size_t>(config.vocabulary);
    of.model->last_logits(logits, p->hidden, memory.subspan(vocabulary), on);
    const float* const begin = logits.data;
    const float* const end = begin + vocabulary;
    const float* const bad = std::find_if(begin, end, [](float z) { return !std::isfinite(z); });
    if (bad != end)
      fail(errc::not_finite, "the logits of token {} of sample {} of {} hold {}; nothing is chosen",
           result.tokens.size(), p->response, of.data->name, *bad);
    const double uniform = static_cast<double>(result.random() >> 11) * 0x1p-53;
    std::vector<token_id> order;
    const token_id next =
        kernels::sample_token({logits.data, vocabulary}, of.sampling, uniform, order);
    result.tokens.push_back(next);
    const auto& ends = config.end_of_sequence;
    if (of.stop_at_end_of_sequence && std::ranges::find(ends, next) != ends.end())
      result.finished = true;
  });
}

void rank::finish_entry(index number) {
  const schedule_entry& e = job_->plan.entries[static_cast<std::size_t>(number)];
  if (e.what == verb::embed_backward)
    tell(supervisor_, response_replayed{{}, number_, job_->number, e.response});  // RK-2
  job_->entries_done.fetch_add(1, std::memory_order_relaxed);
  finished_.insert(number);
  while (finished_.erase(oldest_) > 0) ++oldest_;
  pump();
}

void rank::entry_finished(const entry_done& m) {
  if (job_ && m.job_number == job_->number) finish_entry(m.number);
}

void rank::operation_finished(const operation_done& m) {
  if (job_ && m.job_number == job_->number) finish_entry(m.entry);
}

void rank::entry_broke(const entry_failed& m) {
  if (job_ && m.job_number == job_->number) report(m.code, m.sentence);
}

void rank::operation_broke(const operation_failed& m) {
  if (job_ && m.job_number == job_->number) report(m.code, m.sentence);
}

void rank::report(errc code, const std::string& sentence) {
  if (job_) tell(supervisor_, fault{{}, job_->number, code, sentence});
}

caf::result<job_released> rank::release(const release_job& m) {
  job_.reset();
  pass_.reset();
  range_ = {-1, -1};
  next_ = oldest_ = -1;
  finished_.clear();
  lane_ready_ = false;

  // Answered once, when all layers have answered.
  struct pending_release {
    caf::typed_response_promise<job_released> promise;
    std::size_t left;
    caf::error first_failure;
  };
  auto pending = std::make_shared<pending_release>(
      pending_release{this->template make_response_promise<job_released>(), layers_.size(), {}});
  const auto count = [this, pending, n = m.job_number] {
    if (pending->left > 0 && --pending->left > 0) return;
    if (failed(pending->first_failure))
      pending->promise.deliver(pending->first_failure);
    else
      pending->promise.deliver(stamped(job_released{{}, n}));
  };
  ask(lane_, env.limits.operation, begin_lane_job{{}, 0})
      .then(on_answer<lane_ready>([this, pending, count, n = m.job_number](const lane_ready&) {
              if (layers_.empty()) return count();
              for (const layer_actor& l : layers_)
                ask(l, env.limits.page, release_job{{}, n})
                    .then(on_answer<job_released>([count](const job_released&) { count(); }),
                          [pending, count](const caf::error& e) {
                            if (!failed(pending->first_failure)) pending->first_failure = e;
                            count();
                          });
            }),
            [pending](const caf::error& e) { pending->promise.deliver(e); });
  return pending->promise;
}

}  // namespace longstraw::actors
