#pragma once
// What every command that runs a model shares: how much of the machine it may use, and loading a
// checkpoint into it.

#include "options.hpp"

#include <longstraw/actors/runtime.hpp>
#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/data.hpp>

#include <filesystem>
#include <functional>
#include <memory>

namespace longstraw::program {

struct machine_options {
  index ranks = 1;
  std::optional<index> threads_given;
  index chunk_tokens = 1024;
  index page_tokens = 256;
  double collective_timeout = 60;  ///< seconds
  std::size_t memory = 0;          ///< hard budget in bytes; 0: none
  std::filesystem::path trace;

  /// Of each rank; by default the cores are shared out.
  index threads() const;
  enum class ranks_allowed { one, many };
  void declare(options& o, ranks_allowed r = ranks_allowed::many);
  actors::runtime_options runtime() const;
};

/// The budget of a command. Its part "program" stands for what code and libraries hold before any
/// model is loaded: it is reserved, never touched, so that the budget speaks of the whole process.
struct process_memory {
  explicit process_memory(std::size_t limit_bytes);
  std::shared_ptr<memory::budget> budget;
  memory::buffer program;
};

/// A checkpoint and its weights in memory.
struct loaded_model {
  /// errc::over_budget names all that the model takes before the first token, if --memory has no
  /// room for it: weights, gradients, moments, and the scratch memory of the machine's threads.
  loaded_model(const std::filesystem::path& folder, models::parameter_use use,
               const machine_options& machine, memory::budget& budget,
               const std::string& prefix = "");

  models::checkpoint files;
  std::shared_ptr<models::parameter_store> parameters;
  std::shared_ptr<const models::language_model> model;
};

/// How data for that checkpoint is read.
models::data_rules rules_of(const models::checkpoint& files,
                            models::reward_scale scale = models::reward_scale::group);

/// Reads groups begin .. end-1 of the file, one at a time, so that a fault in the last line is told
/// before the first group has cost anything; `look` sees each. errc::bad_input names file and line.
void check_groups(const models::group_file& groups, index begin, index end,
                  const std::function<void(const models::group&, index)>& look = {});

/// A timeline file that appears when it is complete; without that it is gone when this ends.
class trace_file {
 public:
  /// `target` may be empty: no timeline.
  explicit trace_file(const std::filesystem::path& target);
  ~trace_file();
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;

  /// Where the runtime writes; empty without a target.
  const std::filesystem::path& partial() const { return partial_; }
  /// Moves the complete file to `to`, the target if that is empty.
  void publish(const std::filesystem::path& to = {});

 private:
  std::filesystem::path target_, partial_;
};

}  // namespace longstraw::program
