#include <longstraw/actors/layer.hpp>

#include <algorithm>

namespace longstraw::actors {

using namespace messages;

layer::layer(caf::actor_config& config, environment e, std::string name, index number,
             lane_actor lane, page_store_actor pages, std::shared_ptr<memory::arena> state_arena)
    : actor_base(config, std::move(e), std::move(name)),
      number_(number),
      lane_(std::move(lane)),
      page_store_(std::move(pages)),
      state_arena_(std::move(state_arena)) {}

layer::behavior_type layer::make_behavior() {
  return {
      on(&layer::run),                 // -> entry_done | entry_failed, later
      on(&layer::release),             // -> job_released
      on(&layer::operation_finished),  // from the lane
      on(&layer::operation_broke),     // from the lane
  };
}

void layer::on_exit() {
  let_go(lane_);
  let_go(page_store_);
  let_go(rank_);
  in_flight_.clear();
  kept_.clear();
  captured_.reset();
  samples_.clear();
}

void layer::start_job(const run_entry& m) {
  const job& of = *m.pass->of;
  if (of.number == job_number_) return;
  LS_ASSERT(in_flight_.empty() && kept_.empty(),
            "a job must be released before the next one starts");
  job_number_ = of.number;
  prompt_tokens_ = static_cast<index>(of.data->prompt.size());
  rank_ = m.reply_to;
  failed_ = false;
  const index floats = of.model->layer(number_).state({}).recurrent_floats;
  captured_ = std::make_shared<memory::buffer>(state_arena_->allocate_floats(floats));
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
  in_flight_[m.number] = w;
  if (what == verb::backward_layer) {
    w->forward = kept_.at(
        m.entry.response);  // LY-2; it may still wait for its pages, the lane keeps the order
    kept_.erase(m.entry.response);
    submit_backward(w);
    return;
  }
  if (what == verb::forward_layer) kept_[m.entry.response] = w;

  w->recurrent = captured_;
  const bool pages = of.model->layer(number_).state({}).page_floats_per_token > 0;
  const index captured_tokens = prompt_tokens_ - 1;
  if (pages && captured_tokens > 0) reserve(w, {of.number, number_, -1}, captured_tokens);
  if (what == verb::decode_layer) {
    const index sample = m.entry.response;
    auto& state = samples_[sample];
    const page_owner own{of.number, number_, sample};
    if (!state) {
      state = std::make_shared<memory::buffer>(
          state_arena_->allocate_floats(static_cast<index>(captured_->floats().size())));
      w->copy_from = captured_;
      index tokens = 0;  // room for the whole sample
      for (const schedule_entry& e : of.plan.entries)
        if (e.response == sample) tokens = std::max(tokens, e.tokens.end - captured_tokens);
      if (pages) reserve(w, own, tokens);
    } else if (pages) {
      w->to_lease.push_back(own);
    }
    w->recurrent = state;
  }
  lease_next(w);
}

// The first entry that needs an owner's pages reserves them all: how many is known from the
// schedule.
void layer::reserve(const work_ptr& w, const page_owner& owner, index tokens) {
  w->to_lease.push_back(owner);
  if (!reserved_.insert(owner).second) return;
  const job& of = *w->request.pass->of;
  const index floats = of.model->layer(number_).state({}).page_floats_per_token;
  ask(page_store_, env.limits.page, reserve_pages{{}, owner, tokens, of.page_tokens, floats})
      .then(on_answer<pages_reserved>([](const pages_reserved&) {}),
            [this, w](const caf::error& e) { report(*w, from_caf(this->system(), e)); });
}

void layer::lease_next(const work_ptr& w) {
  if (w->to_lease.empty()) {
    prepare(*w);
    submit_forward(w);
    return;
  }
  const page_owner owner = w->to_lease.front();
  w->to_lease.erase(w->to_lease.begin());
  ask(page_store_, env.limits.page, lease_pages{{}, owner})
      .then(on_answer<pages_leased>([this, w, owner](const pages_leased& m) {
              w->leased.push_back(owner);
              w->page_memory.push_back(m.data);
              if (w->request.pass->of->number != job_number_)
                return give_back_leases(*w);  // released meanwhile
              add_pages(*w, owner, *m.data);
              lease_next(w);
            }),
            [this, w](const caf::error& e) { report(*w, from_caf(this->system(), e)); });
}

// A view counts the tokens that are valid once this pass has written its own.
void layer::add_pages(work& w, const page_owner& owner, const std::vector<float*>& data) {
  const job& of = *w.request.pass->of;
  const token_range positions = w.request.entry.tokens;
  const bool own = owner.sample >= 0;
  const index first = own ? prompt_tokens_ - 1 : 0;
  const bool writes = w.request.entry.what == verb::capture_layer || own;
  const index limit = writes ? positions.end : std::min(positions.begin, prompt_tokens_ - 1);
  for (std::size_t p = 0; p < data.size(); ++p) {
    const index position = first + static_cast<index>(p) * of.page_tokens;
    if (position >= limit) break;
    w.pages.push_back(
        {data[p], of.page_tokens, std::min(of.page_tokens, limit - position), position});
  }
}

void layer::prepare(work& w) {
  const token_pass& t = *w.request.pass;
  const verb what = w.request.entry.what;
  const bool changes_state = what == verb::capture_layer || what == verb::decode_layer;  // LY-3
  models::layer_pass& p = w.pass;
  p.positions = t.positions;
  p.hidden = t.hidden;
  p.d_hidden = t.d_hidden;
  p.angles = t.angles;
  p.pages = w.pages;
  p.whole = t.positions;
  p.gradients = t.of->model->parameters()->gradients();
  p.writes_pages = changes_state;
  p.recurrent_before = w.recurrent->floats();
  if (changes_state) p.recurrent_after = w.recurrent->floats();
  p.keep = what == verb::forward_layer;
  p.activations = p.keep ? t.kept_activations[static_cast<std::size_t>(number_)] : t.activations;
  p.state_only = what == verb::capture_layer && number_ + 1 == t.of->model->layer_count();
}

// The segments of a program are joined by exchanges between ranks. On one rank every exchange is
// the identity, so the next segment is submitted at once; the lane keeps their order.
void layer::submit_forward(const work_ptr& w) {
  const auto segments = w->request.pass->of->model->layer(number_).segments();
  std::vector<std::size_t> needed;
  for (std::size_t s = 0; s < segments.size(); ++s)
    if (!w->pass.state_only || segments[s].for_state) needed.push_back(s);
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const std::size_t s = needed[i];
    submit(w, static_cast<index>(i), i + 1 == needed.size(), segments[s].name.data(),
           [l = number_, s](work& x) {
             if (x.request.pass->skipped()) return;
             if (s == 0 && x.copy_from)
               std::ranges::copy(x.copy_from->floats(), x.recurrent->floats().begin());
             x.request.pass->of->model->layer(l).forward(s, x.pass);
           });
  }
}

