#include "train_state.hpp"

#include "output.hpp"

#include <longstraw/models/checksum.hpp>
#include <longstraw/models/json_text.hpp>
#include <longstraw/models/manifest.hpp>
#include <longstraw/models/optimizer_parts.hpp>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <tuple>
#include <unistd.h>

namespace longstraw::program {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr const char* run_name = "run.json";
constexpr const char* metrics_name = "metrics.jsonl";
constexpr const char* journal_name = "journal.jsonl";
constexpr const char* state_name = "state.json";
constexpr const char* checkpoint_prefix = "checkpoint-";
constexpr std::uint64_t small_file_bytes = std::uint64_t{1} << 20;

/// The number in "checkpoint-N"; none for any other name.
std::optional<index> number_in(const std::string& name) {
  const std::string prefix = checkpoint_prefix;
  const std::string digits = name.starts_with(prefix) ? name.substr(prefix.size()) : "";
  if (digits.empty() || digits.size() > 18 ||
      digits.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(digits);
}

models::descriptor locked(const fs::path& folder) {
  const fs::path file = folder / ".lock";
  models::descriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (lock.get() < 0)
    fail(errc::io_failed, "{} cannot be created: {}", file.string(), models::system_reason(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0)
    fail(errc::bad_input, "--out {} is in use by another process that trains there",
         folder.string());
  return lock;
}

void remove_whole(const fs::path& path) {
  std::error_code failure;
  fs::remove_all(path, failure);
  if (failure) fail(errc::io_failed, "{} cannot be removed: {}", path.string(), failure.message());
}

/// Hidden names of files and folders that were being written or removed when their process died.
void remove_leftovers(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(std::string(".") + checkpoint_prefix) || name.starts_with(".run.json."))
      found.push_back(entry.path());
  }
  if (failure) fail(errc::io_failed, "{} cannot be listed: {}", folder.string(), failure.message());
  for (const fs::path& path : found) remove_whole(path);
}

void write_text(const fs::path& file, const std::string& text) {
  models::write_all(models::open_for_writing(file).get(), file, text);
}

/// Cuts a file of lines to at most `bytes`, and to its last whole line. Its length after.
std::uint64_t cut_to_whole_lines(int fd, const fs::path& file, std::uint64_t bytes) {
  const std::uint64_t found = models::size_of(fd, file);
  std::uint64_t whole = std::min(found, bytes);
  for (char last = 0; whole > 0; --whole) {
    models::read_exactly(fd, file, whole - 1, std::as_writable_bytes(std::span(&last, 1)));
    if (last == '\n') break;
  }
  if (whole != found && ::ftruncate(fd, static_cast<off_t>(whole)) != 0)
    fail(errc::io_failed, "{} cannot be cut: {}", file.string(), models::system_reason(errno));
  return whole;
}

/// The files of a saved step are what its manifest says, except for parts of the optimizer's state:
/// the sentence on the first damaged one of those.
std::optional<std::string> check_files(const fs::path& checkpoint,
                                       const models::committed_step& saved) {
  std::optional<std::string> damaged;
  for (const models::manifest_entry& e :
       models::read_manifest(checkpoint, saved.manifest, journal_name)) {
    try {
      models::check_file(checkpoint, e);
    } catch (const error& fault) {
      if (!models::is_optimizer_part(e.name)) throw;
      if (!damaged) damaged = fault.what();
    }
  }
  return damaged;
}

void check_same(const json& saved, const json& now, const fs::path& folder) {
  for (const auto& [field, value] : now.items()) {
    const json& before = saved.contains(field) ? saved.at(field) : json(nullptr);
    if (before != value)
      fail(errc::bad_input,
           "--out {} holds a run with {} {}, and now {} is {}; go on with the same, or give "
           "another folder",
           folder.string(), field, before.dump(), field, value.dump());
  }
}

}  // namespace

