#pragma once
// Reads a timeline file event by event, so that a file of any length needs the memory of one line.
// A file that the program did not write ends in one sentence that names the line.

#include <longstraw/memory/view.hpp>

#include <filesystem>
#include <functional>
#include <string>

namespace longstraw::program {

struct trace_event {
  enum class kind { track_name, operation, message, flow, counter, dropped };
  kind what = kind::counter;
  index track = 0;
  double begin_us = 0, duration_us = 0;
  double queued_us = -1;  ///< before it began; -1: not known
  std::string name;       ///< of the event; of the track for track_name
  index layer = -1, chunk = -1, response = -1, entry = -1;
  index value = 0;  ///< counters and dropped
};

/// Calls `take` for every event in file order. errc::bad_input, errc::io_failed.
void read_trace(const std::filesystem::path& file,
                const std::function<void(const trace_event&)>& take);

}  // namespace longstraw::program
