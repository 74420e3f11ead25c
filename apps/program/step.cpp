// longstraw step: one transaction on one group.

#include "commands.hpp"
#include "machine.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "tensors.hpp"
#include "text_output.hpp"
#include "training.hpp"

#include <longstraw/models/files.hpp>

#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

namespace longstraw::program {
namespace {

namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;

constexpr index first_update = 1;
constexpr std::uint64_t report_bytes_max = std::uint64_t{16} << 20;

struct step_options {
  fs::path model, data, out, report;
  index group = 0;
  index seed = 0;
  bool print_schedule = false;
  bool separate_score = false;
  training_options training;
  machine_options machine;
};

double since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

/// The reference model lives only as long as its scores take.
double add_reference(models::group& g, const step_options& o, const models::checkpoint& policy,
                     double temperature, memory::budget& budget) {
  const auto begin = clock::now();
  progress_bar().set_title("reference");
  const loaded_model reference(o.training.reference, models::parameter_use::forward, o.machine,
                               budget, "reference ");
  check_vocabularies(reference.files, policy);
  actors::runtime runtime(o.machine.runtime(), reference.model, budget.shared_from_this());
  score_reference(g, runtime, temperature);
  return since(begin);
}

/// An older result is replaced as a whole: it must hold what its report lists and nothing else, and
/// no input of this step.
void check_replaced(const step_options& o) {
  for (const fs::path& input : {o.model, o.data, o.training.reference})
    if (!inside(input, o.out, "x").empty())
      fail(errc::bad_input, "{} lies in --out {}, which is replaced as a whole", input.string(),
           o.out.string());
  const fs::path report = o.out / "report.json";
  if (!fs::exists(report)) return;
  const nlohmann::json older =
      nlohmann::json::parse(models::read_text(report, report_bytes_max), nullptr, false);
  const auto files = older.is_object() ? older.value("files", nlohmann::json()) : nlohmann::json();
  for (const auto& entry : fs::directory_iterator(o.out)) {
    const std::string name = entry.path().filename().string();
    if (std::find(files.begin(), files.end(), name) == files.end())
      fail(errc::bad_input, "--out {} holds {}, which no step wrote there, and is not replaced",
           o.out.string(), name);
  }
}

/// --report replaces an older report, nothing else.
void check_report_replaced(const fs::path& report) {
  check_output_file(report, "--report");
  std::error_code failure;
  if (!fs::exists(report, failure) || fs::is_empty(report, failure)) return;
  const nlohmann::json older =
      fs::file_size(report, failure) > report_bytes_max
          ? nlohmann::json()
          : nlohmann::json::parse(models::read_text(report, report_bytes_max), nullptr, false);
  if (!older.is_object() || !older.contains("versions"))
    fail(errc::bad_input, "--report {} holds something that is no report and is not replaced",
         report.string());
}

void write_text(const fs::path& place, const std::string& text) {
  fs::create_directories(place.parent_path());
  models::write_all(models::open_for_writing(place).get(), place, text);
}

void write_results(const step_options& o, const loaded_model& policy,
                   const actors::step_outcome& outcome, nlohmann::ordered_json about,
                   trace_file& trace) {
  std::string report;
  models::replace_folder(o.out, [&](const fs::path& fresh) {
    if (!outcome.skipped) {
      write_gradients(fresh / "gradients.safetensors", *policy.parameters);
      write_logprobs(fresh / "logprobs.safetensors", outcome.responses);
      fs::create_directory(fresh / "model");
      policy.files.write_files(fresh / "model", *policy.parameters);
    }
    const fs::path trace_place = inside(o.machine.trace, o.out, fresh);
    if (!trace_place.empty()) trace.publish(trace_place);
    const fs::path other = inside(o.report, o.out, fresh);
    if (!other.empty()) write_text(other, "");
    write_text(fresh / "report.json", "");

    // Written last, because it lists all that lies beside it.
    for (const auto& entry : fs::directory_iterator(fresh))
      about["files"].push_back(entry.path().filename().string());
    report = about.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    write_text(fresh / "report.json", report);
    if (!other.empty()) write_text(other, report);
  });
  if (!o.report.empty() && inside(o.report, o.out, ".").empty())
    models::replace_file(o.report, report);
  if (inside(o.machine.trace, o.out, ".").empty()) trace.publish();
}

/// A step that fails leaves its timeline, which says what it waited for, if its place is not in the result.
actors::step_outcome step_or_timeline(actors::runtime& runtime, const models::group& g,
                                      const actors::step_settings& step, const step_options& o,
                                      trace_file& trace) {
  try {
    return runtime.step(g, step);
  } catch (const error&) {
    try {
      runtime.close_timeline();
      if (inside(o.machine.trace, o.out, ".").empty()) trace.publish();
    } catch (const std::exception& second) {
      spdlog::get("longstraw")->warn("there is no timeline: {}", second.what());
    }
    throw;
  }
}

int run_step(const step_options& o) {
  const auto begin = clock::now();
  const training_settings settings = o.training.settings();
  const actors::step_settings step = settings.step(first_update, o.separate_score);
  if (!o.print_schedule) {
    if (o.out.empty()) throw usage_error("--out is required");
    check_output_folder(o.out, "report.json");
    check_replaced(o);
    check_beside_results(o.machine.trace, "--trace", o.out,
                         {"gradients.safetensors", "logprobs.safetensors", "model", "report.json"});
    check_beside_results(o.report, "--report", o.out,
                         {"gradients.safetensors", "logprobs.safetensors", "model"});
    if (!o.report.empty()) check_report_replaced(o.report);
  }
  trace_file trace(o.print_schedule ? fs::path() : o.machine.trace);
  const process_memory memory(o.machine.memory);

  const models::checkpoint files(o.model);
  models::group g = models::group_file(o.data, rules_of(files, settings.scale)).read(o.group);

  double reference_seconds = 0;
  if (!o.training.reference.empty() && settings.loss.beta != 0 && !o.print_schedule)
    reference_seconds = add_reference(g, o, files, settings.loss.temperature, *memory.budget);

  if (!o.print_schedule)
    check_reference(g, settings);
  else if (!o.training.reference.empty())  // the schedule asks only whether they are there
    for (models::response& r : g.responses) r.ref_logps.assign(r.tokens.size(), 0.0f);

  const loaded_model policy(o.model, models::parameter_use::train_once, o.machine, *memory.budget);
  actors::runtime_options runtime_options = o.machine.runtime();
  runtime_options.trace_file = trace.partial();
  actors::runtime runtime(std::move(runtime_options), policy.model, memory.budget);
  progress_bar().set_title("step");

  if (o.print_schedule) {
    const messages::schedule plan = runtime.step_schedule(g, step);
    text_output out({});
    std::string text;
    for (std::size_t n = 0; n < plan.entries.size(); ++n)
      text += messages::to_string(plan.entries[n], static_cast<index>(n)) + "\n";
    out.write(text);
    return 0;
  }

  const double processor_before = processor_seconds();
  const actors::step_outcome outcome = step_or_timeline(runtime, g, step, o, trace);
  const double step_processor_seconds = processor_seconds() - processor_before;
  runtime.close_timeline();
  progress_bar().clear();
  const step_report report{outcome,
                           g,
                           settings,
                           o.machine,
                           *memory.budget,
                           o.seed,
                           since(begin),
                           reference_seconds,
                           step_processor_seconds};
  write_results(o, policy, outcome, as_json(report), trace);
  if (outcome.skipped)
    progress_bar().line(
        fmt::format("{} was skipped: {}; the parameters are unchanged", g.name, skip_reason(g)));
  else
    progress_bar().line(
        fmt::format("loss {:.6g}, grad norm {:.6g}, {} prompt and {} response tokens in {:.4f} s; "
                    "results in {}",
                    outcome.loss, outcome.grad_norm, outcome.prompt_tokens, outcome.response_tokens,
                    outcome.seconds.step, o.out.string()));
  return 0;
}

}  // namespace

void add_step(command_line& line) {
  const auto o = std::make_shared<step_options>();
  options opts = line.command("step",
                              "One GRPO step on one group of responses: gradients, "
                              "log-probabilities, the updated checkpoint and a report.",
                              [o] { return run_step(*o); });
  opts.section("Files");
  opts.path("--model", o->model, "checkpoint folder (config.json and safetensors)", need::required);
  opts.path("--data", o->data,
            "JSON lines, a group of prompt, responses and rewards each; or a batch.safetensors",
            need::required);
  opts.path("--out", o->out,
            "folder for gradients.safetensors, logprobs.safetensors, model/ and report.json; "
            "replaced as a whole");
  opts.whole("--group", o->group, 0, std::numeric_limits<index>::max(),
             "which group of --data, from 0");
  opts.path("--report", o->report, "write the report to this file too");
  opts.toggle("--print-schedule", o->print_schedule,
              "print the step's schedule, a line an operation, and run nothing");
  opts.toggle("--separate-score", o->separate_score,
              "score the responses before the replay, which otherwise gives the old "
              "log-probabilities too, with the same bits");
  o->training.declare(opts);
  o->machine.declare(opts);
  opts.whole("--seed", o->seed, 0, std::numeric_limits<index>::max(),
             "noted in the report; a step draws no random number");
}

}  // namespace longstraw::program
