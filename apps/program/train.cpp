// longstraw train: steps over the groups of a file, saved so that a run killed at any moment goes
// on with the same bits.

#include "commands.hpp"
#include "data_order.hpp"
#include "machine.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "stop.hpp"
#include "train_state.hpp"

#include <longstraw/models/checksum.hpp>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <unistd.h>

namespace longstraw::program {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

struct train_options {
  fs::path model, data, out;
  std::optional<index> epochs, steps;
  index save_every = 1, keep = 2, seed = 0;
  bool shuffle = false, restart_moments = false;
  std::string resume = "auto";
  training_options training;
  machine_options machine;
};

/// The reference model stays in memory: it is needed at every step.
struct reference_model {
  reference_model(const train_options& o, const process_memory& memory)
      : loaded(o.training.reference, models::parameter_use::forward, o.machine, *memory.budget,
               "reference "),
        runtime(reference_options(o), loaded.model, memory.budget) {}
  static actors::runtime_options reference_options(const train_options& o) {
    actors::runtime_options options = o.machine.runtime();
    options.arena_prefix = "reference ";  // its workspace stays beside that of the policy
    return options;
  }

  loaded_model loaded;
  actors::runtime runtime;
};

class training_run {
 public:
  training_run(const train_options& o, const training_settings& settings)
      : o_(o),
        settings_(settings),
        memory_(o.machine.memory),
        policy_(o.model, models::parameter_use::train, o.machine, *memory_.budget),
        groups_(o.data, rules_of(policy_.files, settings.scale)),
        order_(groups_.size(), o.shuffle, static_cast<std::uint64_t>(o.seed)),
        trace_(o.machine.trace) {
    if (!o.training.reference.empty() && settings.loss.beta != 0) {
      reference_.emplace(o, memory_);
      check_vocabularies(reference_->loaded.files, policy_.files);
    }
    actors::runtime_options options = o.machine.runtime();
    options.trace_file = trace_.partial();
    runtime_.emplace(std::move(options), policy_.model, memory_.budget);
    total_ = groups_.size() * o.epochs.value_or(1);
    if (o.steps) total_ = o.epochs ? std::min(*o.steps, total_) : *o.steps;
  }

  int run() {
    check_data();
    if (o_.resume == "required" && !fs::exists(o_.out / "journal.jsonl"))
      fail(errc::bad_input, "--resume is required, but {} holds no checkpoint", o_.out.string());
    train_folder folder(o_.out, identity());
    const auto saved =
        folder.resume(*policy_.parameters,
                      o_.restart_moments ? damaged_moments::restart : damaged_moments::refuse);
    if (!saved && o_.resume == "required")
      fail(errc::bad_input, "--resume is required, but {} holds no checkpoint", o_.out.string());
    if (saved) at_ = *saved;
    saved_step_ = saved ? saved->step : -1;
    folder.begin(at_, o_.keep);
    if (saved) progress_bar().line(fmt::format("going on after step {} of {}", at_.step, total_));
    try {
      while (at_.step < total_) {
        if (stop_signal() != 0) fail(errc::cancelled, "no step was running");
        one_step(folder);
        if (at_.step % o_.save_every == 0 || at_.step == total_) save(folder);
      }
    } catch (const error& e) {
      save_before_ending(folder, e);
    }
    finish();
    progress_bar().line(fmt::format(
        "{} of {} steps done, {} committed, {} skipped; the model is {}", at_.step, total_,
        at_.optimizer_steps, at_.skipped, (folder.checkpoint(at_.step) / "model").string()));
    return 0;
  }

 private:
  /// All that decides the bits of the result.
  json identity() const {
    json all = as_json(settings_);
    all["model"] = models::checksum_of(policy_.parameters->weights());
    all["data"] = models::checksum_of_file(o_.data);
    all["reference"] = reference_
                           ? json(models::checksum_of(reference_->loaded.parameters->weights()))
                           : json(nullptr);
    all["shuffle"] = o_.shuffle;
    all["seed"] = o_.seed;
    all["chunk_tokens"] = o_.machine.chunk_tokens;
    all["page_tokens"] = o_.machine.page_tokens;
    return all;
  }

