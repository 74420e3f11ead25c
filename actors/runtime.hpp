#pragma once
// The library's front door: a model on its ranks, and the jobs that run on it. Blocking calls for
// programs; everything behind them is actors. The README shows a whole program.
//
//   auto budget = memory::budget::make(0);
//   models::checkpoint files("model");
//   auto store = std::make_shared<models::parameter_store>(
//       files.layout(), models::parameter_use::train, *budget);
//   files.read_weights(*store);
//   auto model = std::make_shared<models::language_model>(files.config(), store);
//   actors::runtime runtime({}, model, budget);
//   auto outcome = runtime.step(group, {});

#include <longstraw/actors/environment.hpp>
#include <longstraw/actors/plan.hpp>
#include <longstraw/memory/arena.hpp>
#include <longstraw/messages/job.hpp>

#include <filesystem>
#include <functional>
#include <memory>

namespace longstraw::actors {

struct runtime_options {
  /// Ranks in this process, 1 to ranks_max: each has its own page store, lane and shard of the optimizer. Log-
  /// probabilities and gradients do not depend on it beyond rounding.
  index ranks = 1;
  static constexpr index ranks_max = messages::ranks_max;
  /// How often a step may be tried in all when a rank comes late to an exchange: gradients begin anew, the captured
  /// prompt is kept.
  index attempts = 2;
  int threads = 1;            ///< compute threads of each rank's lane
  index chunk_tokens = 1024;  ///< prompt tokens that run through the layers at once
  index page_tokens = 256;    ///< tokens of a page of conditional state
  std::string arena_prefix;   ///< in front of arena names; two runtimes on one budget need two
  std::filesystem::path trace_file;     ///< empty: no timeline
  std::shared_ptr<spdlog::logger> log;  ///< none: silent
  deadlines limits;
  std::shared_ptr<message_faults> faults;  ///< tests only
  /// Called for every record of the timeline, on the tracer's thread; needs no file.
  std::function<void(const messages::timeline_record&, const std::vector<std::string>& tracks)>
      on_record;
  /// Called about ten times a second while a job runs, on the caller's thread. Returning false
  /// stops the job.
  std::function<bool(const messages::job&)> on_progress;
};

struct step_settings {
  models::loss_settings loss;
  messages::optimizer_settings optimizer;
  index optimizer_step = 1;  ///< from 1
  messages::gradient_mode gradient = messages::gradient_mode::frozen;
  messages::checkpointing checkpoint = messages::checkpointing::none;
  /// Old log-probabilities that are not given are those of the current parameters. A replay
  /// computes them anyway, with the arithmetic of scoring and hence the same bits, so by default
  /// they are taken from there. true: a scoring pass of its own comes first.
  bool separate_score = false;
};

/// Seconds by phase; `step` covers all of the job.
struct job_seconds {
  double capture = 0, score = 0, replay = 0, sweep = 0, decode = 0, commit = 0, step = 0;
};

struct step_outcome {
  bool committed = false;
  /// The group had nothing to learn from: advantages all zero and beta 0, or no loss token. Nothing
  /// ran.
  bool skipped = false;
  double loss = 0, policy_loss = 0;
  double kl = 0;             ///< mean over loss tokens of the k3 estimator; 0 if beta is 0
  double clip_fraction = 0;  ///< share of loss tokens that were clipped
  double entropy = 0;        ///< mean over loss tokens
  double ratio_min = 0, ratio_max = 0;
  double grad_norm = 0;
  index prompt_tokens = 0, response_tokens = 0, loss_tokens = 0;
  index replayed = 0;  ///< responses
  job_seconds seconds;
  std::vector<messages::response_result> responses;
};

struct score_outcome {
  std::vector<messages::response_result> responses;
  job_seconds seconds;
};

struct generate_settings {
  kernels::sampling_settings sampling;
  index samples = 1;
  index max_tokens = 64;
  std::uint64_t seed = 0;
  bool stop_at_end_of_sequence = true;
};
struct generate_outcome {
  std::vector<std::vector<token_id>> samples;
  job_seconds seconds;
};

struct job_origin;

class runtime {
 public:
  /// The model's parameters must be in place. errc::over_budget if the lane's scratch memory does
  /// not fit.
  runtime(runtime_options options, std::shared_ptr<const models::language_model> model,
          std::shared_ptr<memory::budget> budget);
  /// Ends all actors and waits for them.
  ~runtime();
  runtime(const runtime&) = delete;
  runtime& operator=(const runtime&) = delete;

  /// One transaction on one group. Missing old log-probabilities are those of the current
  /// parameters. With beta not 0, ref_logps must be there. On an error the parameters are as before, with two
  /// exceptions: errc::half_updated, and what on_progress throws, which comes out after the job, which may have committed.
  step_outcome step(const models::group& g, const step_settings& s);
  /// Log-probabilities and entropies of all responses; parameters unchanged.
  score_outcome score(const models::group& g, double temperature);
  /// Samples from one captured prompt.
  generate_outcome generate(const models::group& prompt, const generate_settings& s);

  /// The schedule that step would run, without running it.
  messages::schedule step_schedule(const models::group& g, const step_settings& s) const;
  /// What that step would draw from the budget, by arena.
  memory_plan step_plan(const models::group& g, const step_settings& s) const;
  /// Throws errc::over_budget if that step would not fit the budget.
  void check_step(const models::group& g, const step_settings& s) const;

  /// Completes the timeline file and ends on_record; errc::io_failed if it could not be written.
  void close_timeline();

  const models::language_model& model() const { return *model_; }

 private:
  struct actors;
  job_origin origin() const;  // of the next job
  messages::job_ptr make_step(const models::group& g, const step_settings& s) const;
  messages::phase_seconds run(const messages::job_ptr& j);

  runtime_options options_;
  std::shared_ptr<const models::language_model> model_;
  std::shared_ptr<memory::budget> budget_;
  std::unique_ptr<actors> actors_;
  std::string broken_;  // why there are no actors any more
  mutable index jobs_ = 0;
  index policy_version_ = 0;  // commits so far
};

}  // namespace longstraw::actors
