#pragma once
// Runs the program as a user does: a process with arguments, whose exit code and output are looked
// at.

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace longstraw::testing {

/// Tests of several ranks run with as many as the runtime takes.
constexpr int ranks_that_run = 4;

struct finished {
  int exit_code = -1;  ///< -1 if a signal ended it
  int signal = 0;
  std::string out, err;
};

/// A running program. Killed and waited for on destruction.
class process {
 public:
  /// `prepare` runs in the child before the program starts (limits).
  explicit process(const std::vector<std::string>& arguments,
                   const std::function<void()>& prepare = {});
  ~process();
  process(const process&) = delete;
  process& operator=(const process&) = delete;

  void send(int signal) const;
  bool running() const;
  finished wait();

 private:
  pid_t pid_ = -1;
  std::filesystem::path out_, err_;
};

/// Runs it to its end.
finished longstraw_program(const std::vector<std::string>& arguments,
                           const std::function<void()>& prepare = {});
/// The same; the exit code must be 0.
finished succeeds(const std::vector<std::string>& arguments);
/// The same; it must end with that code and one sentence on stderr, which is returned.
std::string fails(const std::vector<std::string>& arguments, int exit_code = 1,
                  const std::function<void()>& prepare = {});

nlohmann::json json_file(const std::filesystem::path& file);
/// A tiny checkpoint of that size, made once a test run.
std::string model_of(const std::string& size);
/// A file of `groups` groups with text prompts, in `folder`.
std::string data_of(const std::filesystem::path& folder, int groups);

}  // namespace longstraw::testing