  /// All that would end the run at a later group ends it here: faults of the data, missing
  /// reference log-probabilities, a budget too small for the longest group.
  void check_data() {
    index longest = 0, tokens = -1;
    check_groups(groups_, 0, groups_.size(), [&](const models::group& g, index number) {
      if (!reference_) check_reference(g, settings_);
      index most = 0;
      for (const models::response& r : g.responses)
        most = std::max(most, static_cast<index>(r.tokens.size()));
      most += static_cast<index>(g.prompt.size());
      if (most > tokens) longest = number, tokens = most;
    });
    models::group g = groups_.read(longest);
    if (reference_)  // the plan asks only whether they are there
      for (models::response& r : g.responses) r.ref_logps.assign(r.tokens.size(), 0.0f);
    runtime_->check_step(g, settings_.step(1));
  }

  void one_step(train_folder& folder) {
    const index number = order_.group_at(at_.step);
    const index epoch = order_.epoch_of(at_.step);
    models::group g = groups_.read(number);
    progress_bar().set_title(fmt::format("step {}/{}", at_.step + 1, total_));
    progress_bar().set_range(share(), 1.0 / static_cast<double>(total_));
    if (reference_) score_reference(g, reference_->runtime, settings_.loss.temperature);
    check_reference(g, settings_);
    const actors::step_outcome o = runtime_->step(g, settings_.step(at_.moment_steps + 1));
    ++at_.step;
    if (o.skipped) ++at_.skipped;
    if (o.committed) ++at_.optimizer_steps, ++at_.moment_steps;
    folder.add_metrics(metrics(o, g, number, epoch));
    show(o, g);
  }

  json metrics(const actors::step_outcome& o, const models::group& g, index number,
               index epoch) const {
    return {
        {"step", at_.step},
        {"epoch", epoch},
        {"group", number},
        {"loss", o.loss},
        {"policy_loss", o.policy_loss},
        {"kl", o.kl},
        {"clip_fraction", o.clip_fraction},
        {"entropy", o.entropy},
        {"ratio_min", o.ratio_min},
        {"ratio_max", o.ratio_max},
        {"grad_norm", o.grad_norm},
        {"reward_mean", reward_mean(g)},
        {"committed", o.committed},
        {"skipped", o.skipped},
        {"optimizer_step", at_.optimizer_steps},
        {"skipped_total", at_.skipped},
        {"tokens", {{"prompt", o.prompt_tokens}, {"response", o.response_tokens}}},
        {"tokens_per_second", tokens_per_second(o)},
        {"seconds",
         {{"capture", o.seconds.capture},
          {"score", o.seconds.score},
          {"replay", o.seconds.replay},
          {"sweep", o.seconds.sweep},
          {"commit", o.seconds.commit},
          {"step", o.seconds.step}}},
    };
  }

  double share() const { return static_cast<double>(at_.step) / static_cast<double>(total_); }

  static double tokens_per_second(const actors::step_outcome& o) {
    const double tokens = static_cast<double>(o.prompt_tokens + o.response_tokens);
    return o.seconds.step > 0 ? tokens / o.seconds.step : 0;
  }

  void show(const actors::step_outcome& o, const models::group& g) const {
    const std::string figures = o.skipped
                                    ? fmt::format("skipped: {}", skip_reason(g))
                                    : fmt::format("loss {:.5g}  reward {:.4g}  {:.0f} tokens/s",
                                                  o.loss, reward_mean(g), tokens_per_second(o));
    progress_bar().set_note(figures);
    progress_bar().show(share(), "");
    if (::isatty(STDERR_FILENO) != 1)
      progress_bar().line(fmt::format("step {}/{}  {}", at_.step, total_, figures));
  }

