#include "machine.hpp"

#include "output.hpp"
#include "progress.hpp"
#include "stop.hpp"

#include <longstraw/actors/plan.hpp>
#include <longstraw/models/files.hpp>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <map>
#include <thread>
#include <unistd.h>

namespace longstraw::program {

namespace {
constexpr index threads_max = 256;
constexpr index tokens_max = index{1} << 40;
}  // namespace

index machine_options::threads() const {
  const auto cores = static_cast<index>(std::thread::hardware_concurrency());
  return threads_given.value_or(std::clamp<index>(cores / ranks, 1, threads_max));
}

void machine_options::declare(options& o, ranks_allowed r) {
  o.section("Machine");
  if (r == ranks_allowed::many) {
    o.whole("--ranks", ranks, 1, actors::runtime_options::ranks_max,
            "ranks in this process: tokens, heads, pages and optimizer state are split over them");
    o.number("--collective-timeout", collective_timeout, {0.001, 86400},
             "seconds that ranks wait for each other before the step is tried once more, from its "
             "captured prompt, and then given up; at once while the prompt is captured");
  }
  o.whole("--threads", threads_given, 1, threads_max, "cores / ranks",
          "compute threads of a rank; the result does not depend on them");
  o.bytes("--memory", memory,
          "hard budget for all memory, such as 512MiB or 8GiB; checked before a step starts");
  o.whole("--chunk-tokens", chunk_tokens, 1, tokens_max,
          "prompt tokens that run through the layers at once");
  o.whole("--page-tokens", page_tokens, 1, tokens_max,
          "tokens of a page of the prompt's captured state");
  o.path("--trace", trace, "write a timeline of all messages and operations (open it in Perfetto)");
}

actors::runtime_options machine_options::runtime() const {
  actors::runtime_options r;
  r.ranks = ranks;
  r.limits.collective =
      std::chrono::milliseconds(static_cast<std::int64_t>(collective_timeout * 1000));
  r.threads = static_cast<int>(threads());
  r.chunk_tokens = chunk_tokens;
  r.page_tokens = page_tokens;
  r.log = spdlog::get("longstraw");
  r.on_progress = [](const messages::job& j) { return progress_bar().look(j); };
  return r;
}

process_memory::process_memory(std::size_t limit_bytes)
    : budget(memory::budget::make(limit_bytes)) {
  const std::size_t held = memory::process_resident_bytes();
  if (limit_bytes != 0 && held > limit_bytes)
    fail(errc::over_budget, "the program takes {} before it loads a model, but --memory is {}",
         memory::readable_bytes(held), memory::readable_bytes(limit_bytes));
  program = budget->named(actors::arena_name::program)->allocate(held);
}

namespace {

void check_room(const models::checkpoint& files, models::parameter_use use,
                const machine_options& machine, const memory::budget& budget,
                const std::string& prefix) {
  namespace name = actors::arena_name;
  if (budget.limit_bytes() == 0) return;
  std::map<std::string, std::size_t> needs;
  for (const auto& u : budget.report())
    if (u.current_bytes > 0) needs[u.name] = u.current_bytes;
  const auto array = static_cast<std::size_t>(files.layout().total()) * sizeof(float);
  const auto ranks = static_cast<std::size_t>(machine.ranks);
  needs[prefix + name::parameters] += array;
  if (use != models::parameter_use::forward) needs[prefix + name::gradients] += ranks * array;
  if (use == models::parameter_use::train) needs[prefix + name::moments] += 2 * array;
  needs[prefix + name::scratch] += ranks * static_cast<std::size_t>(machine.threads()) *
                                   kernels::executor::default_scratch_bytes;
  std::size_t sum = 0;
  std::string parts;
  for (const auto& [what, bytes] : needs) {
    sum += bytes;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", what, memory::readable_bytes(bytes));
  }
  if (sum > budget.limit_bytes())
    fail(errc::over_budget, "{} needs {} before its first token ({}), but --memory is {}",
         files.folder().string(), memory::readable_bytes(sum), parts,
         memory::readable_bytes(budget.limit_bytes()));
}

std::shared_ptr<models::parameter_store> read_parameters(const models::checkpoint& files,
                                                         models::parameter_use use,
                                                         const machine_options& machine,
                                                         memory::budget& budget,
                                                         const std::string& prefix) {
  check_room(files, use, machine, budget, prefix);
  auto store = std::make_shared<models::parameter_store>(files.layout(), use, budget, prefix);
  files.read_weights(*store);
  return store;
}

}  // namespace

loaded_model::loaded_model(const std::filesystem::path& folder, models::parameter_use use,
                           const machine_options& machine, memory::budget& budget,
                           const std::string& prefix)
    : files(folder),
      parameters(read_parameters(files, use, machine, budget, prefix)),
      model(std::make_shared<models::language_model>(files.config(), parameters)) {
  const auto log = spdlog::get("longstraw");
  for (const std::string& notice : files.config().notices)
    log->info("{}: {}", folder.string(), notice);
  log->debug("model_loaded folder={} layers={} parameters={}", folder.string(),
             model->layer_count(), files.layout().parameter_count());
}

models::data_rules rules_of(const models::checkpoint& files, models::reward_scale scale) {
  models::data_rules r;
  r.vocabulary = files.config().vocabulary;
  r.end_of_sequence = files.config().end_of_sequence;
  r.has_tokenizer = files.has_tokenizer();
  r.scale = scale;
  return r;
}

void check_groups(const models::group_file& groups, index begin, index end,
                  const std::function<void(const models::group&, index)>& look) {
  progress_bar().set_title("checking the data");
  for (index n = begin; n < end; ++n) {
    if (stop_signal() != 0) fail(errc::cancelled, "the data was being checked");
    const models::group g = groups.read(n);
    if (look) look(g, n);
    progress_bar().show(static_cast<double>(n - begin) / static_cast<double>(end - begin), "");
  }
}

trace_file::trace_file(const std::filesystem::path& target) {
  if (target.empty()) return;
  target_ = std::filesystem::absolute(target);
  check_output_file(target_, "--trace");
  // What is there must be a timeline: a mistyped name must not cost anything else.
  if (std::ifstream older(target_); older && older.peek() != '[' && older.peek() != EOF)
    fail(errc::bad_input, "--trace {} holds something that is no timeline and is not replaced",
         target.string());
  // Beside the target's folder if the folder is a result of ours that does not exist yet.
  std::filesystem::path folder = target_.parent_path();
  while (!std::filesystem::is_directory(folder)) folder = folder.parent_path();
  partial_ = folder / fmt::format(".{}.partial-{}", target_.filename().string(), ::getpid());
}

trace_file::~trace_file() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void trace_file::publish(const std::filesystem::path& to) {
  if (partial_.empty()) return;
  const std::filesystem::path& place = to.empty() ? target_ : to;
  std::filesystem::create_directories(place.parent_path());
  if (::rename(partial_.c_str(), place.c_str()) != 0)
    fail(errc::io_failed, "{} cannot be written: {}", place.string(), models::system_reason(errno));
  partial_.clear();
}

}  // namespace longstraw::program
