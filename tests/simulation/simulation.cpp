#include "simulation.hpp"

#include "seeded_system.hpp"

#include <longstraw/actors/actor_graph.hpp>
#include <longstraw/actors/make_job.hpp>
#include <longstraw/actors/optimizer_step.hpp>

#include <spdlog/sinks/null_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

namespace longstraw::testing {
namespace {

using namespace messages;
using std::chrono::milliseconds;
using verdict = actors::message_faults::verdict;

constexpr std::int64_t messages_max = 400'000;  // of a job
constexpr std::chrono::seconds stalled_max{
    20};  // simulated time of a job in which no message was left

// ---- what is seen of messages, and what goes wrong with them

/// Every message passes here just before it is handled.
class message_log : public actors::message_faults {
 public:
  message_log(const simulation_plan& plan, bool print) : plan_(plan), print_(print) {}

  bool armed = false;  ///< the trouble belongs to the job that runs
  bool fired = false;
  std::string killed;  ///< whom
  std::string lost;    ///< which message
  std::function<void(const std::string& actor, const std::string& message)> on_delivery;

  verdict before(const std::string& actor, const char* message) override {
    const std::string name = message;
    mix(actor);
    mix(name);
    const verdict v = decide(actor, name);
    auto& [who, what] = last_[static_cast<std::size_t>(count_) % last_.size()];
    who = actor;
    what = name + (v == verdict::drop ? " (lost)" : v == verdict::die ? " (dies)" : "");
    if (print_) {
      fmt::print("  {:6} {:20} {}\n", count_, who, what);
      std::fflush(stdout);
    }
    ++count_;
    if (v == verdict::deliver && on_delivery) on_delivery(actor, name);
    return v;
  }

  std::int64_t count() const { return count_; }
  std::uint64_t sequence() const { return sequence_; }
  std::string last() const {
    std::string lines;
    const auto size = static_cast<std::int64_t>(last_.size());
    for (std::int64_t i = std::max<std::int64_t>(0, count_ - size); i < count_; ++i) {
      const auto& [actor, message] = last_[static_cast<std::size_t>(i % size)];
      lines += fmt::format("  {:6} {:20} {}\n", i, actor, message);
    }
    return lines;
  }

 private:
  verdict decide(const std::string& actor, const std::string& message) {
    if (!armed || fired || (plan_.what != trouble::drop && plan_.what != trouble::kill))
      return verdict::deliver;
    if (!plan_.of_actor.empty() && plan_.of_actor != actor) return verdict::deliver;
    if (!plan_.of_message.empty() && plan_.of_message != message) return verdict::deliver;
    if (matching_++ != plan_.number) return verdict::deliver;
    fired = true;
    if (plan_.what == trouble::kill) {
      killed = actor;
      return verdict::die;
    }
    lost = message;
    return verdict::drop;
  }
  void mix(const std::string& text) {
    for (const char c : text)
      sequence_ = (sequence_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }

  const simulation_plan& plan_;
  const bool print_;
  index matching_ = 0;
  std::array<std::pair<std::string, std::string>, 50> last_;
  std::int64_t count_ = 0;
  std::uint64_t sequence_ = 0xcbf29ce484222325u;
};

// ---- who is next

/// Picks an actor for the next message, and lets time pass where the plan says so.
class mixer {
 public:
  mixer(seeded_system& system, const simulation_plan& plan)
      : system_(system), plan_(plan), random_(plan.seed ^ 0x5851f42d4c957f2du) {
    ticks_in_ = 4 + random_.any_size(200);
  }

  bool armed = false;

