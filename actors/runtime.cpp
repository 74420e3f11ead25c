#include <longstraw/actors/actor_graph.hpp>
#include <longstraw/actors/make_job.hpp>
#include <longstraw/actors/optimizer_step.hpp>
#include <longstraw/actors/plan.hpp>
#include <longstraw/actors/runtime.hpp>

#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

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
  e.faults = o.faults;
  return e;
}

graph_options graph_of(const runtime_options& o) {
  graph_options g;
  g.ranks = o.ranks;
  g.threads = o.threads;
  g.attempts = o.attempts;
  g.arena_prefix = o.arena_prefix;
  g.trace_file = o.trace_file;
  g.on_record = o.on_record;
  return g;
}

}  // namespace

// The actors and the system they live in. The system has one scheduler thread: actors only pass messages, kernels run
// on the lanes' own threads.
struct runtime::actors {
  static constexpr std::size_t scheduler_threads = 1;

  actors(const runtime_options& o, const std::shared_ptr<const models::language_model>& model,
         const std::shared_ptr<memory::budget>& budget)
      : config(scheduler_threads),
        system(config),
        env(environment_of(o)),
        graph(system, env, graph_of(o), model, budget) {}

  system_config config;
  caf::actor_system system;
  environment env;
  actor_graph graph;
};

namespace {
// A thread that cannot be made within the actor system leaves actors that wait for ever: ask the system before.
void check_threads(const runtime_options& o) {
  constexpr index system_threads = 4;  // scheduler, clock, input and output, tracer
  const index wanted = system_threads + o.ranks * o.threads;
  std::vector<std::thread> all;
  std::atomic<bool> over{false};
  std::string refusal;
  try {
    for (index t = 0; t < wanted; ++t) all.emplace_back([&over] { over.wait(false); });
  } catch (const std::system_error& e) {
    refusal = e.code().message();
  }
  over = true;
  over.notify_all();
  for (std::thread& t : all) t.join();
  if (!refusal.empty())
    fail(errc::over_budget,
         "the system allows only {} of the {} threads that {} ranks with {} threads each need: {}",
         all.size(), wanted, o.ranks, o.threads, refusal);
}
}  // namespace

runtime::runtime(runtime_options options, std::shared_ptr<const models::language_model> model,
                 std::shared_ptr<memory::budget> budget)
    : options_(std::move(options)), model_(std::move(model)), budget_(std::move(budget)) {
  const auto at_least_one = [](const char* what, index value) {
    if (value < 1) fail(errc::bad_input, "{} is {}, expected at least 1", what, value);
  };
  if (options_.ranks < 1 || options_.ranks > runtime_options::ranks_max)
    fail(errc::bad_input, "runtime_options::ranks is {}, expected 1 to {}", options_.ranks,
         runtime_options::ranks_max);
  at_least_one("runtime_options::attempts", options_.attempts);
  at_least_one("runtime_options::threads", options_.threads);
  at_least_one("runtime_options::chunk_tokens", options_.chunk_tokens);
  at_least_one("runtime_options::page_tokens", options_.page_tokens);
  for (index l = 0; options_.ranks > 1 && l < model_->layer_count(); ++l)
    if (!model_->layer(l).runs_on_ranks())
      fail(errc::bad_input, "layer {} ({}) runs on one rank only, but runtime_options::ranks is {}",
           l, model_->layer(l).kind(), options_.ranks);
  check_threads(options_);
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
    self->monitor(actors_->graph.supervisor());
    run_job message{{}, j, caf::actor_cast<job_listener>(caf::actor{self.ptr()})};
    if (actors_->env.timeline->enabled())
      message.ctx = {actors_->env.timeline->next_span(), 0, timeline::now_ns(), 0};
    send_anonymous(actors_->graph.supervisor(), std::move(message));
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
                send_anonymous(actors_->graph.supervisor(), cancel_job{});
              });
    }
    self->demonitor(actors_->graph.supervisor().address());
  }
  if (answer.runtime_ended) {
    // Let the lane finish what it runs and end all actors; then the weights are of the old version
    // or of the new one, and which of the two is certain.
    broken_ = answer.sentence.empty() ? "an actor did not answer" : answer.sentence;
    actors_.reset();
  }
  if (answer.failed && j->commit.decided &&
      carry_through(*j, *budget_->named(options_.arena_prefix + arena_name::scratch))) {
    if (options_.log)
      options_.log->warn("the step was committed, then its job failed: {}", answer.sentence);
    answer.failed = false;
  }
  if (answer.failed && j->commit.decided) throw error(errc::half_updated, answer.sentence);
  if (j->commit.decided) ++policy_version_;
  if (thrown) std::rethrow_exception(thrown);
  if (answer.failed) throw error(answer.code, answer.sentence);
  if (options_.on_progress) options_.on_progress(*j);
  return answer.seconds;
}

namespace {

job_seconds seconds_of(const phase_seconds& s, std::chrono::steady_clock::time_point begin) {
  job_seconds out{s.capture, s.score, s.replay, s.sweep, s.decode, s.commit, 0};
  out.step = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

}  // namespace

job_origin runtime::origin() const { return {options_, model_, ++jobs_, policy_version_}; }

job_ptr runtime::make_step(const models::group& g, const step_settings& s) const {
  return make_step_job(origin(), g, s, actors_ ? actors_->graph.gradients() : rank_gradients{});
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
  out.committed = j->commit.decided;
  out.replayed = static_cast<index>(j->replayed_responses.size());
  out.responses = std::move(j->results);
  out.seconds = seconds_of(seconds, begin);
  return out;
}

score_outcome runtime::score(const models::group& g, double temperature) {
  const auto begin = std::chrono::steady_clock::now();
  auto j = make_job(origin(), "score", g);
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
  if (options_.ranks > 1)
    fail(errc::bad_input, "generation runs on one rank, but runtime_options::ranks is {}",
         options_.ranks);
  auto j = make_job(origin(), "generate", prompt);
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
  request(self.operator->(), actors_->graph.tracer(), patience, messages::close_timeline{})
      .receive([](const timeline_closed&) {},
               [&](const caf::error& e) { throw from_caf(actors_->system, e); });
}

}  // namespace longstraw::actors