train_folder::train_folder(fs::path folder, json settings)
    : folder_(fs::absolute(folder).lexically_normal()), settings_(std::move(settings)) {
  check_output_folder(folder_, run_name);
  std::error_code absent;
  if (!fs::exists(folder_ / run_name,
                  absent))  // whole from the start: a kill never leaves a folder that is not ours
    models::replace_folder(folder_, [&](const fs::path& fresh) {
      write_text(fresh / run_name, settings_.dump(2) + "\n");
      write_text(fresh / journal_name, models::journal::opening());
    });
  lock_ = locked(folder_);
  if (!fs::exists(folder_ / journal_name, absent))
    fail(errc::bad_input, "{} is missing; expected it beside {}, to say which step is saved",
         (folder_ / journal_name).string(), run_name);
  journal_.emplace(folder_ / journal_name);
  check_journal();
  remove_leftovers(folder_);
}

/// A checkpoint that the journal does not know must not be taken for a half-written one, and
/// removed.
void train_folder::check_journal() const {
  const auto& saved = journal_->last_commit();
  const index last = saved ? saved->step : 0;
  for (const index n : saved_steps())
    if (n > last && !journal_->has_begun(n))
      fail(
          errc::bad_input,
          "{} has lost lines: the last step it commits is {}, and it does not say that the save of "
          "{} began; expected the journal that was written beside it",
          (folder_ / journal_name).string(), last, checkpoint(n).string());
}

fs::path train_folder::checkpoint(index step) const {
  return folder_ / fmt::format("{}{}", checkpoint_prefix, step);
}

std::optional<run_position> train_folder::resume(const models::parameter_store& parameters,
                                                 damaged_moments d) const {
  const auto& saved = journal_->last_commit();
  if (!saved) return std::nullopt;
  const fs::path from = checkpoint(saved->step);
  const auto damaged = check_files(from, *saved);
  if (damaged && d == damaged_moments::refuse)
    fail(errc::bad_input,
         "{}; the weights are whole, and --restart-moments goes on from them with new moments",
         *damaged);

  const fs::path state_file = from / state_name;
  const json state =
      models::parse_json(models::read_text(state_file, small_file_bytes), state_file.string());
  const nlohmann::json plain = state;
  const models::json_fields fields(plain, state_file.string());
  constexpr index most = std::numeric_limits<index>::max();
  run_position at;
  at.step = fields.integer("step", saved->step, saved->step);
  at.optimizer_steps = fields.integer("optimizer_steps", 0, most);
  at.moment_steps = fields.integer("moment_steps", 0, at.optimizer_steps);
  at.skipped = fields.integer("skipped", 0, most);
  at.metrics_bytes = static_cast<std::uint64_t>(fields.integer("metrics_bytes", 0, most));
  check_same(state.value("settings", json::object()), settings_, folder_);

  const models::checkpoint model(from / "model");
  const models::parameter_layout& layout = parameters.layout();
  if (model.layout().parameter_count() != layout.parameter_count())
    fail(errc::bad_input, "{} holds {} parameters; --model has {}", (from / "model").string(),
         model.layout().parameter_count(), layout.parameter_count());
  model.read_weights(parameters);
  const auto log = spdlog::get("longstraw");
  if (damaged) {
    // Moments of the first steps are corrected for their zero beginning: they must be counted from
    // here.
    at.moment_steps = 0;
    std::ranges::fill(parameters.first_moments(), 0.0f);
    std::ranges::fill(parameters.second_moments(), 0.0f);
    log->warn("{}; the moments start anew after step {}{}", *damaged, at.step,
              model.holds_float32() ? "" : ", and the float32 weights from the rounded ones");
    return at;
  }
  if (d == damaged_moments::restart)
    log->info("the moments of step {} are whole and are kept; --restart-moments does nothing",
              at.step);
  const models::optimizer_parts parts(from, layout, saved->parts);
  parts.read(models::shard_in(parameters, {0, layout.total()}, !model.holds_float32()));
  return at;
}