  /// The place of the actor that is next, or none if nobody has a message or only starved ones have.
  std::optional<std::size_t> next() {
    ++turn_;
    const bool clock = armed && (plan_.what == trouble::clock || plan_.also_clock);
    if (clock && random_.chance(ticks_in_))
      system_.pass_time(
          milliseconds(random_.chance(8) ? random_.between(50, 600) : random_.between(1, 30)));
    const bool starves = armed && (plan_.what == trouble::starve || plan_.what == trouble::clock);
    const std::size_t count = system_.runnable();
    if (count == 0) return std::nullopt;
    if (starves && starved_until_ <= turn_ && random_.chance(50)) {
      starved_ = system_.who(index_below(count));
      starved_until_ = turn_ + random_.any_size(3000);
    }
    candidates_.clear();
    for (std::size_t i = 0; i < count; ++i)
      if (!starves || turn_ >= starved_until_ || system_.who(i) != starved_)
        candidates_.push_back(i);
    if (candidates_.empty()) {
      if (clock && random_.chance(2) && system_.pass_time_to_next()) return next();
      starved_until_ = 0;
      return next();
    }
    if (!plan_.by_priority) return candidates_[index_below(candidates_.size())];
    if (random_.chance(100)) priorities_.clear();
    return *std::ranges::max_element(candidates_, {}, [this](std::size_t i) {
      const auto [it, is_new] = priorities_.try_emplace(system_.who(i), 0);
      if (is_new) it->second = random_.next();
      return it->second;
    });
  }
  bool chance(index one_in) { return random_.chance(one_in); }

 private:
  std::size_t index_below(std::size_t count) {
    return static_cast<std::size_t>(random_.below(static_cast<index>(count)));
  }

  seeded_system& system_;
  const simulation_plan& plan_;
  seeded_numbers random_;
  index ticks_in_;
  index turn_ = 0;
  std::uint64_t starved_ = 0;
  index starved_until_ = 0;
  std::vector<std::size_t> candidates_;
  std::map<std::uint64_t, std::uint64_t> priorities_;
};

// ---- weights, moments and gradients of a step

bool same(std::span<const float> a, std::span<const float> b) { return std::ranges::equal(a, b); }

/// What a commit may and may not do to the parameters.
class transaction_watch {
 public:
  transaction_watch(const models::language_model& model, memory::budget& budget)
      : store_(*model.parameters()),
        before_(store_.layout(), models::parameter_use::train, budget),
        after_(store_.layout(), models::parameter_use::train, budget),
        on_(1, *budget.named("reference scratch"), 1 << 16) {}

  void begin(const job& j, std::vector<double> expected) {
    job_ = &j;
    expected_ = std::move(expected);
    copy_all(before_, store_);
    decided_ = false;
    after_known_ = false;
  }

  /// After each message.
  std::string check() {
    if (!job_ || !job_->commit.decided)
      return whole(before_) ? "" : "weights changed before the commit was decided";
    if (!decided_) {
      decided_ = true;
      if (std::string wrong = check_gradient(); !wrong.empty()) return wrong;
      make_after();
    }
    using update = commit_result::update;
    for (index r = 0; r < job_->ranks; ++r) {
      const update u = job_->commit.updates[static_cast<std::size_t>(r)];
      if (u == update::begun || !after_known_) continue;  // it broke off
      if (!shard_is(u == update::done ? after_ : before_, r))
        return fmt::format("the shard of rank {} is neither old nor new", r);
    }
    return "";
  }
  /// The weights are other ones from now on.
  void accept() {
    job_ = nullptr;
    copy_all(before_, store_);
  }
  bool is_old() const { return whole(before_); }
  bool is_new() const { return after_known_ && whole(after_); }

 private:
  static constexpr float tolerance = 1e-5f;

  static void copy_all(const models::parameter_store& to, const models::parameter_store& from) {
    std::ranges::copy(from.weights(), to.weights().begin());
    std::ranges::copy(from.first_moments(), to.first_moments().begin());
    std::ranges::copy(from.second_moments(), to.second_moments().begin());
  }
  bool part_is(const models::parameter_store& other, token_range part) const {
    const auto cut = [&](std::span<const float> all) {
      return all.subspan(static_cast<std::size_t>(part.begin),
                         static_cast<std::size_t>(part.count()));
    };
    return same(cut(store_.weights()), cut(other.weights())) &&
           same(cut(store_.first_moments()), cut(other.first_moments())) &&
           same(cut(store_.second_moments()), cut(other.second_moments()));
  }
  bool whole(const models::parameter_store& other) const {
    return part_is(other, {0, store_.layout().total()});
  }
  bool shard_is(const models::parameter_store& other, index rank) const {
    return part_is(other, actors::shard_of(store_.layout(), {rank, job_->ranks}));
  }

