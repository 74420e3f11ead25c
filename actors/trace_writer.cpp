#include <longstraw/actors/trace_writer.hpp>
#include <longstraw/memory/error.hpp>

#include <cstring>

namespace longstraw::actors {

using messages::timeline_record;

trace_writer::trace_writer(std::filesystem::path file, std::uint64_t max_bytes)
    : file_(std::move(file)), max_bytes_(max_bytes), out_(file_, std::ios::trunc) {
  out_ << "[\n";
  check();
}

void trace_writer::check() const {
  if (!out_)
    fail(errc::io_failed, "the timeline file '{}' cannot be written: {}", file_.string(),
         std::strerror(errno));
}

void trace_writer::line(const std::string& event) {
  out_ << (first_ ? "" : ",\n") << event;
  first_ = false;
  bytes_ += event.size() + 2;
}

void trace_writer::write(const messages::timeline::batch& batch,
                         const std::vector<std::string>& tracks) {
  dropped_ += batch.dropped;
  for (; tracks_written_ < tracks.size(); ++tracks_written_)
    line(fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})",
                     tracks_written_, tracks[tracks_written_]));
  for (const timeline_record& r : batch.records) {
    if (bytes_ > max_bytes_) {
      ++dropped_;
      continue;
    }
    // Zero is the earliest sending time of the first batch's first record, so that no time is
    // negative there.
    if (zero_ns_ == 0) zero_ns_ = r.sent_ns != 0 ? r.sent_ns : r.begin_ns;
    ++records_;
    if (r.what == timeline_record::kind::counter) {
      line(fmt::format(
          R"({{"ph":"C","pid":1,"tid":{},"ts":{:.3f},"name":"{}","args":{{"value":{}}}}})", r.track,
          microseconds(r.begin_ns), r.name, r.value));
      continue;
    }
    const bool operation = r.what == timeline_record::kind::operation;
    const char* category = operation ? "operation" : "message";
    const std::string name = operation && std::strcmp(r.name, r.detail) != 0
                                 ? fmt::format("{} {}", r.detail, r.name)
                                 : r.name;
    std::string args = fmt::format(R"("span":{},"cause":{})", r.span, r.cause);
    if (r.sent_ns != 0)
      args += fmt::format(R"(,"queued_us":{:.3f})",
                          static_cast<double>(r.begin_ns - r.sent_ns) / 1000.0);
    const auto add = [&args](const char* key, index value) {
      if (value >= 0) args += fmt::format(R"(,"{}":{})", key, value);
    };
    add("step", r.step);
    add("entry", r.entry);
    add("layer", r.layer);
    add("chunk", r.chunk);
    add("response", r.response);
    line(fmt::format(
        R"({{"ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f},"cat":"{}","name":"{}","args":{{{}}}}})",
        r.track, microseconds(r.begin_ns), static_cast<double>(r.end_ns - r.begin_ns) / 1000.0,
        category, name, args));
    if (operation || r.span == 0) continue;
    line(fmt::format(
        R"({{"ph":"s","pid":1,"tid":{},"ts":{:.3f},"id":{},"cat":"message","name":"{}"}})", r.from,
        microseconds(r.sent_ns), r.span, r.name));
    line(fmt::format(
        R"({{"ph":"f","bp":"e","pid":1,"tid":{},"ts":{:.3f},"id":{},"cat":"message","name":"{}"}})",
        r.track, microseconds(r.begin_ns), r.span, r.name));
  }
  check();
}

void trace_writer::close() {
  if (dropped_ > 0)
    line(fmt::format(
        R"({{"ph":"M","pid":1,"tid":0,"name":"dropped_records","args":{{"value":{}}}}})",
        dropped_));
  out_ << "\n]\n";
  out_.close();
  check();
}

}  // namespace longstraw::actors
