#pragma once
// Writes timeline records in the Chrome trace event format, which Perfetto opens: one track an
// actor, an arrow from the sending of a message to its handling, counters for memory and queues.
//
//   [
//   {"ph":"M","pid":1,"tid":3,"name":"thread_name","args":{"name":"rank 0 lane"}},
//   {"ph":"X","pid":1,"tid":3,"ts":12.5,"dur":840.1,"cat":"operation",
//    "name":"forward_layer attend",
//    "args":{"span":71,"cause":64,"queued_us":3.1,"step":1,"entry":40,"layer":3,"response":2}},
//   {"ph":"X","pid":1,"tid":2,"ts":10.1,"dur":2.0,"cat":"message","name":"run_entry","args":{...}},
//   {"ph":"s","pid":1,"tid":1,"ts":9.8,"id":64,"cat":"message","name":"run_entry"},
//   {"ph":"f","bp":"e","pid":1,"tid":2,"ts":10.1,"id":64,"cat":"message","name":"run_entry"},
//   {"ph":"C","pid":1,"tid":3,"ts":12.5,"name":"lane queue","args":{"value":5}}
//   ]
//
// Times are microseconds since the first record. The file is streamed: memory stays bounded by the
// timeline's buffer.

#include <longstraw/messages/timeline.hpp>

#include <filesystem>
#include <fstream>
#include <string>

namespace longstraw::actors {

class trace_writer {
 public:
  /// Records beyond this file size are counted as dropped.
  static constexpr std::uint64_t default_max_bytes = std::uint64_t{4} << 30;

  /// errc::io_failed if the file cannot be created.
  explicit trace_writer(std::filesystem::path file, std::uint64_t max_bytes = default_max_bytes);

  /// errc::io_failed names the file.
  void write(const messages::timeline::batch& batch, const std::vector<std::string>& tracks);
  /// Ends the list; the file is complete then.
  void close();

  std::uint64_t records() const { return records_; }
  std::uint64_t dropped() const { return dropped_; }

 private:
  void line(const std::string& event);
  double microseconds(std::int64_t ns) const { return static_cast<double>(ns - zero_ns_) / 1000.0; }
  void check() const;

  const std::filesystem::path file_;
  const std::uint64_t max_bytes_;
  std::ofstream out_;
  std::uint64_t bytes_ = 0, records_ = 0, dropped_ = 0;
  std::int64_t zero_ns_ = 0;
  std::size_t tracks_written_ = 0;
  bool first_ = true;
};

}  // namespace longstraw::actors