  // All have voted: the sum over ranks stands in rank 0's array.
  std::string check_gradient() const {
    double squares = 0;
    for (const models::parameter& p : store_.layout().all()) {
      const bool exact = p.name != "lm_head.weight";
      for (index i = 0; i < p.count; ++i) {
        const double want = expected_[static_cast<std::size_t>(p.offset + i)];
        const double got = store_.gradients(p)[static_cast<std::size_t>(i)];
        squares += got * got;
        const double bound = exact ? 0 : tolerance * (1 + std::abs(want));
        if (!(std::abs(got - want) <= bound))
          return fmt::format("the gradient of {}[{}] is {}, expected {}", p.name, i, got, want);
      }
    }
    if (std::abs(std::sqrt(squares) - job_->commit.grad_norm) > tolerance * std::sqrt(squares))
      return fmt::format("the gradient's norm is said to be {}, it is {}", job_->commit.grad_norm,
                         std::sqrt(squares));
    return "";
  }
  void make_after() {
    copy_all(after_, before_);
    std::ranges::copy(store_.gradients(), after_.gradients().begin());
    try {
      for (index r = 0; r < job_->ranks; ++r)
        actors::apply_adamw(after_, actors::shard_of(after_.layout(), {r, job_->ranks}),
                            job_->optimizer, job_->commit.clip_scale, job_->optimizer_step, on_);
      after_known_ = true;
    } catch (const error&) {  // not finite: then there is no new version
    }
  }

  const models::parameter_store& store_;
  const models::parameter_store before_, after_;
  kernels::executor on_;
  const job* job_ = nullptr;
  std::vector<double> expected_;
  bool decided_ = false, after_known_ = false;
};

// ---- one seed

class simulation {
 public:
  simulation(const simulation_plan& plan, bool print)
      : plan_(plan),
        store_budget_(memory::budget::make(0)),
        probe_(std::make_shared<layer_probe>()),
        model_(make_counting_model(plan.layers, *store_budget_, probe_)),
        watch_(*model_, *store_budget_),
        log_(std::make_shared<message_log>(plan, print)) {
    options_.ranks = plan.ranks;
    options_.chunk_tokens = plan.chunk_tokens;
    options_.page_tokens = plan.page_tokens;
    budget_ = memory::budget::make(budget_bytes());
    system_.emplace();
    mixer_.emplace(*system_, plan_);
    log_->on_delivery = [this](const std::string& actor, const std::string& message) {
      note(actor, message);
    };
    actors::environment env;
    env.timeline = std::make_shared<timeline>(false);
    static const auto log =
        std::make_shared<spdlog::logger>("none", std::make_shared<spdlog::sinks::null_sink_mt>());
    env.log = log;
    env.limits.page = milliseconds(200);
    env.limits.operation = milliseconds(1000);
    env.limits.collective = milliseconds(400);
    env.limits.watchdog = milliseconds(50);
    env.faults = log_;
    actors::graph_options g;
    g.ranks = plan.ranks;
    g.attempts = plan.attempts;
    g.own_threads = false;
    graph_ = std::make_unique<actors::actor_graph>(system_->actors(), env, g, model_, budget_);
    view_ = std::make_shared<program_view>();
    program_ = system_->actors().spawn<program_actor>(
        view_, caf::actor_cast<caf::actor>(graph_->supervisor()));
  }

  simulation_result run() {
    for (int n = 0; n < 2 && violation_.empty() && !ended_; ++n) run_job(n);
    if (violation_.empty() && ended_ && !view_->supervisor_ended) ask_the_broken();
    tear_down();
    result_.violation = violation_;
    result_.last_messages = log_->last();
    result_.sequence = log_->sequence();
    result_.messages = log_->count();
    result_.fired = fired();
    return result_;
  }

 private:
  // -- preparation

