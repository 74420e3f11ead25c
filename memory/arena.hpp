#pragma once
// Where every large buffer comes from: named arenas that draw on one hard budget. The peak report
// shows each name, so that "what needs the memory?" is answered by a table and "it does not fit" by
// a sentence before the work starts.

#include <longstraw/memory/error.hpp>
#include <longstraw/memory/view.hpp>

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace longstraw::memory {

class arena;

/// Zero-filled memory, 64-byte aligned, given back to its arena on destruction. Movable, not
/// copyable.
class buffer {
 public:
  buffer() = default;
  buffer(buffer&& other) noexcept { swap(other); }
  buffer& operator=(buffer&& other) noexcept {
    buffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~buffer();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }

  /// Brings all pages in now. For memory that will be used whole: the page faults of its first use
  /// then do not fall into somebody's measured work.
  void populate() const;

  template <class T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }
  std::span<float> floats() const { return as<float>(); }

 private:
  friend class arena;
  void swap(buffer& other) noexcept {
    std::swap(owner_, other.owner_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }

  std::shared_ptr<arena> owner_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// The job's whole memory, and the arenas that draw on it. Thread-safe.
class budget : public std::enable_shared_from_this<budget> {
 public:
  /// limit_bytes = 0 means no limit.
  static std::shared_ptr<budget> make(std::size_t limit_bytes);

  /// The arena of that name, made at the first call.
  std::shared_ptr<arena> named(const std::string& name);

  struct usage {
    std::string name;
    std::size_t current_bytes = 0;
    std::size_t peak_bytes = 0;
  };
  /// One entry a name, in order of name.
  std::vector<usage> report() const;
  std::size_t limit_bytes() const { return limit_bytes_; }
  std::size_t current_bytes() const;
  /// Highest sum over all names at one moment (not the sum of their peaks).
  std::size_t peak_bytes() const;

 private:
  friend class arena;
  friend class buffer;
  explicit budget(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}
  void take(arena& from, std::size_t bytes);
  void give_back(arena& to, std::size_t bytes) noexcept;

  const std::size_t limit_bytes_;
  mutable std::mutex mutex_;
  std::size_t current_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::map<std::string, std::shared_ptr<arena>> arenas_;
};

/// One named part of a budget.
class arena : public std::enable_shared_from_this<arena> {
 public:
  /// errc::over_budget names the arena, the request, and what is left. bytes = 0 gives an empty
  /// buffer.
  buffer allocate(std::size_t bytes);
  /// `count` zero floats; checks the byte count for overflow.
  buffer allocate_floats(index count);

  const std::string& name() const { return name_; }

 private:
  friend class budget;
  friend class buffer;
  arena(std::string name, std::weak_ptr<budget> owner)
      : name_(std::move(name)), owner_(std::move(owner)) {}

  const std::string name_;
  const std::weak_ptr<budget> owner_;
  std::size_t current_bytes_ = 0;  // guarded by the budget's mutex
  std::size_t peak_bytes_ = 0;     // guarded by the budget's mutex
};

/// The process's own peak of resident memory (VmHWM), in bytes.
std::size_t process_peak_bytes();
/// The process's resident memory now (VmRSS), in bytes.
std::size_t process_resident_bytes();

/// "12.3 MiB": for sentences and tables.
std::string readable_bytes(std::size_t bytes);

}  // namespace longstraw::memory
