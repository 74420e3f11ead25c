// longstraw trace summary: what a step waited for, from its timeline file.

#include "commands.hpp"
#include "text_output.hpp"
#include "trace_reader.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>

namespace longstraw::program {
namespace {

/// Queue times by size, in cells that are 2 % wide: percentiles of any number of values in fixed
/// memory.
class time_histogram {
 public:
  void add(double us) {
    ++count_;
    largest_ = std::max(largest_, us);
    const double cell = us <= least ? 0.0 : std::log(us / least) / std::log(width);
    ++cells_[std::min(cells_.size() - 1, static_cast<std::size_t>(cell))];
  }
  double percentile(double share) const {
    const auto wanted = static_cast<std::uint64_t>(std::ceil(share * static_cast<double>(count_)));
    std::uint64_t seen = 0;
    for (std::size_t i = 0; i < cells_.size(); ++i)
      if ((seen += cells_[i]) >= wanted)
        return std::min(largest_, least * std::pow(width, static_cast<double>(i) + 0.5));
    return largest_;
  }
  std::uint64_t count() const { return count_; }

 private:
  static constexpr double least = 0.01, width = 1.02;
  std::array<std::uint64_t, 1600> cells_{};  // up to 0.01 us * 1.02^1600, days
  std::uint64_t count_ = 0;
  double largest_ = 0;
};

struct wait {
  double idle_us = 0;    ///< the lane had nothing to run before operations of that name
  double queued_us = 0;  ///< operations of that name were ready and waited for the lane
  double busy_us = 0;
  std::uint64_t count = 0;
};

struct lane_summary {
  double first_us = 0, last_us = 0, busy_us = 0;
  std::uint64_t operations = 0;
  std::map<std::string, wait> waits;
};

class summary {
 public:
  static constexpr std::size_t longest_shown = 10;

  void take(const trace_event& e) {
    switch (e.what) {
      case trace_event::kind::track_name:
        names_[e.track] = e.name;
        return;
      case trace_event::kind::operation:
        operation(e);
        return;
      case trace_event::kind::message:
        message(e);
        return;
      case trace_event::kind::dropped:
        dropped_ += e.value;
        return;
      case trace_event::kind::flow:
      case trace_event::kind::counter:
        return;
    }
  }

  bool empty() const { return lanes_.empty() && messages_.empty(); }

  std::string text() const {
    std::string out = fmt::format("{:.3f} s from the first event to the last, {} tracks\n",
                                  (last_us_ - first_us_) / 1e6, names_.size());
    if (dropped_ > 0)
      out += fmt::format("{} records were dropped: figures below are lower bounds\n", dropped_);
    for (const auto& [track, lane] : lanes_) add_lane(out, name_of(track), lane);
    add_longest(out);
    add_messages(out);
    return out;
  }

 private:
  void extend(const trace_event& e) {
    if (!any_) first_us_ = e.begin_us, last_us_ = e.begin_us + e.duration_us;
    any_ = true;
    first_us_ = std::min(first_us_, e.begin_us);
    last_us_ = std::max(last_us_, e.begin_us + e.duration_us);
  }

  void operation(const trace_event& e) {
    extend(e);
    const auto [at, fresh] = lanes_.try_emplace(e.track);
    lane_summary& lane = at->second;
    if (fresh) lane.first_us = lane.last_us = e.begin_us;
    wait& w = lane.waits[e.name];
    // Operations of a lane end, and are written, one after another.
    w.idle_us += std::max(0.0, e.begin_us - lane.last_us);
    w.queued_us += std::max(0.0, e.queued_us);
    w.busy_us += e.duration_us;
    ++w.count;
    lane.last_us = std::max(lane.last_us, e.begin_us + e.duration_us);
    lane.busy_us += e.duration_us;
    ++lane.operations;

    const auto longer = [](const trace_event& a, const trace_event& b) {
      return a.duration_us > b.duration_us;
    };
    longest_.insert(std::upper_bound(longest_.begin(), longest_.end(), e, longer), e);
    if (longest_.size() > longest_shown) longest_.pop_back();
  }

  void message(const trace_event& e) {
    extend(e);
    messages_[e.name].add(std::max(0.0, e.queued_us));
  }

  std::string name_of(index track) const {
    const auto at = names_.find(track);
    return at == names_.end() ? fmt::format("track {}", track) : at->second;
  }

  static void add_lane(std::string& out, const std::string& name, const lane_summary& l) {
    const double span = l.last_us - l.first_us;
    const double share = span > 0 ? l.busy_us / span : 1.0;
    out += fmt::format("\n{}: busy {:.1f} % of {:.3f} s, {} operations\n", name, 100 * share,
                       span / 1e6, l.operations);
    out += fmt::format("  {:<36} {:>9} {:>11} {:>11} {:>11}\n", "operation", "count", "busy ms",
                       "idle ms", "queued ms");
    std::vector<std::pair<std::string, wait>> rows(l.waits.begin(), l.waits.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.idle_us > b.second.idle_us; });
    for (const auto& [operation, w] : rows)
      out += fmt::format("  {:<36} {:>9} {:>11.3f} {:>11.3f} {:>11.3f}\n", operation, w.count,
                         w.busy_us / 1e3, w.idle_us / 1e3, w.queued_us / 1e3);
    out +=
        "  idle: the lane had nothing else to run and waited for this; queued: ready, and the lane "
        "was busy\n";
  }

  void add_longest(std::string& out) const {
    if (longest_.empty()) return;
    out += "\nlongest operations\n";
    for (const trace_event& e : longest_) {
      std::string where;
      const auto add = [&](const char* what, index n) {
        if (n >= 0) where += fmt::format("  {} {}", what, n);
      };
      add("layer", e.layer);
      add("chunk", e.chunk);
      add("response", e.response);
      out += fmt::format("  {:>11.3f} ms  {:<36} at {:.3f} ms{}\n", e.duration_us / 1e3, e.name,
                         e.begin_us / 1e3, where);
    }
  }

  void add_messages(std::string& out) const {
    if (messages_.empty()) return;
    out += fmt::format("\n{:<38} {:>9} {:>13} {:>13}\n", "message", "count", "p50 queue us",
                       "p99 queue us");
    for (const auto& [name, times] : messages_)
      out += fmt::format("{:<38} {:>9} {:>13.1f} {:>13.1f}\n", name, times.count(),
                         times.percentile(0.5), times.percentile(0.99));
  }

  std::unordered_map<index, std::string> names_;
  std::map<index, lane_summary> lanes_;
  std::map<std::string, time_histogram> messages_;
  std::vector<trace_event> longest_;
  double first_us_ = 0, last_us_ = 0;
  bool any_ = false;
  index dropped_ = 0;
};

int run_trace_summary(const std::filesystem::path& file) {
  summary s;
  read_trace(file, [&](const trace_event& e) { s.take(e); });
  if (s.empty()) fail(errc::bad_input, "{} holds no operation and no message", file.string());
  text_output out({});
  out.write(s.text());
  return 0;
}

}  // namespace

void add_trace_summary(command_line& line) {
  const auto file = std::make_shared<std::filesystem::path>();
  line.command("trace", "Read timelines that --trace wrote.", {});
  options opts = line.command(
      "trace summary",
      "Busy share of each lane, what it waited for, longest operations, queue times of messages.",
      [file] { return run_trace_summary(*file); });
  opts.path("FILE", *file, "timeline file", need::required);
}

}  // namespace longstraw::program