  std::size_t budget_bytes() const {
    if (!plan_.exact_budget && plan_.what != trouble::short_of_memory) return 0;
    std::map<std::string, std::size_t> need;
    for (int n = 0; n < 2; ++n)
      for (const auto& [name, bytes] : actors::plan_of(*make(n)).bytes)
        need[name] = std::max(need[name], bytes);
    std::size_t jobs = 0;
    for (const auto& [name, bytes] : need) jobs += bytes;
    const auto ranks = static_cast<std::size_t>(plan_.ranks);
    const std::size_t always =
        ranks * kernels::executor::default_scratch_bytes +
        (ranks - 1) * static_cast<std::size_t>(model_->parameters()->layout().total()) *
            sizeof(float);
    if (plan_.what != trouble::short_of_memory) return always + jobs;
    return always + seeded_numbers(plan_.seed).next() % jobs;
  }

  job_ptr make(int n) const {
    const job_shape& shape = plan_.jobs[n];
    actors::step_settings settings = shape.settings;
    settings.optimizer_step = probe_->version + 1;
    return actors::make_step_job({options_, model_, n + 1, probe_->version}, shape.group, settings,
                                 graph_ ? graph_->gradients() : rank_gradients{});
  }

  // -- running

  bool armed(int n) const { return plan_.in_job == n || plan_.what == trouble::short_of_memory; }

  void run_job(int n) {
    job_ = make(n);
    number_ = n;
    const bool troubled = armed(n);
    log_->armed = mixer_->armed = troubled;
    probe_->replayed = static_cast<index>(job_->replayed_responses.size());
    probe_->captures = 0;
    probe_->throw_at =
        troubled && plan_.what == trouble::exception ? probe_->segments + plan_.number : -1;
    probe_->poison_at =
        troubled && plan_.what == trouble::poison ? probe_->segments + plan_.number : -1;
    watch_.begin(*job_, expected_gradient(*model_, plan_.layers, plan_.jobs[n].group,
                                          plan_.jobs[n].settings));
    const int answers = view_->answers;
    const std::int64_t first_message = log_->count();
    run_job_message(job_);
    std::chrono::nanoseconds stalled{0};
    for (index turn = 0;
         violation_.empty() && view_->answers == answers && !view_->supervisor_ended; ++turn) {
      if (troubled && plan_.what == trouble::cancel && turn == plan_.number) {
        cancelled_ = true;
        send_anonymous(graph_->supervisor(), cancel_job{});
      }
      if (log_->count() - first_message > messages_max)
        return violate("the job does not end: too many messages");
      const auto next = mixer_->next();
      if (next) {
        one_message(*next);
        continue;
      }
      if (log_->lost.empty())
        return violate("nobody has a message, no message was lost, and the job has not ended");
      const auto before = system_->now();
      if (!system_->pass_time_to_next())
        return violate("nobody has a message, and no deadline is left");
      stalled += system_->now() - before;
      if (stalled > stalled_max) return violate("the job does not end: too much time");
    }
    if (violation_.empty()) end_of_job(answers);
  }

  void run_job_message(const job_ptr& j) {
    send_anonymous(graph_->supervisor(),
                   messages::run_job{{}, j, caf::actor_cast<job_listener>(program_)});
  }

  void one_message(std::size_t place) {
    system_->run(place);
    check_budget();
    if (violation_.empty())
      if (const std::string wrong = watch_.check(); !wrong.empty()) violate(wrong);
    if (!probe_->violation.empty()) violate(probe_->violation);
  }

  // -- invariants

  void violate(const std::string& what) {
    if (violation_.empty()) violation_ = what;
  }

  void check_budget() {
    const std::size_t current = budget_->current_bytes();
    if (budget_->limit_bytes() > 0 && current > budget_->limit_bytes())
      violate("the budget is exceeded");
    std::size_t sum = 0;
    for (const auto& u : budget_->report()) sum += u.current_bytes;
    if (sum != current) violate("the budget is not the sum of its arenas");
  }

  // Before the handler.
  void note(const std::string& actor, const std::string& message) {
    if (message == "begin_step") {
      votes_ = entries_in_ledger_ = 0;
    } else if (actor == "supervisor" && message == "vote") {
      ++votes_;
    } else if (actor == "supervisor" && message == "response_replayed") {
      ++entries_in_ledger_;
    } else if (message == "rewind_job") {
      result_.rewound = true;
    } else if (message == "pages_leased") {
      ++leases_;
    } else if (message == "return_pages") {
      --leases_;
    } else if (message == "commit_step") {
      if (!job_ || !job_->commit.decided) violate("commit_step before the commit was decided");
      if (votes_ < plan_.ranks) violate("commit_step before all ranks have voted");
      if (entries_in_ledger_ < plan_.ranks * probe_->replayed)
        violate("commit_step before the ledger was complete");
    }
  }

