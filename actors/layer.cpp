#include <longstraw/actors/layer.hpp>
#include <longstraw/actors/page_views.hpp>
#include <longstraw/actors/plan.hpp>
#include <longstraw/models/workspace.hpp>

#include <algorithm>
#include <optional>

namespace longstraw::actors {

using namespace messages;
using models::direction;

// Holds all memory that its operations touch: the lane may still run them when this actor has ended.
struct layer::work {
  run_entry request;
  index attempt = 0;
  bool keeps = false;  // a backward entry follows that uses this one's pass and leases
  models::layer_pass pass;
  std::vector<models::state_page> pages, page_gradients;  // what the pass's spans show
  std::vector<std::shared_ptr<const std::vector<float*>>> page_memory;  // PP-4: until it has run
  std::vector<page_owner> to_lease;                                     // still to ask for
  std::vector<page_owner> leased;
  buffer_ptr recurrent;           // what pass.recurrent_before shows, but in the sweep
  buffer_ptr snapshots;           // in the sweep
  buffer_ptr d_recurrent;         // what pass.d_recurrent shows
  buffer_ptr copy_from;           // first token of a sample: its state starts as a copy of this
  std::shared_ptr<work> forward;  // of a backward entry: whose pass and leases it uses

  // The entry's parts: one segment each, in the order in which they run.
  direction way = direction::forward;
  std::vector<std::size_t> order;
  std::size_t next_part = 0;
  std::function<void(models::layer_pass&)> before, after;  // the first part, the last
  std::shared_ptr<memory::buffer> to_give;
  index given_floats = 0;
  std::shared_ptr<const std::vector<given_data>> taken;  // for the part that is next

