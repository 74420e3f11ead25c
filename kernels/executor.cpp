#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {
namespace {
// A worker looks this often for a new loop before it sleeps. Loops follow each other within
// microseconds while a pass runs; a sleeping worker costs a system call to wake, a spinning one
// costs a shared machine its core.
constexpr int spins_before_sleep = 2000;

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// The executor whose item this thread is inside of, and the thread's number there: how a loop
// inside an item is told from one of the lane.
thread_local const executor* inside_of = nullptr;
thread_local int inside_thread = 0;
}  // namespace

executor::executor(int threads, memory::arena& arena, std::size_t scratch_bytes)
    : memory_(arena.allocate(static_cast<std::size_t>(threads) * scratch_bytes)) {
  LS_ASSERT(threads >= 1, "an executor has at least one thread");
  auto all = memory_.floats();
  const std::size_t each = scratch_bytes / sizeof(float);
  for (int t = 0; t < threads; ++t)
    scratches_.emplace_back(all.subspan(static_cast<std::size_t>(t) * each, each));
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

executor::~executor() {
  stop_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (auto& w : workers_) w.join();
}

scratch& executor::local() {
  return scratches_[inside_of == this ? static_cast<std::size_t>(inside_thread) : 0];
}

void executor::drain(int thread) {
  scratch& local = scratches_[static_cast<std::size_t>(thread)];
  const index mark = local.mark();
  inside_of = this;
  inside_thread = thread;
  for (index item; (item = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
    call_(body_, item, local);
    local.rewind(mark);
  }
  inside_of = nullptr;
}

void executor::run_here(index count, void* body, trampoline call, scratch& local) {
  const index mark = local.mark();
  for (index item = 0; item < count; ++item) {
    call(body, item, local);
    local.rewind(mark);
  }
}

void executor::run(index count, void* body, trampoline call) {
  if (count <= 0) return;
  if (inside_of == this)
    return run_here(count, body, call, scratches_[static_cast<std::size_t>(inside_thread)]);
  if (workers_.empty() || count == 1) return run_here(count, body, call, scratches_[0]);
  body_ = body;
  call_ = call;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  drain(0);
  for (int left; (left = busy_.load(std::memory_order_acquire)) != 0;) {
    for (int i = 0; i < spins_before_sleep && busy_.load(std::memory_order_acquire) != 0; ++i)
      pause_briefly();
    left = busy_.load(std::memory_order_acquire);
    if (left != 0) busy_.wait(left, std::memory_order_acquire);
  }
}

void executor::work(int thread) {
  std::uint32_t seen = 0;
  for (;;) {
    for (int i = 0; i < spins_before_sleep && round_.load(std::memory_order_acquire) == seen; ++i)
      pause_briefly();
    round_.wait(seen, std::memory_order_acquire);
    seen = round_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    drain(thread);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

}  // namespace longstraw::kernels