  std::size_t state_bytes() const {
    std::size_t bytes = 0;
    for (const auto& u : budget_->report())
      if (u.name == actors::arena_name::conditional_state ||
          u.name == actors::arena_name::snapshots || u.name == actors::arena_name::state_gradients)
        bytes += u.current_bytes;
    return bytes;
  }

  void end_of_job(int answers_before) {
    ended_ = view_->supervisor_ended || view_->last.runtime_ended;
    const bool failed = view_->supervisor_ended || view_->last.failed;
    const bool decided = job_->commit.decided;
    if (failed) {
      ++result_.failed;
      result_.sentence =
          view_->supervisor_ended ? "the supervisor has ended" : view_->last.sentence;
    } else {
      ++result_.committed;
    }
    if (!view_->supervisor_ended && view_->last.what != job_) violate("job_done is of another job");
    if (!ended_ && state_bytes() > 0) violate("memory of the job is held after job_done");
    if (!failed && !watch_.is_new())
      violate("the job is done, but the weights are not the new ones");
    if (failed && !decided && !watch_.is_old())
      violate("the job failed undecided, but the weights are not the old ones");
    if (failed && decided && !ended_)
      violate("a decided commit was given up while actors may still work on it");
    check_captures();
    check_cause(failed);
    if (!violation_.empty()) return;
    // What is still under way may mix with the next job, or not.
    if (ended_ || !mixer_->chance(2)) return after_job(failed);
    log_->armed = false;
    while (violation_.empty()) {
      const auto next = mixer_->next();
      if (!next) break;
      one_message(*next);
    }
    if (view_->answers != answers_before + 1) violate("job_done came more than once");
    if (state_bytes() > 0) violate("memory of the job is held when nothing is left to do");
    if (leases_ != 0 && !failed) violate("pages are leased when nothing is left to do");
    after_job(failed);
  }

  void after_job(bool failed) {
    if (ended_) return;
    log_->armed = mixer_->armed = false;
    if (failed) return;
    ++probe_->version;
    set_counting_weights(*model_->parameters());
    watch_.accept();
  }

  // The captured state survives a rewind: each chunk is captured once by each scan layer of each rank.
  void check_captures() {
    const auto scans = std::ranges::count(plan_.layers, counting_kind::scan);
    const auto once = static_cast<index>(job_->chunks.size()) * scans * plan_.ranks;
    if (probe_->captures > once) violate("a chunk was captured twice");
  }

  bool fired() const {
    switch (plan_.what) {
      case trouble::drop:
      case trouble::kill:
        return log_->fired;
      case trouble::exception:
        return probe_->thrown;
      case trouble::poison:
        return probe_->poisoned;
      case trouble::cancel:
        return cancelled_;
      default:
        return true;
    }
  }

  // A job ends as the trouble demands, and says why.
  void check_cause(bool failed) {
    const bool troubled = armed(number_);
    const bool late = troubled && (plan_.what == trouble::clock || plan_.also_clock);
    // An end at the very end of a job may be noticed in the next.
    const bool here = (troubled || plan_.what == trouble::kill) && fired();
    if (!failed) {
      if (here && plan_.what == trouble::update)
        violate("an update that is not finite was committed");
      return;
    }
    if (view_->supervisor_ended) {
      if (log_->killed != "supervisor") violate("the supervisor ended by itself");
      return;
    }
    const errc code = view_->last.code;
    const std::string& why = view_->last.sentence;
    const auto says = [&](const std::string& part) { return why.find(part) != std::string::npos; };
    const auto unexpected = [&] {
      violate(fmt::format("the job failed with \"{}\" ({})", why, longstraw::to_string(code)));
    };
    if (why.empty()) return violate("the job failed without a sentence");
    if (late && (code == errc::timed_out || code == errc::rank_late)) return;
    if (!here) return unexpected();
    switch (plan_.what) {
      case trouble::kill:
        if (!says("actor '" + log_->killed + "' was killed")) unexpected();
        return;
      case trouble::exception:
        if (!says("a test wanted it")) unexpected();
        return;
      case trouble::poison:
        if (code != errc::not_finite || !says("model.layers.")) unexpected();
        return;
      case trouble::update:
        if (code != errc::not_finite) unexpected();
        return;
      case trouble::short_of_memory:
        if (code != errc::over_budget) unexpected();
        return;
      case trouble::cancel:
        if (code != errc::cancelled) unexpected();
        return;
      case trouble::drop:
        return check_loss(code, why, unexpected);
      case trouble::none:
      case trouble::starve:
      case trouble::clock:
        return unexpected();
    }
  }