  models::layer_pass& live() { return forward ? forward->pass : pass; }
  const job& of() const { return *request.pass->of; }
};

layer::layer(caf::actor_config& config, environment e, std::string name, index number,
             rank_parts parts)
    : actor_base(config, std::move(e), std::move(name)),
      number_(number),
      parts_(std::move(parts)) {}

layer::behavior_type layer::make_behavior() {
  return {
      on(&layer::run),                 // -> entry_done | entry_failed, later
      on(&layer::rewind),              // -> job_rewound
      on(&layer::release),             // -> job_released
      on(&layer::operation_finished),  // from the lane
      on(&layer::operation_broke),     // from the lane
      on(&layer::take_exchanged),      // from the collective
      on(&layer::exchange_failed),     // from the collective
  };
}

void layer::on_exit() {
  parts_.let_go_of_actors();
  let_go(rank_);
  in_flight_.clear();
  kept_.clear();
  samples_.clear();
  for (buffer_ptr* b : {&captured_, &snapshots_, &d_captured_, &d_suffix_}) b->reset();
}

layer::buffer_ptr layer::allocate(const char* arena, index floats) const {
  return std::make_shared<memory::buffer>(parts_.arena(arena)->allocate_floats(floats));
}

void layer::start_job(const run_entry& m) {
  const job& of = *m.pass->of;
  if (of.number == job_number_) return;
  LS_ASSERT(in_flight_.empty() && kept_.empty(),
            "a job must be released before the next one starts");
  job_number_ = of.number;
  attempt_ =
      m.attempt;  // not always the first: a rank may be so late that it begins with a later one
  prompt_tokens_ = static_cast<index>(of.data->prompt.size());
  rank_ = m.reply_to;
  failed_ = false;
  const index floats = of.model->layer(number_).state(parts_.at).recurrent_floats;
  captured_ = allocate(arena_name::conditional_state, floats);
  if (of.gradient == gradient_mode::frozen) return;
  snapshots_ = allocate(arena_name::snapshots, floats * static_cast<index>(of.chunks.size()));
  d_captured_ = allocate(arena_name::state_gradients, floats);
  d_suffix_ = allocate(arena_name::state_gradients, floats);
}

void layer::run(const run_entry& m) {
  try {
    start_job(m);
    if (!failed_) start_entry(m);
  } catch (const error& e) {  // over budget; the job's later entries are on their way already
    failed_ = true;
    tell(rank_, entry_failed{{}, job_number_, m.number, e.code(), e.what()});
  }
}

void layer::start_entry(const run_entry& m) {
  const job& of = *m.pass->of;
  const verb what = m.entry.what;

  auto w = std::make_shared<work>();
  w->request = m;
  w->attempt = attempt_;
  in_flight_[m.number] = w;
  if (what == verb::backward_layer) {
    // LY-2; the other entry may still wait for its pages, the lane keeps the order
    w->forward = kept_.at(m.pass.get());
    kept_.erase(m.pass.get());
    return start_backward(w);
  }
  w->keeps = what == verb::rebuild_layer ||
             (what == verb::forward_layer && of.checkpoint == checkpointing::none);
  if (w->keeps) kept_[m.pass.get()] = w;

  w->recurrent = captured_;
  const page_owner state{of.policy_version, of.number, number_, -1, page_use::state};
  if (of.model->layer(number_).state(parts_.at).page_floats_per_token > 0) {
    const index tokens = tokens_of_rank(of.chunks, parts_.at);
    if (tokens > 0) {
      reserve(w, state, tokens);
      page_owner gradient = state;
      gradient.use = page_use::gradient;
      if (w->keeps && of.gradient == gradient_mode::full) reserve(w, gradient, tokens);
    }
  }
  if (what == verb::decode_layer) prepare_decode(w);
  lease_next(w);
}

// Each sample goes on from its own fork of the captured state.
void layer::prepare_decode(const work_ptr& w) {
  const job& of = w->of();
  const index sample = w->request.entry.response;
  auto& state = samples_[sample];
  const page_owner own{of.policy_version, of.number, number_, sample, page_use::state};
  const bool pages = of.model->layer(number_).state(parts_.at).page_floats_per_token > 0;
  if (!state) {
    state = allocate(arena_name::conditional_state, static_cast<index>(captured_->floats().size()));
    w->copy_from = captured_;
    index tokens = 0;  // room for the whole sample
    for (const schedule_entry& e : of.plan.entries)
      if (e.response == sample) tokens = std::max(tokens, e.tokens.end - (prompt_tokens_ - 1));
    if (pages) reserve(w, own, tokens);
  } else if (pages) {
    w->to_lease.push_back(own);
  }
  w->recurrent = state;
}

// The first entry that needs an owner's pages reserves them all: how many is known from the
// schedule.
void layer::reserve(const work_ptr& w, const page_owner& owner, index tokens) {
  w->to_lease.push_back(owner);
  if (!reserved_.insert(owner).second) return;
  const job& of = w->of();
  const index floats = of.model->layer(number_).state(parts_.at).page_floats_per_token;
  ask(parts_.pages, env.limits.page, reserve_pages{{}, owner, tokens, of.page_tokens, floats})
      .then(on_answer<pages_reserved>([](const pages_reserved&) {}),
            [this, w](const caf::error& e) { report(*w, from_caf(this->system(), e)); });
}

void layer::lease_next(const work_ptr& w) {
  if (w->to_lease.empty()) return start_forward(w);
  const page_owner owner = w->to_lease.front();
  w->to_lease.erase(w->to_lease.begin());
  ask(parts_.pages, env.limits.page, lease_pages{{}, owner})
      .then(on_answer<pages_leased>([this, w, owner](const pages_leased& m) {
              w->leased.push_back(owner);
              w->page_memory.push_back(m.data);
              if (w->of().number != job_number_ || w->attempt != attempt_)
                return give_back_leases(*w);  // released or rewound meanwhile
              add_views(*w, owner, *m.data);
              lease_next(w);
            }),
            [this, w](const caf::error& e) { report(*w, from_caf(this->system(), e)); });
}

// A view counts the tokens that are valid once this pass has written its own.
void layer::add_views(work& w, const page_owner& owner, const std::vector<float*>& data) {
  const job& of = w.of();
  const schedule_entry& e = w.request.entry;
  auto& views = owner.use == page_use::gradient ? w.page_gradients : w.pages;
  if (owner.sample >= 0) {
    const token_range own{prompt_tokens_ - 1, e.tokens.end};
    return add_page_views(views, data, of.page_tokens, {&own, 1}, parts_.at);
  }
  // Of the prompt: all chunks, or those up to the pass's own.
  const std::span<const token_range> chunks = of.chunks;
  const auto count = e.chunk >= 0 ? static_cast<std::size_t>(e.chunk) + 1 : chunks.size();
  add_page_views(views, data, of.page_tokens, chunks.first(count), parts_.at);
}

void layer::start_forward(const work_ptr& w) {
  const token_pass& t = *w->request.pass;
  const job& of = w->of();
  const schedule_entry& e = w->request.entry;
  const verb what = e.what;
  const bool changes_state = what == verb::capture_layer || what == verb::decode_layer;  // LY-3
  const auto number = static_cast<std::size_t>(number_);

  models::layer_pass& p = w->pass;
  p.positions = t.positions;
  p.whole = t.whole;
  p.at = t.at;
  p.hidden = t.hidden;
  p.d_hidden = t.d_hidden;
  p.angles = t.angles;
  p.pages = w->pages;
  // A swept chunk writes the very keys and values that capture wrote.
  p.writes_pages = changes_state || e.in == phase::sweep;
  p.recurrent_before = w->recurrent->floats();
  if (e.in == phase::sweep) {
    w->snapshots = snapshots_;
    p.recurrent_before = snapshots_->floats().subspan(
        static_cast<std::size_t>(e.chunk) * captured_->floats().size(), captured_->floats().size());
  }
  if (changes_state) p.recurrent_after = w->recurrent->floats();
  p.keep = w->keeps;
  p.activations =
      w->keeps && what == verb::forward_layer ? t.kept_activations[number] : t.activations;
  p.state_only = e.chunk >= 0 && number_ + 1 == of.model->layer_count();
  if (w->keeps) {
    p.gradients = (*of.gradients)[static_cast<std::size_t>(parts_.at.rank)];
    if (of.gradient == gradient_mode::full) {
      p.page_gradients = w->page_gradients;
      // The sweep takes the gradient of the state after a chunk to that of the state before it; a response adds to it.
      w->d_recurrent = e.in == phase::sweep ? d_captured_ : d_suffix_;
      p.d_recurrent = w->d_recurrent->floats();
    }
  }

  if (w->copy_from)
    w->before = [from = w->copy_from, to = w->recurrent](models::layer_pass&) {
      std::ranges::copy(from->floats(), to->floats().begin());
    };
  if (what == verb::capture_layer && snapshots_)
    w->before = [to = snapshots_,
                 chunk = static_cast<std::size_t>(e.chunk)](models::layer_pass& q) {
      const auto state = q.recurrent_before;
      std::ranges::copy(state, to->floats().subspan(chunk * state.size(), state.size()).begin());
    };
  if (what == verb::forward_layer && !w->keeps)
    w->before = [to = t.kept_inputs[number]](models::layer_pass& q) {
      models::copy(to, q.hidden, *q.on);
    };
  if (what == verb::rebuild_layer)
    w->before = [from = t.kept_inputs[number]](models::layer_pass& q) {
      models::copy(q.hidden, from, *q.on);
    };

  const auto segments = of.model->layer(number_).segments();
  for (std::size_t s = 0; s < segments.size(); ++s)
    if (segments[s].for_state || !p.state_only) w->order.push_back(s);
  submit_parts(w);
}

void layer::start_backward(const work_ptr& w) {
  const job& of = w->of();
  w->way = direction::backward;
  const auto segments = of.model->layer(number_).segments();
  const bool state_only = w->request.entry.chunk >= 0 && number_ + 1 == of.model->layer_count();
  for (std::size_t s = segments.size(); s-- > 0;)
    if (segments[s].for_state || !state_only) w->order.push_back(s);
  if (of.gradient == gradient_mode::full && w->request.entry.in == phase::replay) {
    // Nothing comes after a response: the gradient of the state that it leaves is zero.
    w->before = [d = d_suffix_](models::layer_pass&) { std::ranges::fill(d->floats(), 0.0f); };
    w->after = [d = d_suffix_, sum = d_captured_](models::layer_pass&) {
      const auto from = d->floats(), to = sum->floats();
      for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
  }
  submit_parts(w);
}

namespace {
/// The segment after which the exchange stands that follows part `part` of an entry, if one does. Backward it stands
/// before that segment's own backward.
std::optional<std::size_t> exchange_after(const std::vector<std::size_t>& order, std::size_t part,
                                          std::span<const models::segment> segments,
                                          bool state_only) {
  if (part + 1 == order.size()) return std::nullopt;
  const std::size_t s = std::min(order[part], order[part + 1]);
  if (!models::exchanges_after(segments, s, state_only)) return std::nullopt;
  return s;
}
}  // namespace

// All parts up to the next exchange; on one rank all.
void layer::submit_parts(const work_ptr& w) {
  const auto segments = w->of().model->layer(number_).segments();
  if (w->order.empty()) return submit_nothing(w);
  while (w->next_part < w->order.size()) {
    const bool meets =
        !parts_.at.alone() &&
        exchange_after(w->order, w->next_part, segments, w->live().state_only).has_value();
    submit_part(w, meets);
    if (meets) return;
  }
}

// A last layer without state has no segment for a captured chunk; the lane waits for its entry all the same.
void layer::submit_nothing(const work_ptr& w) {
  auto op = std::make_shared<operation>();
  op->name = "nothing";
  op->detail = to_string(w->request.entry.what).data();
  op->entry = w->request.entry;
  op->run = [](kernels::executor&) {};
  tell(parts_.lane, submit_operation{{},
                                     job_number_,
                                     w->request.number,
                                     0,
                                     true,
                                     false,
                                     std::move(op),
                                     w->request.pass->of,
                                     self_as<operation_listener>()});
}

void layer::submit_part(const work_ptr& w, bool meets) {
  const std::size_t part = w->next_part++;
  const models::layer_program& program = w->of().model->layer(number_);
  const auto segments = program.segments();
  const std::size_t s = w->order[part];
  const bool last = part + 1 == w->order.size();

  std::optional<std::size_t> takes, gives;
  if (w->taken) takes = exchange_after(w->order, part - 1, segments, w->live().state_only);
  if (meets) gives = exchange_after(w->order, part, segments, w->live().state_only);

  auto op = std::make_shared<operation>();
  op->name = segments[s].name.data();
  op->detail = to_string(w->request.entry.what).data();
  op->entry = w->request.entry;
  op->run = [w, &program, s, part, last, takes, gives, staging = parts_.staging,
             taken = std::exchange(w->taken, nullptr)](kernels::executor& on) mutable {
    if (w->request.pass->skipped()) return;
    models::layer_pass& p = w->live();
    p.on = &on;
    if (part == 0 && w->before) w->before(p);
    if (takes) {
      std::vector<std::span<const float>> given;
      for (const given_data& g : *taken) given.push_back(g.as<float>());
      program.take(*takes, w->way, p, given);
      taken.reset();  // the givers may use their memory again
    }
    if (w->way == direction::forward)
      program.forward(s, p);
    else
      program.backward(s, p);
    if (gives) {
      w->to_give = staging->take(program.given_floats(*gives, w->way, p.whole.count(), p.at));
      w->given_floats = program.give(*gives, w->way, p, w->to_give->floats());
    }
    if (last && w->after) w->after(p);
  };
  tell(parts_.lane, submit_operation{{},
                                     job_number_,
                                     w->request.number,
                                     static_cast<index>(part),
                                     last,
                                     meets,
                                     std::move(op),
                                     w->request.pass->of,
                                     self_as<operation_listener>()});
}

void layer::operation_finished(const operation_done& m) {
  if (m.job_number != job_number_) return;
  auto it = in_flight_.find(m.entry);
  LS_ASSERT(it != in_flight_.end(), "the lane finished an entry that this layer has not in flight");
  const work_ptr w = it->second;
  if (m.last) {
    in_flight_.erase(it);
    return finish(w);
  }
  const auto segments = w->of().model->layer(number_).segments();
  const auto s =
      *exchange_after(w->order, static_cast<std::size_t>(m.part), segments, w->live().state_only);
  const auto floats = w->to_give->floats().first(static_cast<std::size_t>(w->given_floats));
  given_data given{std::exchange(w->to_give, nullptr), std::as_bytes(floats)};
  tell(parts_.collective, contribute{{},
                                     {job_number_, attempt_, m.entry, m.part},
                                     parts_.at.rank,
                                     models::to_string(segments[s].after).data(),
                                     models::to_string(w->way).data(),
                                     number_,
                                     std::move(given),
                                     self_as<exchange_listener>()});
}

void layer::take_exchanged(const exchanged& m) {
  if (m.key.job_number != job_number_ || m.key.attempt != attempt_) return;
  const work_ptr& w = in_flight_.at(m.key.entry);
  w->taken = m.given;
  submit_parts(w);  // LY-4
}

void layer::exchange_failed(const exchange_missed& m) {
  if (m.key.job_number != job_number_ || m.key.attempt != attempt_) return;
  tell(rank_, entry_failed{{}, job_number_, m.key.entry, errc::rank_late, m.sentence});
}

void layer::finish(const work_ptr& w) {
  if (w->forward)
    give_back_leases(*w->forward);
  else if (!w->keeps)  // LY-2
    give_back_leases(*w);
  tell(rank_, entry_done{{}, job_number_, w->request.number});
}

void layer::operation_broke(const operation_failed& m) {
  if (m.job_number != job_number_) return;
  tell(rank_, entry_failed{{}, m.job_number, m.entry, m.code, m.sentence});
}

void layer::report(const work& w, const error& e) {
  if (w.of().number != job_number_ || w.attempt != attempt_) return;
  tell(rank_, entry_failed{{}, job_number_, w.request.number, e.code(), e.what()});
}

void layer::give_back_leases(work& w) {
  for (const page_owner& owner : w.leased) tell(parts_.pages, return_pages{{}, owner});
  w.leased.clear();
}

void layer::drop_works() {
  for (auto& [entry, w] : in_flight_) give_back_leases(w->forward ? *w->forward : *w);
  for (auto& [pass, w] : kept_) give_back_leases(*w);
  in_flight_.clear();
  kept_.clear();
}

caf::result<job_rewound> layer::rewind(const rewind_job& m) {
  const job_rewound answer{{}, parts_.at.rank, m.job_number, m.attempt};
  if (m.job_number != job_number_) return stamped(answer);
  drop_works();
  attempt_ = m.attempt;
  failed_ = false;
  if (d_captured_) std::ranges::fill(d_captured_->floats(), 0.0f);
  std::erase_if(reserved_, [](const page_owner& o) { return o.use == page_use::gradient; });
  auto promise = this->template make_response_promise<job_rewound>();
  ask(parts_.pages, env.limits.page, drop_pages{{}, m.job_number, number_, true})
      .then(on_answer<pages_dropped>([this, promise, answer](const pages_dropped&) mutable {
              promise.deliver(stamped(answer));
            }),
            [promise](const caf::error& e) mutable { promise.deliver(e); });
  return promise;
}

caf::result<job_released> layer::release(const release_job& m) {
  if (m.job_number != job_number_) return stamped(job_released{{}, m.job_number});
  drop_works();
  job_number_ = 0;
  samples_.clear();
  reserved_.clear();
  for (buffer_ptr* b : {&captured_, &snapshots_, &d_captured_, &d_suffix_}) b->reset();
  auto promise = this->template make_response_promise<job_released>();
  ask(parts_.pages, env.limits.page, drop_pages{{}, m.job_number, number_, false})
      .then(
          on_answer<pages_dropped>([this, promise, n = m.job_number](const pages_dropped&) mutable {
            promise.deliver(stamped(job_released{{}, n}));
          }),
          [promise](const caf::error& e) mutable { promise.deliver(e); });
  return promise;
}

}  // namespace longstraw::actors
