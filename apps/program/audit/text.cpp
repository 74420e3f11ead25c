#include "outputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

namespace longstraw::audit {
namespace {

constexpr std::size_t label_width = 29, cell_width = 14, width = 100;
/// Ranks side by side; more go into another block.
constexpr std::size_t columns_max = (width - label_width) / cell_width;

/// "proved 1.2e-06", "FAILED 3e-02", "proved 2.3M" (MiB)
std::string short_text(const cell& c) {
  if (c.state() == verdict::not_run) return "not run";
  const measurement* m = c.headline();
  const bool failed = c.state() == verdict::failed;
  if (failed && (!m || m->within())) return "FAILED";  // it threw
  const std::string figure = m->in == measurement::unit::bytes
                                 ? fmt::format("{:.1f}M", m->figure / (1 << 20))
                             : m->figure == 0 ? std::string("0")
                                              : fmt::format("{:.0e}", m->figure);
  return fmt::format("{} {}", failed ? "FAILED" : "proved", figure);
}

/// Lines of at most `width` columns, cut between words; all but the first indented.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string out, line;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find(' ', begin);
    if (end == std::string::npos) end = text.size();
    const std::string word = text.substr(begin, end - begin);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      out += line + "\n";
      line = std::string(indent, ' ') + word;
    } else {
      if (begin > 0) line += ' ';
      line += word;
    }
    begin = end + 1;
  }
  return out + line + "\n";
}

std::string block(const group& g, std::size_t first, std::size_t last) {
  std::string text = fmt::format("{:<{}}", "", label_width);
  for (std::size_t c = first; c < last; ++c)
    text += fmt::format("{:<{}}", fmt::format("{} rank{}", g.ranks[c], g.ranks[c] == 1 ? "" : "s"),
                        cell_width);
  text.erase(text.find_last_not_of(' ') + 1);
  text += "\n";
  for (const row& r : g.rows) {
    text += fmt::format("  {:<{}}", to_string(r.of), label_width - 2);
    for (std::size_t c = first; c < last; ++c)
      text += fmt::format("{:<{}}", short_text(r.cells[c]), cell_width);
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

/// The reason of all cells if none was run and all share it.
std::optional<std::string> only_reason(const group& g) {
  const std::string reason = g.rows.front().cells.front().reason();
  const bool all = std::all_of(g.rows.begin(), g.rows.end(), [&](const row& r) {
    return std::all_of(r.cells.begin(), r.cells.end(), [&](const cell& c) {
      return c.state() == verdict::not_run && c.reason() == reason;
    });
  });
  return all ? std::optional(reason) : std::nullopt;
}

/// One reason often stands for many cells.
struct note {
  std::string reason, first;
  std::size_t cells = 0;
};

std::string notes(const matrix& m, verdict v, const char* title) {
  std::vector<note> all;
  for (const group& g : m.groups) {
    if (only_reason(g)) continue;
    for (const row& r : g.rows)
      for (std::size_t c = 0; c < r.cells.size(); ++c) {
        if (r.cells[c].state() != v) continue;
        const std::string reason = r.cells[c].reason();
        auto same =
            std::find_if(all.begin(), all.end(), [&](const note& n) { return n.reason == reason; });
        if (same == all.end())
          same = all.insert(all.end(), {reason,
                                        fmt::format("{}, {} gradient, {} rank{}: {}", g.subject,
                                                    messages::to_string(g.gradient), g.ranks[c],
                                                    g.ranks[c] == 1 ? "" : "s", to_string(r.of)),
                                        0});
        ++same->cells;
      }
  }
  if (all.empty()) return "";
  std::string text = fmt::format("\n{}\n", title);
  for (const note& n : all)
    text += wrapped(
        n.cells == 1 ? fmt::format("  {}: {}", n.first, n.reason)
                     : fmt::format("  {} cells: {} (the first is {})", n.cells, n.reason, n.first),
        4);
  return text;
}

/// Bounds of a row may differ from subject to subject.
std::string bounds(const matrix& m) {
  struct range {
    measurement least, most;
  };
  std::map<std::string, range> all;
  for (const group& g : m.groups)
    for (const row& r : g.rows)
      for (const cell& c : r.cells)
        for (const measurement& one : c.measurements()) {
          const auto [at, fresh] =
              all.try_emplace(fmt::format("{}: {}", to_string(r.of), one.what), range{one, one});
          if (one.bound < at->second.least.bound) at->second.least = one;
          if (one.bound > at->second.most.bound) at->second.most = one;
        }
  std::string text;
  for (const auto& [name, r] : all) {
    const std::string least = bound_text(r.least), most = bound_text(r.most);
    text +=
        wrapped(fmt::format("  {} <= {}", name,
                            least == most ? most : fmt::format("{} to {}, by model", least, most)),
                4);
  }
  return text.empty() ? "" : fmt::format("\nBounds\n{}", text);
}

}  // namespace

std::string as_text(const matrix& m, const circumstances& about) {
  std::string text = wrapped(fmt::format("LongStraw audit, {}, {}", about.date, about.machine), 2);
  text +=
      "proved: measured here, within its bound   FAILED: measured or thrown here   not run: no "
      "claim\n";
  std::string left_out;  // the last whole group that was, and why
  for (const group& g : m.groups) {
    if (const auto reason = only_reason(g)) {
      const std::string line = fmt::format("{}: not run: {}", g.subject, *reason);
      if (line != left_out) text += fmt::format("\n{}", wrapped(line, 2));
      left_out = line;
      continue;
    }
    text += '\n';
    text += wrapped(fmt::format("{}, {} gradient ({}; against {})", g.subject,
                                messages::to_string(g.gradient), g.about, g.truth),
                    2);
    for (std::size_t c = 0; c < g.ranks.size(); c += columns_max)
      text += block(g, c, std::min(g.ranks.size(), c + columns_max));
  }
  const tally t = m.count();
  text += bounds(m) + notes(m, verdict::not_run, "Not run") + notes(m, verdict::failed, "Failed");
  return text + fmt::format("\n{} proved, {} failed, {} not run, in {:.1f} s\n", t.proved, t.failed,
                            t.not_run, about.seconds);
}

}  // namespace longstraw::audit
