#include "stop.hpp"

#include <csignal>

namespace longstraw::program {
namespace {

volatile std::sig_atomic_t received = 0;

void note(int signal) { received = signal; }

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = note;
  // Reset: the second signal has its usual effect. Restart: files that are being written are not
  // cut.
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A full disk quota or a closed pipe then shows as an error of the write, with a sentence.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
}

int stop_signal() { return received; }

const char* stop_signal_name() { return received == SIGINT ? "SIGINT" : "SIGTERM"; }

}  // namespace longstraw::program