  template <class F>
  void check_loss(errc code, const std::string& why, F&& unexpected) {
    const std::string& lost = log_->lost;
    // Without these nothing is missed.
    for (const char* harmless : {"watchdog_tick", "flush_timeline", "exchange_tick", "cancel_job"})
      if (lost == harmless) return unexpected();
    if (lost == "contribute") {
      if (code != errc::rank_late || why.find("did not reach exchange") == std::string::npos)
        return unexpected();
      return;
    }
    if (lost == "response_replayed") {
      if (why.find("the ledger has no contribution of response") == std::string::npos)
        return unexpected();
      return;
    }
    if (code != errc::timed_out && code != errc::rank_late && code != errc::actor_lost)
      unexpected();
  }

  // SV-3: after an actor has ended, every job fails with its cause.
  void ask_the_broken() {
    log_->armed = mixer_->armed = false;
    const int answers = view_->answers;
    const job_ptr again = make(number_);
    run_job_message(again);
    for (int i = 0; i < 100'000 && view_->answers == answers && system_->runnable() > 0; ++i)
      system_->run(0);
    if (view_->answers != answers + 1 || !view_->last.failed || !view_->last.runtime_ended ||
        view_->last.what != again)
      violate("a job after the end of an actor was not refused");
  }

  // -- the end

  void tear_down() {
    graph_.reset();
    caf::anon_send_exit(program_, caf::exit_reason::user_shutdown);
    let_go(program_);
    for (std::int64_t i = 0; system_->runnable() > 0; ++i) {
      if (i > messages_max) std::abort();
      system_->run(0);
    }
    mixer_.reset();
    system_.reset();
    finish_commit();
    job_.reset();
    view_->last = {};
    if (budget_->current_bytes() > 0) violate("memory is held after all actors have ended");
  }

  // As the runtime does when its actors have ended: a decided commit is carried through.
  void finish_commit() {
    if (!violation_.empty() || !ended_ || !job_ || !job_->commit.decided) return;
    if (actors::carry_through(*job_, *store_budget_->named("reference scratch"))) {
      if (!watch_.is_new()) violate("a decided commit was not carried through");
    } else if (plan_.what != trouble::update) {
      violate("an update broke off");
    }
  }

  const simulation_plan plan_;
  const std::shared_ptr<memory::budget> store_budget_;
  const std::shared_ptr<layer_probe> probe_;
  const std::shared_ptr<const models::language_model> model_;
  transaction_watch watch_;
  const std::shared_ptr<message_log> log_;
  actors::runtime_options options_;
  std::shared_ptr<memory::budget> budget_;
  std::optional<seeded_system> system_;
  std::optional<mixer> mixer_;
  std::unique_ptr<actors::actor_graph> graph_;
  std::shared_ptr<program_view> view_;
  messages::job_listener program_;
  job_ptr job_;  // the last that was run
  int number_ = 0;
  index votes_ = 0, entries_in_ledger_ = 0;
  index leases_ = 0;  // held by layers
  bool cancelled_ = false;
  bool ended_ = false;  // the runtime is broken
  std::string violation_;
  simulation_result result_;
};

}  // namespace

simulation_result simulate(const simulation_plan& plan, bool print) {
  return simulation(plan, print).run();
}

}  // namespace longstraw::testing
