#include <longstraw/actors/rank.hpp>
#include <longstraw/actors/suffix_head.hpp>

#include <algorithm>
#include <cmath>

namespace longstraw::actors {

using namespace messages;

rank::rank(caf::actor_config& config, environment e, std::string name, rank_parts parts,
           std::vector<layer_actor> layers)
    : actor_base(config, std::move(e), std::move(name)),
      parts_(std::move(parts)),
      layers_(std::move(layers)) {}

rank::behavior_type rank::make_behavior() {
  return {
      on(&rank::run),                 // -> phase_done | fault, later
      on(&rank::rewind),              // -> job_rewound
      on(&rank::release),             // -> job_released
      on(&rank::entry_finished),      // from a layer
      on(&rank::entry_broke),         // from a layer
      on(&rank::operation_finished),  // from the lane
      on(&rank::operation_broke),     // from the lane
      on(&rank::take_exchanged),      // from the collective
      on(&rank::exchange_failed),     // from the collective
  };
}

void rank::on_exit() {
  parts_.let_go_of_actors();
  layers_.clear();
  let_go(supervisor_);
  job_.reset();
  pass_.reset();
  heads_.clear();
  space_.reset();
}

void rank::run(const run_phase& m) {
  supervisor_ = m.reply_to;
  phase_ = m.which;
  attempt_ = m.attempt;
  if (job_ != m.what) {
    try {
      start_job(m.what);
    } catch (const error& e) {
      space_.reset();
      return report(e.code(), e.what());
    }
  }
  range_ = job_->plan.of(phase_);
  next_ = oldest_ = range_.begin;
  if (parts_.at.rank == 0) job_->entries_done = range_.begin;  // a phase may run once more
  if (!lane_ready_) begin_lane(range_.begin);
  pump();
}

void rank::begin_lane(index first_entry) {
  const auto current = [this, number = job_->number, attempt = attempt_] {
    return job_ && number == job_->number && attempt == attempt_;
  };
  ask(parts_.lane, env.limits.operation, begin_lane_job{{}, job_->number, first_entry})
      .then(on_answer<lane_ready>([this, current](const lane_ready&) {
              if (!current()) return;  // an answer to an attempt that was rewound meanwhile
              lane_ready_ = true;
              pump();
            }),
            [this, current](const caf::error& e) {
              if (!current()) return;
              const error cause = from_caf(this->system(), e);
              report(cause.code(), cause.what());
            });
}

void rank::start_job(const job_ptr& of) {
  job_ = of;
  lane_ready_ = false;
  finished_.clear();
  const workspace_sizes need = workspace_of(*of, parts_.at);
  if (space_ && space_sizes_.covers(need)) return;
  space_.reset();
  space_ = std::make_shared<workspace>();
  const auto hidden = parts_.arena(arena_name::hidden_states);
  space_->hidden = hidden->allocate_floats(need.hidden);
  space_->d_hidden = hidden->allocate_floats(need.d_hidden);
  space_->angles = hidden->allocate_floats(need.angles);
  space_->inputs = hidden->allocate_floats(need.inputs);
  space_->activations = parts_.arena(arena_name::activations)->allocate_floats(need.activations);
  space_->head = parts_.arena(arena_name::head)->allocate_floats(need.head);
  space_->logits = parts_.arena(arena_name::head)->allocate_floats(need.logits);
  space_sizes_ = need;
}

void rank::pump() {
  if (!lane_ready_) return;
  while (next_ < range_.end && next_ - oldest_ < window) issue(next_++);
  if (oldest_ < range_.end) return;
  if (range_.end != -1) tell(supervisor_, phase_done{{}, parts_.at.rank, job_->number, phase_});
  range_ = {-1, -1};
  next_ = oldest_ = -1;
}

void rank::issue(index number) {
  const schedule_entry& e = job_->plan.entries[static_cast<std::size_t>(number)];
  switch (e.what) {
    case verb::embed:
      return embed(number, e);
    case verb::score_head:
    case verb::loss_head:
      return head(number);
    case verb::embed_backward:
      return embed_backward(number);
    case verb::sample:
      return sample(number);
    case verb::capture_layer:
    case verb::score_layer:
    case verb::forward_layer:
    case verb::rebuild_layer:
    case verb::decode_layer:
    case verb::backward_layer:
      tell(layers_[static_cast<std::size_t>(e.layer)],
           run_entry{{}, attempt_, number, e, pass_, self_as<entry_listener>()});
  }
}

void rank::submit(index number, index part, bool last, body run) {
  const schedule_entry& e = job_->plan.entries[static_cast<std::size_t>(number)];
  auto op = std::make_shared<operation>();
  op->name = op->detail = to_string(e.what).data();
  op->entry = e;
  op->run = std::move(run);
  tell(parts_.lane, submit_operation{{},
                                     job_->number,
                                     number,
                                     part,
                                     last,
                                     !last,
                                     std::move(op),
                                     job_,
                                     self_as<operation_listener>()});
}

// Every pass starts with its embedding; the entries that follow, up to the next one, belong to it.
void rank::begin_pass(const schedule_entry& e) {
  auto p = std::make_shared<token_pass>();
  const models::language_model& model = *job_->model;
  const index width = model.config().hidden_size;
  p->of = job_;
  p->space = space_;
  p->at = parts_.at;
  p->whole = e.tokens;
  p->positions = parts_.at.slice(e.tokens);
  p->response = e.response;
  const index tokens = p->positions.count();
  const auto& prompt = job_->data->prompt;
  if (e.chunk >= 0) {
    p->ids.assign(prompt.begin() + p->positions.begin, prompt.begin() + p->positions.end);
  } else if (e.in != phase::decode) {
    const auto& response = job_->data->responses[static_cast<std::size_t>(e.response)].tokens;
    for (index position = p->positions.begin; position < p->positions.end; ++position) {
      const index t =
          position - e.tokens.begin;  // the suffix is the prompt's last token, then the response
      p->ids.push_back(t == 0 ? prompt.back() : response[static_cast<std::size_t>(t - 1)]);
    }
  }
  p->hidden = {space_->hidden.floats().data(), tokens, width};
  p->angles = {space_->angles.floats().data(), tokens, model.config().rotary.width};
  p->activations = space_->activations.floats();
  if (e.in == phase::replay || e.in == phase::sweep) {
    p->d_hidden = {space_->d_hidden.floats().data(), tokens, width};
    std::size_t used = 0;
    for (index l = 0; l < model.layer_count(); ++l) {
      if (job_->checkpoint == checkpointing::layer) {
        p->kept_inputs.push_back({space_->inputs.floats().data() + used, tokens, width});
        used += static_cast<std::size_t>(tokens * width);
        continue;
      }
      const auto floats =
          static_cast<std::size_t>(model.layer(l).activation_floats(e.tokens.count(), parts_.at));
      p->kept_activations.push_back(space_->activations.floats().subspan(used, floats));
      used += floats;
    }
  }
  pass_ = std::move(p);
}

void rank::embed(index number, const schedule_entry& e) {
  begin_pass(e);
  submit(number, 0, true, [p = pass_](kernels::executor& on) {
    if (p->skipped()) return;
    if (p->response >= 0 && p->ids.empty() && p->positions.count() > 0) {
      // Decoding: the prompt's last token, then what was sampled.
      const auto& chosen = p->of->results[static_cast<std::size_t>(p->response)].tokens;
      p->ids = {chosen.empty() ? p->of->data->prompt.back() : chosen.back()};
    }
    // Nothing follows the captured chunk: no gradient enters its last hidden states.
    if (p->response < 0 && p->d_hidden.data)
      std::fill_n(p->d_hidden.data, p->d_hidden.rows * p->d_hidden.cols, 0.0f);
    if (p->positions.count() > 0)
      p->of->model->embed(p->hidden, p->angles, p->ids, p->positions, on);
  });
}

namespace {
void finish_head(token_pass& p, verb what, kernels::executor& on) {
  note_scores(p, what == verb::score_head);
  if (what == verb::loss_head) backward_from_loss(p, on);
}
}  // namespace

// On several ranks in two parts: in between the ranks tell each other their slices' log-probabilities (RK-4).
void rank::head(index number) {
  const verb what = job_->plan.entries[static_cast<std::size_t>(number)].what;
  if (parts_.at.alone())
    return submit(number, 0, true, [p = pass_, what](kernels::executor& on) {
      score_slice(*p, on);
      finish_head(*p, what, on);
    });
  const auto shared = std::make_shared<shared_head>(shared_head{pass_, nullptr});
  heads_[number] = shared;
  submit(number, 0, false, [shared, staging = parts_.staging](kernels::executor& on) {
    token_pass& p = *shared->pass;
    score_slice(p, on);
    shared->given = staging->take(score_floats(p.positions.count()));
    give_scores(p, shared->given->floats());
  });
}

void rank::embed_backward(index number) {
  submit(number, 0, true, [p = pass_](kernels::executor& on) {
    if (p->positions.count() > 0)
      p->of->model->embed_backward(p->d_hidden, p->ids,
                                   (*p->of->gradients)[static_cast<std::size_t>(p->at.rank)], on);
    if (p->at.rank == 0 && p->response >= 0)
      p->of->results[static_cast<std::size_t>(p->response)].replayed = true;
  });
}

void rank::sample(index number) {
  submit(number, 0, true, [p = pass_](kernels::executor& on) {
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
  if (e.what == verb::embed_backward && e.in == phase::replay)
    tell(supervisor_, response_replayed{{}, parts_.at.rank, job_->number, e.response});  // RK-2
  if (parts_.at.rank == 0) job_->entries_done.fetch_add(1, std::memory_order_relaxed);
  finished_.insert(number);
  while (finished_.erase(oldest_) > 0) ++oldest_;
  pump();
}

// Between rewind_job and its answer lane and layers may still finish what belongs to the attempt that is void.
bool rank::runs(index job_number) const { return job_ && job_number == job_->number && next_ >= 0; }

void rank::entry_finished(const entry_done& m) {
  if (runs(m.job_number)) finish_entry(m.number);
}

void rank::operation_finished(const operation_done& m) {
  if (!runs(m.job_number)) return;
  if (m.last) return finish_entry(m.entry);
  shared_head& h = *heads_.at(m.entry);
  const auto floats =
      h.given->floats().first(static_cast<std::size_t>(score_floats(h.pass->positions.count())));
  given_data given{std::exchange(h.given, nullptr), std::as_bytes(floats)};
  tell(parts_.collective, contribute{{},
                                     {job_->number, attempt_, m.entry, m.part},
                                     parts_.at.rank,
                                     "gather_scores",
                                     "forward",
                                     -1,
                                     std::move(given),
                                     self_as<exchange_listener>()});
}

void rank::take_exchanged(const exchanged& m) {
  if (!job_ || m.key.job_number != job_->number || m.key.attempt != attempt_) return;
  const auto it = heads_.find(m.key.entry);
  const verb what = job_->plan.entries[static_cast<std::size_t>(m.key.entry)].what;
  submit(m.key.entry, m.key.part + 1, true,
         [p = it->second->pass, taken = m.given, what](kernels::executor& on) mutable {
           std::vector<std::span<const float>> given;
           for (const given_data& g : *taken) given.push_back(g.as<float>());
           take_scores(*p, given);
           taken.reset();  // the givers may use their memory again
           finish_head(*p, what, on);
         });
  heads_.erase(it);
}

void rank::exchange_failed(const exchange_missed& m) {
  if (job_ && m.key.job_number == job_->number && m.key.attempt == attempt_)
    report(errc::rank_late, m.sentence);
}

void rank::entry_broke(const entry_failed& m) {
  if (job_ && m.job_number == job_->number) report(m.code, m.sentence);
}

void rank::operation_broke(const operation_failed& m) {
  if (job_ && m.job_number == job_->number) report(m.code, m.sentence);
}

void rank::report(errc code, const std::string& sentence) {
  if (job_) tell(supervisor_, fault{{}, job_->number, attempt_, code, sentence});
}

void rank::forget_entries() {
  pass_.reset();
  heads_.clear();
  range_ = {-1, -1};
  next_ = oldest_ = -1;
  finished_.clear();
  lane_ready_ = false;
}

/// First the lane, which then runs nothing of before; then all layers; then the lane again, since what a layer submitted
/// between the two waits in the lane's mailbox and holds the job's memory. Answered when all have answered.
template <class Answer, class Question>
caf::result<Answer> rank::ask_layers(Question question, Answer answer) {
  struct pending_answer {
    caf::typed_response_promise<Answer> promise;
    std::size_t left;
    caf::error first_failure;
  };
  auto pending = std::make_shared<pending_answer>(
      pending_answer{this->template make_response_promise<Answer>(), layers_.size(), {}});
  const auto fail_all = [pending](const caf::error& e) { pending->promise.deliver(e); };
  const auto count = [this, pending, answer, fail_all] {
    if (pending->left > 0 && --pending->left > 0) return;
    if (failed(pending->first_failure)) return fail_all(pending->first_failure);
    ask(parts_.lane, env.limits.operation, begin_lane_job{})
        .then(on_answer<lane_ready>([this, pending, answer](const lane_ready&) {
                pending->promise.deliver(stamped(answer));
              }),
              fail_all);
  };
  ask(parts_.lane, env.limits.operation, begin_lane_job{})
      .then(on_answer<lane_ready>([this, pending, count, question](const lane_ready&) {
              if (layers_.empty()) return count();
              for (const layer_actor& l : layers_)
                ask(l, env.limits.page, question)
                    .then(on_answer<Answer>([count](const Answer&) { count(); }),
                          [pending, count](const caf::error& e) {
                            if (!failed(pending->first_failure)) pending->first_failure = e;
                            count();
                          });
            }),
            fail_all);
  return pending->promise;
}

caf::result<job_rewound> rank::rewind(const rewind_job& m) {
  const job_rewound answer{{}, parts_.at.rank, m.job_number, m.attempt};
  if (!job_ || job_->number != m.job_number) return stamped(answer);
  forget_entries();
  attempt_ = m.attempt;
  return ask_layers(rewind_job{{}, m.job_number, m.attempt}, answer);
}

caf::result<job_released> rank::release(const release_job& m) {
  parts_.staging->clear();  // the next job has exchanges of other sizes
  forget_entries();
  job_.reset();
  return ask_layers(release_job{{}, m.job_number}, job_released{{}, m.job_number});
}

}  // namespace longstraw::actors
