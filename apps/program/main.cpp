// The program: reads the command line, runs one command, and turns every failure into one sentence
// and an exit code.
//
//   0 done    1 failed    2 the command line cannot be meant    130 / 143 stopped by SIGINT /
//   SIGTERM

#include "commands.hpp"
#include "progress.hpp"
#include "stop.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <new>

namespace {

using namespace longstraw;
using namespace longstraw::program;

constexpr int failed = 1, wrong_usage = 2, signal_base = 128;

int complain(const std::string& sentence, int exit_code) {
  progress_bar().clear();
  std::fprintf(stderr, "longstraw: %s\n", sentence.c_str());
  return exit_code;
}

int run(int argc, char** argv) {
  std::string level = "info";
  bool quiet = false;
  command_line line;
  line.global().choice("--log", level, {"debug", "info", "warn", "error", "off"},
                       "what is logged to stderr");
  line.global().toggle("--quiet", quiet, "no progress on stderr");
  add_step(line);
  add_train(line);
  add_score(line);
  add_generate(line);
  add_new_model(line);
  add_audit(line);
  add_trace_summary(line);
  const auto command = line.parse(argc, argv);
  if (!command) return 0;

  progress_bar().set_quiet(quiet);
  auto log = spdlog::stderr_color_mt("longstraw");
  log->set_pattern("[%H:%M:%S %^%l%$] %v");
  log->set_level(spdlog::level::from_str(level));
  install_stop_signals();
  return command();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const usage_error& e) {
    return complain(e.what(), wrong_usage);
  } catch (const error& e) {
    if (e.code() == errc::cancelled && stop_signal() != 0)
      return complain(fmt::format("stopped by {}: {}", stop_signal_name(), e.what()),
                      signal_base + stop_signal());
    return complain(e.what(), failed);
  } catch (const std::bad_alloc&) {
    return complain("the operating system has no memory left", failed);
  } catch (const std::filesystem::filesystem_error& e) {
    return complain(fmt::format("{}: {}", e.path1().string(), e.code().message()), failed);
  } catch (const std::exception& e) {
    return complain(e.what(), failed);
  }
}
