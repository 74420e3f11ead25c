#include <longstraw/actors/lane.hpp>
#include <longstraw/actors/layer.hpp>
#include <longstraw/actors/optimizer.hpp>
#include <longstraw/actors/page_store.hpp>
#include <longstraw/actors/plan.hpp>
#include <longstraw/actors/rank.hpp>
#include <longstraw/actors/runtime.hpp>
#include <longstraw/actors/supervisor.hpp>
#include <longstraw/actors/tracer.hpp>

#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

namespace longstraw::actors {

using namespace messages;

namespace {

environment environment_of(const runtime_options& o) {
  environment e;
  e.timeline = std::make_shared<timeline>(!o.trace_file.empty() || o.on_record);
  e.log = o.log ? o.log
                : std::make_shared<spdlog::logger>("longstraw",
                                                   std::make_shared<spdlog::sinks::null_sink_mt>());
  e.limits = o.limits;
  e.fault = o.fault;
  return e;
}

std::string rank_name(rank_id rank, const std::string& what) {
  return fmt::format("rank {} {}", rank, what);
}

}  // namespace

// All actors of one rank, and the system they live in. The system has one scheduler thread: actors
// only pass messages, kernels run on the lane's own thread.
struct runtime::actors {
  static constexpr std::size_t scheduler_threads = 1;

  actors(const runtime_options& o, const std::shared_ptr<const models::language_model>& model,
         const std::shared_ptr<memory::budget>& budget)
      : config(scheduler_threads), system(config), env(environment_of(o)) {
    auto executor = std::make_shared<kernels::executor>(
        o.threads, *budget->named(o.arena_prefix + arena_name::scratch));
    tracing = system.spawn<tracer, caf::detached>(env, "tracer", o.trace_file, budget, o.on_record);
    compute = system.spawn<lane, caf::detached>(env, rank_name(0, "lane"), std::move(executor));
    const auto state = budget->named(o.arena_prefix + arena_name::conditional_state);
    pages = system.spawn<page_store>(env, rank_name(0, "page store"), state);
    for (index l = 0; l < model->layer_count(); ++l)
      layers.push_back(system.spawn<layer>(env, rank_name(0, fmt::format("layer {}", l)), l,
                                           compute, pages, state));
    steps = system.spawn<optimizer>(env, rank_name(0, "optimizer"), rank_id{0}, compute,
                                    model->parameters());
    ranks = system.spawn<rank>(env, rank_name(0, "passes"), rank_id{0}, compute, layers, budget);
    std::vector<caf::actor> others = all_but_supervisor();
    top = system.spawn<supervisor>(env, "supervisor", ranks, steps, std::move(others));
  }

  ~actors() {
    auto all = all_but_supervisor();
    all.push_back(caf::actor_cast<caf::actor>(top));
    for (const caf::actor& a : all) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
  }

  std::vector<caf::actor> all_but_supervisor() const {
    std::vector<caf::actor> all{
        caf::actor_cast<caf::actor>(tracing), caf::actor_cast<caf::actor>(compute),
        caf::actor_cast<caf::actor>(pages), caf::actor_cast<caf::actor>(steps),
        caf::actor_cast<caf::actor>(ranks)};
    for (const layer_actor& l : layers) all.push_back(caf::actor_cast<caf::actor>(l));
    return all;
  }

