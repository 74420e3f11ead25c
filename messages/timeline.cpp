#include <longstraw/messages/timeline.hpp>

#include <chrono>

namespace longstraw::messages {

std::uint32_t timeline::add_track(std::string name) {
  std::lock_guard lock(mutex_);
  tracks_.push_back(std::move(name));
  return static_cast<std::uint32_t>(tracks_.size() - 1);
}

std::vector<std::string> timeline::tracks() const {
  std::lock_guard lock(mutex_);
  return tracks_;
}

std::int64_t timeline::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void timeline::add(const timeline_record& r) {
  if (!enabled_) return;
  std::lock_guard lock(mutex_);
  if (records_.size() >= capacity_) {
    ++dropped_;
    return;
  }
  records_.push_back(r);
}

timeline::batch timeline::drain() {
  batch b;
  b.records.reserve(256);
  std::lock_guard lock(mutex_);
  b.records.swap(records_);
  b.dropped = dropped_;
  dropped_ = 0;
  return b;
}

}  // namespace longstraw::messages
