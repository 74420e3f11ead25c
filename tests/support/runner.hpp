#pragma once
// An executor of its own for one test, bit-wise comparison, and memory that is reserved but not
// there.

#include <longstraw/kernels/executor.hpp>

#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <cstring>
#include <sys/mman.h>

namespace longstraw::testing {

struct runner {
  explicit runner(int threads)
      : budget(memory::budget::make(0)), exec(threads, *budget->named("scratch")) {}
  std::shared_ptr<memory::budget> budget;
  kernels::executor exec;
};

template <class A, class B>
bool same_bits(const A& a, const B& b) {
  return std::size(a) == std::size(b) &&
         (std::size(a) == 0 ||
          std::memcmp(std::data(a), std::data(b), std::size(a) * sizeof(*std::data(a))) == 0);
}

/// Zero floats of which only touched pages exist: for offsets beyond 31 bits.
class sparse_floats {
 public:
  explicit sparse_floats(index count) : bytes_(static_cast<std::size_t>(count) * sizeof(float)) {
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory_ != MAP_FAILED);
  }
  ~sparse_floats() { munmap(memory_, bytes_); }
  sparse_floats(const sparse_floats&) = delete;
  sparse_floats& operator=(const sparse_floats&) = delete;
  float* data() const { return static_cast<float*>(memory_); }

 private:
  std::size_t bytes_;
  void* memory_;
};

}  // namespace longstraw::testing
