#include "trace_reader.hpp"

#include <longstraw/models/files.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstring>
#include <vector>

namespace longstraw::program {
namespace {

using nlohmann::json;

constexpr std::size_t line_bytes_max = 1 << 16;
constexpr std::size_t block_bytes = 1 << 20;

/// Lines of a file, held one block at a time.
class line_source {
 public:
  explicit line_source(const std::filesystem::path& path)
      : path_(path),
        file_(models::open_for_reading(path)),
        left_(models::size_of(file_.get(), path)) {}

  /// False at the end of the file.
  bool next(std::string& line) {
    line.clear();
    for (;;) {
      if (at_ == block_.size()) {
        if (left_ == 0) return !line.empty() && ++number_ > 0;
        block_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left_, block_bytes)));
        models::read_exactly(file_.get(), path_, read_, std::as_writable_bytes(std::span(block_)));
        read_ += block_.size();
        left_ -= block_.size();
        at_ = 0;
      }
      const char* const begin = block_.data() + at_;
      const std::size_t have = block_.size() - at_;
      const auto* end = static_cast<const char*>(std::memchr(begin, '\n', have));
      const std::size_t part = end ? static_cast<std::size_t>(end - begin) : have;
      if (line.size() + part > line_bytes_max) reject("the line is too long");
      line.append(begin, part);
      at_ += part + (end ? 1 : 0);
      if (end) return ++number_ > 0;
    }
  }

  [[noreturn]] void reject(const std::string& what) const {
    fail(errc::bad_input, "{} is no timeline of this program: line {}: {}", path_.string(),
         number_ + (number_ == 0), what);
  }

 private:
  const std::filesystem::path path_;
  const models::descriptor file_;
  std::vector<char> block_;
  std::size_t at_ = 0;
  std::uint64_t read_ = 0, left_ = 0, number_ = 0;
};

class event_reader {
 public:
  event_reader(const json& event, const line_source& from) : event_(event), from_(from) {}

  trace_event read() const {
    if (!event_.is_object()) from_.reject("expected an object");
    trace_event e;
    e.track = whole(event_, "tid");
    const std::string phase = text(event_, "ph"), name = text(event_, "name");
    e.name = name;
    if (phase == "M") return metadata(std::move(e));
    e.begin_us = number(event_, "ts");
    if (phase == "s" || phase == "f") {
      e.what = trace_event::kind::flow;
    } else if (phase == "C") {
      e.what = trace_event::kind::counter;
      e.value = whole(arguments(), "value");
    } else if (phase == "X") {
      span(e);
    } else {
      from_.reject("\"ph\" is \"" + phase + "\"; expected M, X, s, f or C");
    }
    return e;
  }

 private:
  trace_event metadata(trace_event e) const {
    const bool dropped = e.name == "dropped_records";
    if (!dropped && e.name != "thread_name")
      from_.reject("a metadata event is called \"" + e.name + "\"");
    e.what = dropped ? trace_event::kind::dropped : trace_event::kind::track_name;
    if (dropped)
      e.value = whole(arguments(), "value");
    else
      e.name = text(arguments(), "name");
    return e;
  }

  void span(trace_event& e) const {
    const std::string category = text(event_, "cat");
    if (category != "operation" && category != "message")
      from_.reject("\"cat\" is \"" + category + "\"");
    e.what = category == "operation" ? trace_event::kind::operation : trace_event::kind::message;
    e.duration_us = number(event_, "dur");
    if (e.duration_us < 0) from_.reject("\"dur\" is negative");
    const json& all = arguments();
    if (all.contains("queued_us")) e.queued_us = number(all, "queued_us");
    const auto optional = [&](const char* key, index& into) {
      if (all.contains(key)) into = whole(all, key);
    };
    optional("layer", e.layer);
    optional("chunk", e.chunk);
    optional("response", e.response);
    optional("entry", e.entry);
  }

  const json& field(const json& of, const char* name) const {
    const auto at = of.find(name);
    if (at == of.end()) from_.reject(std::string("\"") + name + "\" is missing");
    return *at;
  }
  double number(const json& of, const char* name) const {
    const json& v = field(of, name);
    if (!v.is_number() || !std::isfinite(v.get<double>()))
      from_.reject(std::string("\"") + name + "\" is no number");
    return v.get<double>();
  }
  index whole(const json& of, const char* name) const {
    const json& v = field(of, name);
    if (!v.is_number_integer()) from_.reject(std::string("\"") + name + "\" is no whole number");
    return v.get<index>();
  }
  std::string text(const json& of, const char* name) const {
    const json& v = field(of, name);
    if (!v.is_string()) from_.reject(std::string("\"") + name + "\" is no text");
    return v.get<std::string>();
  }
  const json& arguments() const {
    const json& v = field(event_, "args");
    if (!v.is_object()) from_.reject("\"args\" is no object");
    return v;
  }

  const json& event_;
  const line_source& from_;
};

}  // namespace

void read_trace(const std::filesystem::path& file,
                const std::function<void(const trace_event&)>& take) {
  line_source lines(file);
  std::string line;
  if (!lines.next(line) || line != "[") lines.reject("expected [");
  bool comma = true;
  while (true) {
    if (!lines.next(line))
      lines.reject("the file ends before its closing ]; was its writer killed?");
    if (line == "]") break;
    if (line.empty()) continue;
    if (!comma) lines.reject("a comma is missing after the event before");
    comma = line.back() == ',';
    if (comma) line.pop_back();
    const json event = json::parse(line, nullptr, false);
    if (event.is_discarded()) lines.reject("it is not JSON");
    take(event_reader(event, lines).read());
  }
  while (lines.next(line))
    if (!line.empty()) lines.reject("something follows the closing ]");
}

}  // namespace longstraw::program
