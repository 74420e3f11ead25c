#include "progress.hpp"

#include "stop.hpp"

#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

namespace longstraw::program {
namespace {

constexpr std::chrono::seconds plain_interval{10};
constexpr std::chrono::milliseconds bar_interval{90};

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
  const double entries = static_cast<double>(std::max<std::size_t>(j.plan.entries.size(), 1));
  const double share = static_cast<double>(j.entries_done.load()) / entries;
  if (title_.empty()) title_ = j.name;
  show(begin_ + width_ * std::clamp(share, 0.0, 1.0), j.running_now());
  return stop_signal() == 0;
}

void progress::show(double share, const std::string& doing) {
  if (quiet_) return;
  const auto now = clock::now();
  if (!on_terminal()) {
    if (now - last_line_ < plain_interval) return;
    last_line_ = now;
    std::fprintf(stderr, "%s\n",
                 fmt::format("{} {:.0f} %, {}", title_, 100 * share, doing).c_str());
    return;
  }
  if (now - last_bar_ < bar_interval) return;
  last_bar_ = now;
  constexpr std::size_t cells = 30;
  const auto full = static_cast<std::size_t>(share * cells);
  std::string text = fmt::format("{} [{}{}] {:3.0f} %  {}  {}", title_, std::string(full, '#'),
                                 std::string(cells - full, '.'), 100 * share, note_, doing);
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