void layer::submit_backward(const work_ptr& w) {
  const auto segments = w->request.pass->of->model->layer(number_).segments();
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::size_t s = segments.size() - 1 - i;
    submit(w, static_cast<index>(i), s == 0, segments[s].name.data(), [l = number_, s](work& x) {
      x.request.pass->of->model->layer(l).backward(s, x.forward->pass);
    });
  }
}

void layer::submit(const work_ptr& w, index part, bool last, const char* name,
                   std::function<void(work&)> body) {
  auto op = std::make_shared<operation>();
  op->name = name;
  op->detail = to_string(w->request.entry.what).data();
  op->entry = w->request.entry;
  op->run = [w, body = std::move(body)](kernels::executor& on) {
    (w->forward ? w->forward : w)->pass.on = &on;
    body(*w);
  };
  tell(lane_, submit_operation{{},
                               job_number_,
                               w->request.number,
                               part,
                               last,
                               std::move(op),
                               w->request.pass->of,
                               self_as<operation_listener>()});
}

void layer::operation_finished(const operation_done& m) {
  if (m.job_number != job_number_) return;
  auto it = in_flight_.find(m.entry);
  LS_ASSERT(it != in_flight_.end(), "the lane finished an entry that this layer has not in flight");
  const work_ptr w = it->second;
  in_flight_.erase(it);
  if (w->forward)
    give_back_leases(*w->forward);
  else if (w->request.entry.what != verb::forward_layer)  // LY-2
    give_back_leases(*w);
  tell(rank_, entry_done{{}, job_number_, m.entry});
}

void layer::operation_broke(const operation_failed& m) {
  if (m.job_number != job_number_) return;
  tell(rank_, entry_failed{{}, m.job_number, m.entry, m.code, m.sentence});
}

void layer::report(const work& w, const error& e) {
  if (w.request.pass->of->number != job_number_) return;
  tell(rank_, entry_failed{{}, job_number_, w.request.number, e.code(), e.what()});
}

void layer::give_back_leases(work& w) {
  for (const page_owner& owner : w.leased) tell(page_store_, return_pages{{}, owner});
  w.leased.clear();
}

caf::result<job_released> layer::release(const release_job& m) {
  if (m.job_number != job_number_) return stamped(job_released{{}, m.job_number});
  for (auto* works : {&in_flight_, &kept_}) {
    for (auto& [key, w] : *works) give_back_leases(w->forward ? *w->forward : *w);
    works->clear();
  }
  job_number_ = 0;
  captured_.reset();
  samples_.clear();
  reserved_.clear();
  auto promise = this->template make_response_promise<job_released>();
  ask(page_store_, env.limits.page, drop_pages{{}, m.job_number, number_})
      .then(
          on_answer<pages_dropped>([this, promise, n = m.job_number](const pages_dropped&) mutable {
            promise.deliver(stamped(job_released{{}, n}));
          }),
          [promise](const caf::error& e) mutable { promise.deliver(e); });
  return promise;
}

}  // namespace longstraw::actors
