#include "process.hpp"

#include "support/files.hpp"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <map>
#include <memory>
#include <sys/wait.h>
#include <unistd.h>

namespace longstraw::testing {
namespace {

std::filesystem::path captured(const char* what) {
  static const temporary_folder folder;
  static int count = 0;
  return folder / (std::string(what) + std::to_string(count++));
}

void redirect(const std::filesystem::path& file, int to) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (fd < 0 || ::dup2(fd, to) < 0) ::_exit(126);
}

}  // namespace

process::process(const std::vector<std::string>& arguments, const std::function<void()>& prepare)
    : out_(captured("out")), err_(captured("err")) {
  std::vector<char*> argv{const_cast<char*>("longstraw")};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  pid_ = ::fork();
  REQUIRE(pid_ >= 0);
  if (pid_ > 0) return;
  redirect(out_, STDOUT_FILENO);
  redirect(err_, STDERR_FILENO);
  if (prepare) prepare();
  ::execv(LONGSTRAW_PROGRAM, argv.data());
  ::_exit(127);
}

process::~process() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void process::send(int signal) const { ::kill(pid_, signal); }

bool process::running() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

finished process::wait() {
  int status = 0;
  REQUIRE(::waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  finished f;
  if (WIFEXITED(status)) f.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) f.signal = WTERMSIG(status);
  f.out = read_file(out_);
  f.err = read_file(err_);
  return f;
}

finished longstraw_program(const std::vector<std::string>& arguments,
                           const std::function<void()>& prepare) {
  return process(arguments, prepare).wait();
}

finished succeeds(const std::vector<std::string>& arguments) {
  finished f = longstraw_program(arguments);
  INFO(f.err);
  REQUIRE(f.signal == 0);
  REQUIRE(f.exit_code == 0);
  return f;
}

std::string fails(const std::vector<std::string>& arguments, int exit_code,
                  const std::function<void()>& prepare) {
  const finished f = longstraw_program(arguments, prepare);
  INFO(f.err);
  CHECK(f.signal == 0);
  CHECK(f.exit_code == exit_code);
  const auto at = f.err.find("longstraw: ");
  REQUIRE(at != std::string::npos);
  const std::string sentence = f.err.substr(at + 11);
  CHECK(sentence.find('\n') == sentence.size() - 1);  // one line, and the last
  CHECK(sentence.size() < 700);
  return sentence;
}

nlohmann::json json_file(const std::filesystem::path& file) {
  return nlohmann::json::parse(read_file(file));
}

std::string model_of(const std::string& size) {
  static const temporary_folder folder;
  const std::string model = (folder / size).string();
  if (!std::filesystem::exists(model))
    succeeds({"new-model", "--size", size, "--out", model, "--seed", "5", "--quiet"});
  return model;
}

std::string data_of(const std::filesystem::path& folder, int groups) {
  std::string lines;
  for (int g = 0; g < groups; ++g)
    lines += nlohmann::json{{"prompt", "Question " + std::to_string(g) + ": which word is right? "},
                            {"responses", {"this one", "that", "neither of them"}},
                            {"rewards", {1.0 + g, 0.0, 0.5}}}
                 .dump() +
             "\n";
  return write_file(folder / ("data" + std::to_string(groups) + ".jsonl"), lines).string();
}

}  // namespace longstraw::testing
