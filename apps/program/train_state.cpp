#include "train_state.hpp"

#include "output.hpp"

#include <longstraw/models/json_text.hpp>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace longstraw::program {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

namespace {

constexpr const char* run_name = "run.json";
constexpr const char* metrics_name = "metrics.jsonl";
constexpr const char* latest_name = "latest";
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

/// Hidden names of files and folders that were being written when their process died.
void remove_leftovers(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with(std::string(".") + checkpoint_prefix) ||
                      name.starts_with(".latest.") || name.starts_with(".run.json.");
    if (ours) fs::remove_all(entry.path(), ignored);
  }
}

models::tensor_source part_of(const char* kind, const models::parameter& p,
                              std::span<const float> all) {
  return models::from_floats(
      fmt::format("{}.{}", kind, p.name), p.shape,
      all.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count)));
}

void read_part(const models::safetensors_file& file, const char* kind, const models::parameter& p,
               std::span<float> all) {
  const std::string name = fmt::format("{}.{}", kind, p.name);
  if (!file.find(name))
    fail(errc::bad_input, "{}: tensor \"{}\" is missing", file.path().string(), name);
  file.read_floats(
      name, all.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count)));
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
      models::write_all(models::open_for_writing(fresh / run_name).get(), fresh / run_name,
                        settings_.dump(2) + "\n");
    });
  lock_ = locked(folder_);
  remove_leftovers(folder_);
}

fs::path train_folder::checkpoint(index step) const {
  return folder_ / fmt::format("{}{}", checkpoint_prefix, step);
}

std::optional<std::string> train_folder::latest() const {
  const fs::path file = folder_ / latest_name;
  if (!fs::exists(file)) return std::nullopt;
  std::string name = models::read_text(file, small_file_bytes);
  name.erase(name.find_last_not_of(" \n\r\t") + 1);
  if (!number_in(name))
    fail(errc::bad_input, "{} holds {}; expected the name of a checkpoint such as {}12",
         file.string(), models::in_quotes(name), checkpoint_prefix);
  return name;
}

std::optional<run_position> train_folder::resume(const models::parameter_store& parameters) const {
  const auto name = latest();
  if (!name) return std::nullopt;
  const fs::path from = folder_ / *name;
  const fs::path state_file = from / "state.json";
  const json state =
      models::parse_json(models::read_text(state_file, small_file_bytes), state_file.string());
  const nlohmann::json plain = state;
  const models::json_fields fields(plain, state_file.string());
  constexpr index most = std::numeric_limits<index>::max();
  run_position at;
  at.step = fields.integer("step", 0, most);
  at.optimizer_steps = fields.integer("optimizer_steps", 0, most);
  at.skipped = fields.integer("skipped", 0, most);
  at.metrics_bytes = static_cast<std::uint64_t>(fields.integer("metrics_bytes", 0, most));
  check_same(state.value("settings", json::object()), settings_, folder_);

  const models::checkpoint model(from / "model");
  if (model.layout().total() != parameters.layout().total())
    fail(errc::bad_input, "{} holds {} parameters; --model has {}", (from / "model").string(),
         model.layout().total(), parameters.layout().total());
  model.read_weights(parameters);
  const models::safetensors_file moments(from / "optimizer.safetensors");
  for (const models::parameter& p : parameters.layout().all()) {
    read_part(moments, "first_moment", p, parameters.first_moments());
    read_part(moments, "second_moment", p, parameters.second_moments());
    if (!model.holds_float32()) read_part(moments, "master", p, parameters.weights());
  }
  return at;
}

void train_folder::begin(const run_position& at) {
  models::replace_file(folder_ / run_name, settings_.dump(2) + "\n");
  const fs::path file = folder_ / metrics_name;
  metrics_ =
      models::descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (metrics_.get() < 0)
    fail(errc::io_failed, "{} cannot be opened: {}", file.string(), models::system_reason(errno));
  const std::uint64_t bytes = models::size_of(metrics_.get(), file);
  if (bytes < at.metrics_bytes)
    spdlog::get("longstraw")
        ->warn("{} is shorter than when step {} was saved; some of its lines are lost",
               file.string(), at.step);
  else if (::ftruncate(metrics_.get(), static_cast<off_t>(at.metrics_bytes)) != 0)
    fail(errc::io_failed, "{} cannot be cut: {}", file.string(), models::system_reason(errno));
}

void train_folder::add_metrics(const json& line) {
  models::write_all(metrics_.get(), folder_ / metrics_name, line.dump() + "\n");
}

void train_folder::save(run_position at, const loaded_model& policy, index keep) {
  // The metrics are on disk before the state that counts on them.
  models::sync_file(metrics_.get(), folder_ / metrics_name);
  at.metrics_bytes = models::size_of(metrics_.get(), folder_ / metrics_name);
  const models::parameter_store& store = *policy.parameters;
  models::replace_folder(checkpoint(at.step), [&](const fs::path& fresh) {
    fs::create_directory(fresh / "model");
    policy.files.write_files(fresh / "model", store);
    std::vector<models::tensor_source> tensors;
    for (const models::parameter& p : store.layout().all()) {
      tensors.push_back(part_of("first_moment", p, store.first_moments()));
      tensors.push_back(part_of("second_moment", p, store.second_moments()));
      if (!policy.files.holds_float32()) tensors.push_back(part_of("master", p, store.weights()));
    }
    models::write_safetensors(fresh / "optimizer.safetensors", tensors);
    const json state = {{"step", at.step},
                        {"optimizer_steps", at.optimizer_steps},
                        {"skipped", at.skipped},
                        {"metrics_bytes", at.metrics_bytes},
                        {"settings", settings_}};
    const fs::path file = fresh / "state.json";
    models::write_all(models::open_for_writing(file).get(), file, state.dump(2) + "\n");
  });
  models::replace_file(folder_ / latest_name, checkpoint(at.step).filename().string() + "\n");
  prune(at.step, keep);
}

void train_folder::prune(index newest, index keep) const {
  std::vector<index> numbers;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder_, ignored)) {
    const auto n = number_in(entry.path().filename().string());
    // A later one than the newest is left from a run that was killed before `latest` named it.
    if (n && *n > newest) fs::remove_all(entry.path(), ignored);
    if (n && *n <= newest) numbers.push_back(*n);
  }
  std::sort(numbers.rbegin(), numbers.rend());
  for (std::size_t i = static_cast<std::size_t>(keep); i < numbers.size(); ++i)
    fs::remove_all(checkpoint(numbers[i]), ignored);
}

}  // namespace longstraw::program
