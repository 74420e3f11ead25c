#include <longstraw/messages/job.hpp>

#include <fmt/format.h>

namespace longstraw::messages {

std::string_view to_string(gradient_mode m) { return m == gradient_mode::full ? "full" : "frozen"; }

std::string job::running_now() const {
  std::string all;
  for (index r = 0; r < ranks; ++r) {
    const char* now = running[static_cast<std::size_t>(r)].load(std::memory_order_relaxed);
    if (!now) continue;
    if (ranks == 1) return now;
    all += fmt::format("{}rank {}: {}", all.empty() ? "" : ", ", r, now);
  }
  return all.empty() ? "nothing" : all;
}

}  // namespace longstraw::messages