void train_folder::begin(const run_position& at, index keep) {
  models::replace_file(folder_ / run_name, settings_.dump(2) + "\n");
  const fs::path file = folder_ / metrics_name;
  metrics_ =
      models::descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (metrics_.get() < 0)
    fail(errc::io_failed, "{} cannot be opened: {}", file.string(), models::system_reason(errno));
  if (cut_to_whole_lines(metrics_.get(), file, at.metrics_bytes) < at.metrics_bytes)
    spdlog::get("longstraw")
        ->warn("{} is shorter than when step {} was saved; some of its lines are lost",
               file.string(), at.step);
  prune(at.step, keep);
}

void train_folder::add_metrics(const json& line) {
  unwritten_metrics_ += line.dump() + "\n";
  write_metrics();
}

void train_folder::write_metrics() {
  if (unwritten_metrics_.empty()) return;
  const fs::path file = folder_ / metrics_name;
  const std::uint64_t before = models::size_of(metrics_.get(), file);
  try {
    models::write_all(metrics_.get(), file, unwritten_metrics_);
  } catch (const error&) {
    // Half a line would hide the next one from whoever reads the file. The failure to be told is
    // the one of the write.
    std::ignore = ::ftruncate(metrics_.get(), static_cast<off_t>(before));
    throw;
  }
  unwritten_metrics_.clear();
}

void train_folder::save(run_position at, const models::checkpoint& origin,
                        const models::parameter_store& store, index ranks, index keep) {
  write_metrics();
  models::sync_file(metrics_.get(), folder_ / metrics_name);
  at.metrics_bytes = models::size_of(metrics_.get(), folder_ / metrics_name);
  journal_->begin(at.step, ranks);
  models::replace_folder(checkpoint(at.step), [&](const fs::path& fresh) {
    write_checkpoint(fresh, at, origin, store, ranks);
  });
  journal_->commit(at.step, manifest_checksum_);
  prune(at.step, keep);
}

void train_folder::write_checkpoint(const fs::path& fresh, const run_position& at,
                                    const models::checkpoint& origin,
                                    const models::parameter_store& store, index ranks) {
  const models::parameter_layout& layout = store.layout();
  for (index r = 0; r < ranks; ++r) {
    const models::rank_share at_rank{r, ranks};
    const auto shard =
        models::shard_in(store, at_rank.part(layout.total()), !origin.holds_float32());
    models::write_optimizer_part(fresh, layout, shard, at_rank);
    const fs::path part = fresh / models::optimizer_part_name(at_rank);
    journal_->prepared(at.step, r + 1, models::checksum_of_file(part));
  }
  fs::create_directory(fresh / "model");
  origin.write_files(fresh / "model", store);
  const json state = {{"step", at.step},
                      {"optimizer_steps", at.optimizer_steps},
                      {"moment_steps", at.moment_steps},
                      {"skipped", at.skipped},
                      {"ranks", ranks},
                      {"metrics_bytes", at.metrics_bytes},
                      {"settings", settings_}};
  write_text(fresh / state_name, state.dump(2) + "\n");
  manifest_checksum_ = models::write_manifest(fresh);
}

void train_folder::remove(const fs::path& checkpoint) const {
  const fs::path hidden =
      folder_ / fmt::format(".{}.older-{}", checkpoint.filename().string(), ::getpid());
  if (::rename(checkpoint.c_str(), hidden.c_str()) != 0)
    fail(errc::io_failed, "{} cannot be renamed to {}: {}", checkpoint.string(), hidden.string(),
         models::system_reason(errno));
  remove_whole(hidden);
}

std::vector<index> train_folder::saved_steps() const {
  std::vector<index> numbers;
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder_, failure))
    if (const auto n = number_in(entry.path().filename().string())) numbers.push_back(*n);
  if (failure)
    fail(errc::io_failed, "{} cannot be listed: {}", folder_.string(), failure.message());
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

void train_folder::prune(index newest, index keep) const {
  index kept = 0;
  for (const index n : saved_steps()) {
    // A later one than the newest was not committed before its process died.
    if (n <= newest && kept < keep)
      ++kept;
    else
      remove(checkpoint(n));
  }
}

}  // namespace longstraw::program