  void save(train_folder& folder) {
    folder.save(at_, policy_.files, *policy_.parameters, o_.machine.ranks, o_.keep);
    saved_step_ = at_.step;
  }

  /// The parameters are those of the last committed step: worth a save, whatever ended the run.
  [[noreturn]] void save_before_ending(train_folder& folder, const error& cause) {
    // Weights that an update left half-way are of no step.
    const bool whole = cause.code() != errc::half_updated;
    if (whole && saved_step_ != at_.step && at_.step > 0) {
      try {
        save(folder);
      } catch (const error& second) {
        spdlog::get("longstraw")->error("the state could not be saved: {}", second.what());
      }
    }
    const std::string where =
        saved_step_ > 0
            ? fmt::format("step {} is saved in {} and the same command goes on from there",
                          saved_step_, folder.checkpoint(saved_step_).string())
            : "no step is saved";
    publish_timeline();
    if (cause.code() == errc::cancelled)
      fail(errc::cancelled, "{} of {} steps done; {}", at_.step, total_, where);
    fail(cause.code(), "{} ({})", cause.what(), where);
  }

  void finish() {
    runtime_->close_timeline();
    trace_.publish();
    progress_bar().clear();
  }

  /// The timeline of a run that failed shows why. That it cannot be completed or written is not
  /// what the run ends with.
  void publish_timeline() {
    const auto attempt = [](auto&& act) {
      try {
        act();
      } catch (const std::exception& e) {
        spdlog::get("longstraw")->error("the timeline is incomplete: {}", e.what());
      }
    };
    progress_bar().clear();
    if (o_.machine.trace.empty()) return;
    attempt([&] { runtime_->close_timeline(); });
    attempt([&] { trace_.publish(); });
  }

  const train_options& o_;
  const training_settings& settings_;
  const process_memory memory_;
  const loaded_model policy_;
  const models::group_file groups_;
  data_order order_;
  trace_file trace_;
  std::optional<reference_model> reference_;
  std::optional<actors::runtime> runtime_;
  index total_ = 0;
  run_position at_;
  index saved_step_ = -1;
};

int run_train(const train_options& o) {
  const training_settings settings = o.training.settings();
  check_beside_results(o.machine.trace, "--trace", o.out,
                       {"journal.jsonl", "metrics.jsonl", "run.json", ".lock", "checkpoint-"});
  return training_run(o, settings).run();
}

}  // namespace

void add_train(command_line& line) {
  const auto o = std::make_shared<train_options>();
  options opts = line.command("train",
                              "GRPO steps over many groups, saved as they go. The same command on "
                              "the same --out goes on after the last save.",
                              [o] { return run_train(*o); });
  constexpr index most = index{1} << 40;
  opts.section("Files");
  opts.path("--model", o->model, "checkpoint folder to start from", need::required);
  opts.path("--data", o->data, "JSON lines, a group of prompt, responses and rewards each",
            need::required);
  opts.path("--out", o->out, "folder for checkpoint-N/, journal.jsonl and metrics.jsonl",
            need::required);
  opts.section("Run");
  opts.whole("--epochs", o->epochs, 1, most, "1, or what --steps needs", "passes over the data");
  opts.whole("--steps", o->steps, 1, most, "all groups of all epochs",
             "groups to take in all, one a step");
  opts.whole("--save-every", o->save_every, 1, most, "steps between two saves");
  opts.whole("--keep", o->keep, 1, most, "saves that are kept");
  opts.choice("--resume", o->resume, {"auto", "required"},
              "required: it is an error if there is nothing to go on from");
  opts.toggle("--restart-moments", o->restart_moments,
              "if the saved moments are damaged and the weights are not, go on with new moments");
  opts.toggle("--shuffle", o->shuffle, "another order of the groups in each epoch, from --seed");
  opts.whole("--seed", o->seed, 0, std::numeric_limits<index>::max(), "seed of --shuffle");
  o->training.declare(opts);
  o->machine.declare(opts);
}

}  // namespace longstraw::program
