#include <longstraw/models/checksum.hpp>
#include <longstraw/models/journal.hpp>
#include <longstraw/models/json_text.hpp>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

namespace longstraw::models {
namespace {

using json = nlohmann::ordered_json;

constexpr index version = 1;
constexpr index step_max = std::numeric_limits<index>::max();
// A hundred bytes a record: far more steps than any run has.
constexpr std::uint64_t journal_bytes_max = std::uint64_t{4} << 30;
constexpr std::string_view checksum_field = ",\"checksum\":\"";
constexpr std::string_view line_end = "\"}";

/// `number` and `record` come first, so that a person can follow the file.
std::string line_of(index number, const json& record) {
  json all = {{"line", number}};
  all.update(record);
  std::string text = all.dump();
  text.pop_back();  // the brace
  const std::string checksum = checksum_of(text);
  text += checksum_field;
  text += checksum;
  text += line_end;
  return text;
}

class line_checker {
 public:
  line_checker(journal_content& c, const std::string& name)
      : c_(c), place_(fmt::format("{} line {}", name, c.lines + 1)) {}

  void read(std::string_view line) {
    const nlohmann::json record = parse_json(checked_text(line), place_);
    const json_fields fields(record, place_);
    if (const index number = fields.integer("line", 0, step_max); number != c_.lines + 1)
      reject(fmt::format("says that it is line {}", number), "no line before it missing");
    const std::string kind = fields.text("record");
    if (c_.lines == 0) {
      if (kind != "open") reject_record(kind, "\"open\" in the first line");
      if (fields.integer("version", 0, step_max) != version) fields.reject("version", "1");
    } else if (kind == "begin") {
      begin(fields);
    } else if (kind == "prepared") {
      prepared(fields);
    } else if (kind == "commit") {
      commit(fields);
    } else {
      reject_record(kind, "\"begin\", \"prepared\" or \"commit\"");
    }
    ++c_.lines;
  }

 private:
  /// The line as it was before its checksum was added.
  std::string checked_text(std::string_view line) const {
    const std::size_t tail = checksum_field.size() + checksum_digits + line_end.size();
    const std::size_t at = line.size() < tail ? 0 : line.size() - tail;
    const std::string_view found = line.substr(std::min(line.size(), at + checksum_field.size()));
    if (line.size() < tail || line.substr(at, checksum_field.size()) != checksum_field ||
        !line.ends_with(line_end))
      reject(fmt::format("is damaged: it holds {}", in_quotes(line)),
             "a record that ends with its checksum");
    const std::string expected = checksum_of(line.substr(0, at));
    if (found.substr(0, checksum_digits) != expected)
      reject(fmt::format("is damaged: its checksum is {}",
                         in_quotes(found.substr(0, checksum_digits))),
             fmt::format("{}, the checksum of its text", expected));
    return std::string(line.substr(0, at)) + "}";
  }

  void begin(const json_fields& f) {
    const index step = f.integer("step", 1, step_max);
    const index parts = f.integer("parts", 1, journal_parts_max);
    if (c_.last && step <= c_.last->step)
      reject(fmt::format("begins to save step {}", step),
             fmt::format("a step after {}, which is committed", c_.last->step));
    c_.step = step;
    c_.begun.insert(step);
    c_.prepared.assign(static_cast<std::size_t>(parts), false);
  }

  void prepared(const json_fields& f) {
    check_step(f);
    const index part = f.integer("part", 1, static_cast<index>(c_.prepared.size()));
    if (c_.prepared[static_cast<std::size_t>(part - 1)])
      reject(fmt::format("prepares part {} again", part), "each part once");
    f.text("content");
    c_.prepared[static_cast<std::size_t>(part - 1)] = true;
  }

  void commit(const json_fields& f) {
    check_step(f);
    const auto missing = std::ranges::find(c_.prepared, false);
    if (missing != c_.prepared.end())
      reject(fmt::format("commits step {} before part {} is prepared", c_.step,
                         missing - c_.prepared.begin() + 1),
             "all parts prepared before");
    c_.last = {c_.step, static_cast<index>(c_.prepared.size()), f.text("manifest")};
    c_.step = -1;
    c_.begun.clear();
    c_.prepared.clear();
  }

  void check_step(const json_fields& f) const {
    const index step = f.integer("step", 1, step_max);
    if (c_.step < 0)
      reject(fmt::format("speaks of step {}", step), "the record that begins its save before it");
    if (step != c_.step)
      reject(fmt::format("speaks of step {}", step),
             fmt::format("step {}, whose save has begun", c_.step));
  }

  [[noreturn]] void reject_record(const std::string& kind, const char* expected) const {
    reject(fmt::format("holds the record {}", in_quotes(kind)), expected);
  }
  [[noreturn]] void reject(const std::string& what, std::string_view expected) const {
    fail(errc::bad_input, "{} {}; expected {}", place_, what, expected);
  }

  journal_content& c_;
  const std::string place_;
};

}  // namespace

journal_content read_journal(std::string_view text, const std::string& name) {
  journal_content c;
  for (std::size_t end; (end = text.find('\n', c.bytes)) != std::string_view::npos;
       c.bytes = end + 1)
    line_checker(c, name).read(text.substr(c.bytes, end - c.bytes));
  if (c.lines == 0)
    fail(errc::bad_input, "{} holds no whole line; expected the record \"open\" in the first line",
         name);
  return c;
}

std::string journal::opening() {
  return line_of(1, {{"record", "open"}, {"version", version}}) + "\n";
}

journal::journal(std::filesystem::path file)
    : file_(std::move(file)),
      content_(read_journal(read_text(file_, journal_bytes_max), file_.string())) {
  descriptor_ = descriptor(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (descriptor_.get() < 0)
    fail(errc::io_failed, "{} cannot be opened for writing: {}", file_.string(),
         system_reason(errno));
  torn_ = size_of(descriptor_.get(), file_) != content_.bytes;
  if (torn_) cut();
}

void journal::cut() {
  if (::ftruncate(descriptor_.get(), static_cast<off_t>(content_.bytes)) != 0)
    fail(errc::io_failed, "{} cannot be cut to its last whole line: {}", file_.string(),
         system_reason(errno));
  sync_file(descriptor_.get(), file_);
  torn_ = false;
}

void journal::append(json record) {
  if (torn_) cut();
  const std::string line = line_of(content_.lines + 1, record);
  // The same rules as for reading: a record that a restart would refuse is not written.
  journal_content next = content_;
  line_checker(next, file_.string()).read(line);
  next.bytes += line.size() + 1;
  torn_ = true;
  try {
    write_all(descriptor_.get(), file_, line);
    sync_file(descriptor_.get(), file_);
    write_all(descriptor_.get(), file_, "\n");
    sync_file(descriptor_.get(), file_);
  } catch (const error&) {
    // At once, so that the file is whole if this process does not try again; the failure that
    // counts is the first one.
    try {
      cut();
    } catch (const error&) {
    }
    throw;
  }
  torn_ = false;
  content_ = std::move(next);
}

void journal::begin(index step, index parts) {
  append({{"record", "begin"}, {"step", step}, {"parts", parts}});
}

void journal::prepared(index step, index part, const std::string& checksum) {
  append({{"record", "prepared"}, {"step", step}, {"part", part}, {"content", checksum}});
}

void journal::commit(index step, const std::string& manifest_checksum) {
  append({{"record", "commit"}, {"step", step}, {"manifest", manifest_checksum}});
}

}  // namespace longstraw::models
