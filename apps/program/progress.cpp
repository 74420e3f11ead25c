#include "progress.hpp"

#include "stop.hpp"

#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

namespace longstraw::program {
namespace {

constexpr std::chrono::seconds plain_interval{10};

bool on_terminal() {
  static const bool is = ::isatty(STDERR_FILENO) == 1;
  return is;
}

std::size_t terminal_width() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

progress& progress_bar() {
  static progress bar;
  return bar;
}

bool progress::look(const messages::job& j) {
  if (!quiet_ && !j.plan.entries.empty())
    draw(j,
         static_cast<double>(j.entries_done.load()) / static_cast<double>(j.plan.entries.size()));
  return stop_signal() == 0;
}

void progress::draw(const messages::job& j, double share) {
  share = std::clamp(share, 0.0, 1.0);
  const std::string title = title_.empty() ? j.name : title_;
  if (!on_terminal()) {
    if (clock::now() - last_line_ < plain_interval) return;
    last_line_ = clock::now();
    std::fprintf(stderr, "%s\n",
                 fmt::format("{} {:.0f} %, {}", title, 100 * share, j.running.load()).c_str());
    return;
  }
  constexpr std::size_t cells = 30;
  const auto full = static_cast<std::size_t>(share * cells);
  std::string text =
      fmt::format("{} [{}{}] {:3.0f} %  {}  {}", title, std::string(full, '#'),
                  std::string(cells - full, '.'), 100 * share, note_, j.running.load());
  text.resize(std::min(text.size(), terminal_width() - 1));
  std::fprintf(stderr, "\r\x1b[K%s", text.c_str());
  drawn_ = true;
}

void progress::line(const std::string& text) {
  clear();
  if (!quiet_) std::fprintf(stderr, "%s\n", text.c_str());
}

void progress::clear() {
  if (drawn_) std::fprintf(stderr, "\r\x1b[K");
  drawn_ = false;
}

}  // namespace longstraw::program
