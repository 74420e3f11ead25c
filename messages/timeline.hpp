#pragma once
// What happened when: one record for every message handled and every operation run. Records go into
// a bounded buffer that the tracer empties; when it is full they are counted and dropped, never
// waited for. Off, it costs one branch.

#include <longstraw/memory/view.hpp>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace longstraw::messages {

/// Travels in every message: what the timeline joins on.
struct trace_ctx {
  std::uint64_t span = 0;   ///< number of this message; 0: tracing is off
  std::uint64_t cause = 0;  ///< span of the message whose handling sent this one
  std::int64_t sent_ns = 0;
  std::uint32_t from = 0;  ///< track of the sender
};

struct timeline_record {
  enum class kind : std::uint8_t { message, operation, counter };
  kind what = kind::message;
  const char* name = "";    ///< message or operation name, or counter name; a literal
  const char* detail = "";  ///< verb of the schedule entry, if any; a literal
  std::uint32_t track = 0;  ///< receiver
  std::uint32_t from = 0;   ///< sender
  std::uint64_t span = 0;
  std::uint64_t cause = 0;
  std::int64_t sent_ns = 0;  ///< messages: when sent; operations: when submitted to the lane
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
  std::int64_t value = 0;  ///< counters: the value; messages: bytes of the data it refers to
  index step = -1, entry = -1, response = -1, chunk = -1, layer = -1;
};

class timeline {
 public:
  static constexpr std::size_t default_capacity = 1 << 16;

  explicit timeline(bool enabled, std::size_t capacity = default_capacity)
      : enabled_(enabled), capacity_(capacity) {}

  bool enabled() const { return enabled_; }
  /// A track for one actor; its number is stable. Track 0 is the program itself.
  std::uint32_t add_track(std::string name);
  std::vector<std::string> tracks() const;
  std::uint64_t next_span() { return span_.fetch_add(1, std::memory_order_relaxed) + 1; }
  static std::int64_t now_ns();

  void add(const timeline_record& r);

  struct batch {
    std::vector<timeline_record> records;
    std::uint64_t dropped = 0;  ///< since the last batch
  };
  /// Takes all records out.
  batch drain();

 private:
  const bool enabled_;
  const std::size_t capacity_;
  std::atomic<std::uint64_t> span_{0};
  mutable std::mutex mutex_;
  std::vector<timeline_record> records_;
  std::uint64_t dropped_ = 0;
  std::vector<std::string> tracks_{"program"};
};

}  // namespace longstraw::messages
