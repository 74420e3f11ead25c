#pragma once
// Buffers for data on its way to others: filled by one, read by several, and used again as soon as the last of them has
// let go. Which one that is need not be known: each holds a handle.

#include <longstraw/memory/arena.hpp>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

namespace longstraw::memory {

/// Thread-safe.
class staging {
 public:
  explicit staging(std::shared_ptr<arena> from) : arena_(std::move(from)) {}

  /// At least `floats` floats that nobody else holds; they contain what the last user left. errc::over_budget.
  std::shared_ptr<buffer> take(index floats) {
    const std::lock_guard lock(mutex_);
    for (const auto& b : buffers_) {
      if (b.use_count() != 1 || static_cast<index>(b->floats().size()) < floats) continue;
      std::atomic_thread_fence(
          std::memory_order_acquire);  // all that its last holder read, it has read
      return b;
    }
    std::erase_if(buffers_, [](const auto& b) { return b.use_count() == 1; });  // all too small
    return buffers_.emplace_back(std::make_shared<buffer>(arena_->allocate_floats(floats)));
  }
  /// Gives back what nobody holds.
  void clear() {
    const std::lock_guard lock(mutex_);
    std::erase_if(buffers_, [](const auto& b) { return b.use_count() == 1; });
  }

 private:
  const std::shared_ptr<arena> arena_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<buffer>> buffers_;
};

}  // namespace longstraw::memory
