#include "plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace longstraw::testing {

namespace {

constexpr std::array losable{
    "phase_done",    "response_replayed", "run_phase",      "step_begun",
    "vote",          "step_committed",    "fault",          "watchdog_tick",
    "entry_done",    "entry_failed",      "operation_done", "operation_failed",
    "exchanged",     "exchange_missed",   "run_entry",      "submit_operation",
    "begin_step",    "prepare_step",      "commit_step",    "contribute",
    "exchange_tick", "begin_exchanges",   "flush_timeline", "cancel_job",
    "abort_step"};

constexpr std::array any_message{"begin_lane_job", "lane_ready",   "rewind_job",    "job_rewound",
                                 "release_job",    "job_released", "lease_pages",   "pages_leased",
                                 "return_pages",   "drop_pages",   "pages_dropped", "reserve_pages",
                                 "pages_reserved"};

job_shape random_job(seeded_numbers& random) {
  job_shape j;
  const auto token = [&] { return static_cast<token_id>(random.below(counting_vocabulary)); };
  for (index t = random.between(1, 12); t > 0; --t) j.group.prompt.push_back(token());
  const index responses = random.between(1, 4);
  for (index r = 0; r < responses; ++r) {
    models::response response;
    for (index t = random.between(1, 5); t > 0; --t) response.tokens.push_back(token());
    const auto tokens = static_cast<index>(response.tokens.size());
    response.loss_tokens = tokens;
    response.advantage = random.chance(2) ? 1.0 : -2.0;
    if (r > 0 && random.chance(6)) response.loss_tokens = random.below(tokens + 1);
    if (r > 0 && random.chance(6)) response.advantage = 0;
    j.group.responses.push_back(std::move(response));
  }
  j.group.name = "a group";
  if (random.chance(2)) j.settings.gradient = messages::gradient_mode::full;
  if (random.chance(2)) j.settings.checkpoint = messages::checkpointing::layer;
  j.settings.separate_score = random.chance(2);
  j.settings.optimizer.adamw.learning_rate = 1;
  j.settings.optimizer.adamw.weight_decay = 0;
  return j;
}

}  // namespace

bool may_be_lost(const std::string& message) {
  return std::ranges::find(losable, message) != losable.end();
}

const char* to_string(trouble t) {
  constexpr const char* names[] = {
      "none",   "starve", "clock",           "drop",  "kill", "exception",
      "poison", "update", "short_of_memory", "cancel"};
  return names[static_cast<int>(t)];
}

simulation_plan plan_of_seed(std::uint64_t seed) {
  seeded_numbers random(seed);
  simulation_plan p;
  p.seed = seed;
  p.ranks = random.between(1, 4);
  p.chunk_tokens = random.between(1, 6);
  p.page_tokens = random.between(1, 5);
  p.attempts = random.between(1, 3);
  for (index l = random.between(1, 3); l > 0; --l)
    p.layers.push_back(random.chance(2) ? counting_kind::sum : counting_kind::scan);
  p.exact_budget = random.chance(3);
  for (job_shape& j : p.jobs) j = random_job(random);
  p.by_priority = random.chance(2);
  p.in_job = random.chance(4) ? 1 : 0;

  constexpr trouble weighted[] = {
      trouble::none,   trouble::starve,    trouble::clock,  trouble::clock,
      trouble::clock,  trouble::drop,      trouble::drop,   trouble::drop,
      trouble::drop,   trouble::kill,      trouble::kill,   trouble::kill,
      trouble::kill,   trouble::exception, trouble::poison, trouble::short_of_memory,
      trouble::cancel, trouble::update};
  p.what = weighted[random.below(std::size(weighted))];
  p.number = random.any_size(3000);
  p.also_clock = random.chance(6);
  switch (p.what) {
    case trouble::drop:
      p.of_message = losable[static_cast<std::size_t>(random.below(losable.size()))];
      p.number = random.any_size(300);
      break;
    case trouble::kill: {
      const char* roles[] = {"lane", "page store", "optimizer", "passes", "layer 0", "layer 1"};
      const index of = random.below(10);
      if (of == 0)
        p.of_actor = "supervisor";
      else if (of == 1)
        p.of_actor = "collective";
      else if (of < 8)
        p.of_actor = fmt::format("rank {} {}", random.below(p.ranks), roles[random.below(6)]);
      else if (of == 8)
        p.of_message = losable[static_cast<std::size_t>(random.below(losable.size()))];
      else
        p.of_message = any_message[static_cast<std::size_t>(random.below(any_message.size()))];
      p.number = random.any_size(1000);
      break;
    }
    case trouble::exception:
    case trouble::poison:
      p.number = random.any_size(400);
      break;
    case trouble::update:
      p.jobs[p.in_job].settings.optimizer.adamw.learning_rate = 1e300;
      break;
    default:
      break;
  }
  return p;
}

std::string to_string(const simulation_plan& p) {
  std::string line =
      fmt::format("ranks {}, chunk {}, page {}, attempts {}, {} budget, {}, layers", p.ranks,
                  p.chunk_tokens, p.page_tokens, p.attempts, p.exact_budget ? "exact" : "open",
                  p.by_priority ? "priorities" : "equal chances");
  for (const counting_kind k : p.layers) line += k == counting_kind::sum ? " sum" : " scan";
  for (const job_shape& j : p.jobs) {
    line += fmt::format("\n  prompt {}, responses", j.group.prompt.size());
    for (const auto& r : j.group.responses)
      line += fmt::format(" {}({} x {})", r.tokens.size(), r.loss_tokens, r.advantage);
    line += fmt::format(", {}, checkpoint {}{}",
                        j.settings.gradient == messages::gradient_mode::full ? "full" : "frozen",
                        j.settings.checkpoint == messages::checkpointing::layer ? "layer" : "none",
                        j.settings.separate_score ? ", separate score" : "");
  }
  line += fmt::format("\n  trouble {} in job {}", to_string(p.what), p.in_job + 1);
  if (!p.of_actor.empty()) line += " of " + p.of_actor;
  if (!p.of_message.empty()) line += " at " + p.of_message;
  return line + fmt::format(", number {}{}", p.number, p.also_clock ? ", time passes" : "");
}

}  // namespace longstraw::testing
