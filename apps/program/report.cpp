#include "report.hpp"

#include "versions.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <sys/resource.h>

namespace longstraw::program {

using json = nlohmann::ordered_json;

double processor_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double reward_mean(const models::group& g) {
  double sum = 0;
  for (const models::response& r : g.responses) sum += r.reward;
  return g.responses.empty() ? 0 : sum / static_cast<double>(g.responses.size());
}

std::string skip_reason(const models::group& g) {
  const bool masked = std::all_of(g.responses.begin(), g.responses.end(),
                                  [](const auto& r) { return r.loss_tokens == 0; });
  return masked ? "no response has a token that the loss covers"
                : "all advantages are zero and beta is 0: there is no signal";
}

json as_json(const step_report& r) {
  const actors::step_outcome& o = r.outcome;
  json peaks = json::object();
  for (const auto& u : r.budget.report()) peaks[u.name] = u.peak_bytes;
  json versions_used = json::object();
  for (const auto& [name, version] : versions()) versions_used[name] = version;
  const actors::job_seconds& s = o.seconds;
  return {
      {"loss", o.loss},
      {"policy_loss", o.policy_loss},
      {"kl", o.kl},
      {"clip_fraction", o.clip_fraction},
      {"grad_norm", o.grad_norm},
      {"committed", o.committed},
      {"skipped", o.skipped},
      {"skip_reason", o.skipped ? json(skip_reason(r.data)) : json(nullptr)},
      {"tokens",
       {{"prompt", o.prompt_tokens}, {"response", o.response_tokens}, {"loss", o.loss_tokens}}},
      {"seconds",
       {{"capture", s.capture},
        {"score", s.score},
        {"replay", s.replay},
        {"sweep", s.sweep},
        {"commit", s.commit},
        {"step", s.step},
        {"reference", r.reference_seconds},
        {"total", r.total_seconds}}},
      {"processor_seconds", processor_seconds()},
      {"step_processor_seconds", r.step_processor_seconds},
      {"peak_bytes", peaks},
      {"peak_bytes_total", r.budget.peak_bytes()},
      {"process_peak_bytes", memory::process_peak_bytes()},
      {"trace", r.machine.trace.empty() ? json(nullptr) : json(r.machine.trace.string())},
      {"versions", versions_used},
      {"group", r.data.name},
      {"responses", r.data.responses.size()},
      {"replayed", o.replayed},
      {"reward_mean", reward_mean(r.data)},
      {"ratio_min", o.ratio_min},
      {"ratio_max", o.ratio_max},
      {"entropy", o.entropy},
      {"gradient", messages::to_string(r.settings.gradient)},
      {"checkpoint", messages::to_string(r.settings.checkpoint)},
      {"ranks", r.machine.ranks},
      {"threads", r.machine.threads()},
      {"seed", r.seed},
      {"chunk_tokens", r.machine.chunk_tokens},
      {"page_tokens", r.machine.page_tokens},
      {"memory_limit_bytes", r.machine.memory},
      {"settings", as_json(r.settings)},
  };
}

}  // namespace longstraw::program
