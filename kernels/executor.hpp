#pragma once
// Where a kernel runs: a small fork-join pool and per-thread scratch memory, both owned by the lane. Kernels allocate
// nothing and know no global state; threads and scratch arrive through this object.

#include <longstraw/memory/arena.hpp>
#include <longstraw/memory/view.hpp>

#include <atomic>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <vector>

namespace longstraw::kernels {

/// Bump allocator over one thread's fixed scratch memory.
class scratch {
 public:
  explicit scratch(std::span<float> memory) : memory_(memory) {}

  /// `count` floats, 64-byte aligned, not initialized. Asking for more than the scratch holds is a bug: kernels work in
  /// tiles whose size does not depend on the data.
  std::span<float> floats(index count) {
    const index rounded = (count + 15) / 16 * 16;
    LS_ASSERT(used_ + rounded <= static_cast<index>(memory_.size()),
              "a kernel's tile must fit its scratch memory");
    auto part = memory_.subspan(static_cast<std::size_t>(used_), static_cast<std::size_t>(count));
    used_ += rounded;
    return part;
  }
  mat matrix(index rows, index cols) { return {floats(rows * cols).data(), rows, cols}; }

  index mark() const { return used_; }
  void rewind(index mark) { used_ = mark; }

 private:
  std::span<float> memory_;
  index used_ = 0;
};

/// Runs the items of a loop on a fixed number of threads. Items are handed out in any order, so an item must not depend
/// on another, and sums over items are formed by the caller in a fixed order: results then have the same bits for any
/// thread count. Used from one thread at a time (the lane's); that thread works too. A loop inside an item runs on the
/// item's own thread, one item after the other.
class executor {
 public:
  static constexpr std::size_t default_scratch_bytes = std::size_t{8} << 20;

  /// threads >= 1. Scratch comes from `arena`, `scratch_bytes` a thread.
  executor(int threads, memory::arena& arena, std::size_t scratch_bytes = default_scratch_bytes);
  ~executor();
  executor(const executor&) = delete;
  executor& operator=(const executor&) = delete;

  int threads() const { return static_cast<int>(scratches_.size()); }

  /// Calls body(item, scratch) for every item in [0, count). Each call sees its thread's whole scratch, free.
  template <class F>
  void parallel_for(index count, F&& body) {
    using body_type = std::remove_reference_t<F>;
    run(count, &body,
        [](void* f, index item, scratch& local) { (*static_cast<body_type*>(f))(item, local); });
  }

  /// The calling thread's scratch, for work outside parallel_for or around a loop inside an item.
  scratch& local();

 private:
  using trampoline = void (*)(void*, index, scratch&);
  void run(index count, void* body, trampoline call);
  void run_here(index count, void* body, trampoline call, scratch& local);
  void work(int thread);
  void drain(int thread);

  memory::buffer memory_;
  std::vector<scratch> scratches_;
  std::vector<std::thread> workers_;

  // One loop at a time. `round_` tells workers of a new loop; the last to finish tells the caller through `busy_`.
  void* body_ = nullptr;
  trampoline call_ = nullptr;
  index count_ = 0;
  // A cache line each: threads that draw items must not disturb those that watch for a new loop or for the end.
  alignas(64) std::atomic<index> next_{0};
  alignas(64) std::atomic<std::uint32_t> round_{0};
  alignas(64) std::atomic<int> busy_{0};
  std::atomic<bool> stop_{false};
};

/// Number of blocks of `block` items that cover `count` items.
constexpr index blocks_of(index count, index block) { return (count + block - 1) / block; }

}  // namespace longstraw::kernels