  system_config config;
  caf::actor_system system;
  environment env;
  tracer_actor tracing;
  lane_actor compute;
  page_store_actor pages;
  std::vector<layer_actor> layers;
  optimizer_actor steps;
  rank_actor ranks;
  supervisor_actor top;
};

runtime::runtime(runtime_options options, std::shared_ptr<const models::language_model> model,
                 std::shared_ptr<memory::budget> budget)
    : options_(std::move(options)), model_(std::move(model)), budget_(std::move(budget)) {
  const auto at_least_one = [](const char* what, index value) {
    if (value < 1) fail(errc::bad_input, "{} is {}, expected at least 1", what, value);
  };
  if (options_.ranks < 1 || options_.ranks > runtime_options::ranks_max)
    fail(errc::bad_input, "runtime_options::ranks is {}, expected 1 to {}", options_.ranks,
         runtime_options::ranks_max);
  if (options_.ranks > 1) fail(errc::bad_input, "this version runs on one rank");
  at_least_one("runtime_options::threads", options_.threads);
  at_least_one("runtime_options::chunk_tokens", options_.chunk_tokens);
  at_least_one("runtime_options::page_tokens", options_.page_tokens);
  actors_ = std::make_unique<actors>(options_, model_, budget_);
}

runtime::~runtime() = default;

phase_seconds runtime::run(const job_ptr& j) {
  constexpr std::chrono::milliseconds look_interval{100};
  if (!actors_) fail(errc::actor_lost, "the runtime has ended: {}", broken_);
  bool over = false, cancelled = false;
  job_done answer;
  std::exception_ptr thrown;  // by on_progress
  {
    caf::scoped_actor self{actors_->system};
    self->monitor(actors_->top);
    run_job message{{}, j, caf::actor_cast<job_listener>(caf::actor{self.ptr()})};
    if (actors_->env.timeline->enabled())
      message.ctx = {actors_->env.timeline->next_span(), 0, timeline::now_ns(), 0};
    send_anonymous(actors_->top, std::move(message));
    while (!over) {
      self->receive(
          [&](const job_done& m) {
            answer = m;
            over = true;
          },
          [&](const caf::down_msg& m) {
            const error cause = from_caf(actors_->system, m.reason);
            answer.failed = answer.runtime_ended = over = true;
            answer.code = cause.code();
            answer.sentence = cause.what();
          },
          caf::after(look_interval) >>
              [&] {
                if (!options_.on_progress || cancelled) return;
                try {
                  if (options_.on_progress(*j)) return;
                } catch (...) {
                  thrown = std::current_exception();
                }
                cancelled = true;
                send_anonymous(actors_->top, cancel_job{});
              });
    }
    self->demonitor(actors_->top.address());
  }
  if (answer.runtime_ended) {
    // Let the lane finish what it runs and end all actors; then the weights are of the old version
    // or of the new one, and which of the two is certain.
    broken_ = answer.sentence.empty() ? "an actor did not answer" : answer.sentence;
    actors_.reset();
  }
  if (answer.failed && j->commit.committed) {
    if (options_.log)
      options_.log->warn("the step was committed, then its job failed: {}", answer.sentence);
    answer.failed = false;
  }
  if (thrown) std::rethrow_exception(thrown);
  if (answer.failed) throw error(answer.code, answer.sentence);
  if (options_.on_progress) options_.on_progress(*j);
  return answer.seconds;
}

namespace {

// What comes through the library's front door may be anything; kernels trust it afterwards.
void check_group(const models::group& g, index vocabulary) {
  const auto check_ids = [&](const std::vector<token_id>& ids, const std::string& what) {
    for (const token_id id : ids)
      if (id < 0 || id >= vocabulary)
        fail(errc::bad_input, "{}: {} holds id {}, expected 0 to {}", g.name, what, id,
             vocabulary - 1);
  };
  if (g.prompt.empty()) fail(errc::bad_input, "{}: the prompt is empty", g.name);
  check_ids(g.prompt, "the prompt");
  for (std::size_t r = 0; r < g.responses.size(); ++r) {
    const models::response& response = g.responses[r];
    const std::string what = fmt::format("response {}", r);
    check_ids(response.tokens, what);
    const auto tokens = static_cast<index>(response.tokens.size());
    if (response.loss_tokens < 0 || response.loss_tokens > tokens)
      fail(errc::bad_input, "{}: {} has {} loss tokens, expected 0 to {}", g.name, what,
           response.loss_tokens, tokens);
    for (const auto* logps : {&response.old_logps, &response.ref_logps})
      if (!logps->empty() && static_cast<index>(logps->size()) != tokens)
        fail(errc::bad_input, "{}: {} has {} given log-probabilities, expected {}", g.name, what,
             logps->size(), tokens);
  }
}

job_ptr new_job(const char* name, index number,
                const std::shared_ptr<const models::language_model>& model, const models::group& g,
                const runtime_options& o) {
  check_group(g, model->config().vocabulary);
  auto j = std::make_shared<job>();
  j->number = number;
  j->name = name;
  j->model = model;
  j->data = std::make_shared<const models::group>(g);
  // A page longer than the prompt would only reserve what nobody uses.
  constexpr index shortest_page = 256;
  j->page_tokens =
      std::min(o.page_tokens, std::max(shortest_page, static_cast<index>(g.prompt.size())));
  j->arena_prefix = o.arena_prefix;
  return j;
}

job_seconds seconds_of(const phase_seconds& s, std::chrono::steady_clock::time_point begin) {
  job_seconds out{s.capture, s.score, s.replay, s.sweep, s.decode, s.commit, 0};
  out.step = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

}  // namespace

job_ptr runtime::make_step(const models::group& g, const step_settings& s) const {
  if (!model_->parameters()->trains())
    fail(errc::bad_input, "the model was loaded without gradients and cannot take a step");
  if (s.gradient == gradient_mode::full || s.checkpoint == checkpointing::layer)
    fail(errc::bad_input, "this version computes the frozen gradient without checkpointing");
  auto j = new_job("step", ++jobs_, model_, g, options_);
  j->loss = s.loss;
  j->counts = models::counts_of(g, s.loss);
  j->commits = true;
  j->optimizer = s.optimizer;
  j->optimizer_step = s.optimizer_step;
  const index prompt = static_cast<index>(g.prompt.size());
  const index layers = model_->layer_count();
  std::vector<index> to_score;
  for (index r = 0; r < static_cast<index>(g.responses.size()); ++r) {
    const models::response& response = g.responses[static_cast<std::size_t>(r)];
    response_result result;
    result.old_logps = response.old_logps;
    j->results.push_back(std::move(result));
    if (response.loss_tokens == 0) continue;
    const bool signal = models::has_signal(response, s.loss);
    if (signal) j->replayed_responses.push_back(r);
    if (!signal || (response.old_logps.empty() && s.separate_score)) to_score.push_back(r);
    if (signal && s.loss.beta != 0 && response.ref_logps.empty())
      fail(errc::bad_input, "{}: beta is {} but response {} has no reference log-probabilities",
           g.name, s.loss.beta, r);
  }
  if (j->replayed_responses.empty()) return j;  // nothing to learn from: an empty schedule
  add_capture(j->plan, prompt, options_.chunk_tokens, layers);
  const auto tokens_of = [&](index r) {
    return static_cast<index>(g.responses[static_cast<std::size_t>(r)].tokens.size());
  };
  for (const index r : to_score) add_score(j->plan, r, prompt, tokens_of(r), layers);
  for (const index r : j->replayed_responses) add_replay(j->plan, r, prompt, tokens_of(r), layers);
  return j;
}

memory_plan runtime::step_plan(const models::group& g, const step_settings& s) const {
  return plan_of(*make_step(g, s));
}

schedule runtime::step_schedule(const models::group& g, const step_settings& s) const {
  return make_step(g, s)->plan;
}

void runtime::check_step(const models::group& g, const step_settings& s) const {
  check_budget(*make_step(g, s), *budget_);
}

step_outcome runtime::step(const models::group& g, const step_settings& s) {
  const auto begin = std::chrono::steady_clock::now();
  const job_ptr j = make_step(g, s);
  step_outcome out;
  out.prompt_tokens = static_cast<index>(g.prompt.size());
  for (const models::response& r : g.responses) {
    out.response_tokens += static_cast<index>(r.tokens.size());
    out.loss_tokens += r.loss_tokens;
  }
  if (j->replayed_responses.empty()) {
    out.skipped = true;
    out.responses = std::move(j->results);
    return out;
  }
  check_budget(*j, *budget_);
  const phase_seconds seconds = run(j);

  index clipped = 0;
  double kl = 0, entropy = 0;
  bool first = true;
  for (const index r : j->replayed_responses) {
    const models::response_loss& l = j->results[static_cast<std::size_t>(r)].loss;
    out.loss += l.loss;
    out.policy_loss += l.policy_loss;
    kl += l.kl;
    entropy += l.entropy;
    clipped += l.clipped_low + l.clipped_high;
    out.ratio_min = first ? l.ratio_min : std::min(out.ratio_min, l.ratio_min);
    out.ratio_max = first ? l.ratio_max : std::max(out.ratio_max, l.ratio_max);
    first = false;
  }
  for (std::size_t r = 0; r < j->results.size(); ++r) {  // scored, but without a gradient
    const response_result& result = j->results[r];
    const auto tokens =
        std::min(result.entropies.size(), static_cast<std::size_t>(g.responses[r].loss_tokens));
    if (!result.replayed)
      for (std::size_t t = 0; t < tokens; ++t) entropy += result.entropies[t];
  }
  const double tokens = static_cast<double>(std::max<index>(out.loss_tokens, 1));
  out.kl = kl / tokens;
  out.entropy = entropy / tokens;
  out.clip_fraction = static_cast<double>(clipped) / tokens;
  out.grad_norm = j->commit.grad_norm;
  out.committed = j->commit.committed;
  out.replayed = static_cast<index>(j->replayed_responses.size());
  out.responses = std::move(j->results);
  out.seconds = seconds_of(seconds, begin);
  return out;
}

score_outcome runtime::score(const models::group& g, double temperature) {
  const auto begin = std::chrono::steady_clock::now();
  auto j = new_job("score", ++jobs_, model_, g, options_);
  j->loss.temperature = temperature;
  const index prompt = static_cast<index>(g.prompt.size());
  add_capture(j->plan, prompt, options_.chunk_tokens, model_->layer_count());
  for (index r = 0; r < static_cast<index>(g.responses.size()); ++r) {
    j->results.emplace_back();
    const auto tokens = static_cast<index>(g.responses[static_cast<std::size_t>(r)].tokens.size());
    if (tokens > 0) add_score(j->plan, r, prompt, tokens, model_->layer_count());
  }
  check_budget(*j, *budget_);
  const phase_seconds seconds = run(j);
  return {std::move(j->results), seconds_of(seconds, begin)};
}

generate_outcome runtime::generate(const models::group& prompt, const generate_settings& s) {
  const auto begin = std::chrono::steady_clock::now();
  auto j = new_job("generate", ++jobs_, model_, prompt, options_);
  j->sampling = s.sampling;
  j->stop_at_end_of_sequence = s.stop_at_end_of_sequence;
  // The schedule is a list in memory; a request that no list holds is an answer, not a crash.
  constexpr index entries_max = index{1} << 27;
  if (s.samples < 1 || s.max_tokens < 1 ||
      s.max_tokens > entries_max / (s.samples * (model_->layer_count() + 2)))
    fail(errc::bad_input,
         "{} samples of {} tokens are asked for, expected at least one of each and at most {} "
         "tokens in all",
         s.samples, s.max_tokens, entries_max / (model_->layer_count() + 2));
  const index tokens = static_cast<index>(prompt.prompt.size());
  add_capture(j->plan, tokens, options_.chunk_tokens, model_->layer_count());
  for (index n = 0; n < s.samples; ++n) {
    response_result result;
    // Each sample has its own stream, so that the number of samples changes none of them.
    std::seed_seq seed{static_cast<std::uint32_t>(s.seed), static_cast<std::uint32_t>(s.seed >> 32),
                       static_cast<std::uint32_t>(n)};
    result.random.seed(seed);
    j->results.push_back(std::move(result));
    add_decode(j->plan, n, tokens, s.max_tokens, model_->layer_count());
  }
  check_budget(*j, *budget_);
  const phase_seconds seconds = run(j);
  generate_outcome out;
  for (response_result& r : j->results) out.samples.push_back(std::move(r.tokens));
  out.seconds = seconds_of(seconds, begin);
  return out;
}

void runtime::close_timeline() {
  if (!actors_) fail(errc::actor_lost, "the runtime has ended: {}", broken_);
  constexpr std::chrono::seconds patience{60};
  caf::scoped_actor self{actors_->system};
  request(self.operator->(), actors_->tracing, patience, messages::close_timeline{})
      .receive([](const timeline_closed&) {},
               [&](const caf::error& e) { throw from_caf(actors_->system, e); });
}

}  // namespace longstraw::actors
