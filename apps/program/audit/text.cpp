#include "outputs.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace longstraw::audit {
namespace {

constexpr std::size_t label_width = 28, cell_width = 13, width = 100;
/// Ranks side by side; more go into another block.
constexpr std::size_t columns_max = (width - label_width) / cell_width;

/// "proved 1e-06"
std::string short_text(const cell& c) {
  const measurement* worst = c.worst();
  if (c.state() == verdict::not_run) return "not run";
  if (c.state() == verdict::failed)
    return worst && !worst->within() ? fmt::format("FAILED {:.0e}", worst->figure) : "FAILED";
  return worst->bound == 0 ? "proved =" : fmt::format("proved {:.0e}", worst->figure);
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
  text += "\n";
  for (const row& r : g.rows) {
    text += fmt::format("  {:<{}}", to_string(r.of), label_width - 2);
    for (std::size_t c = first; c < last; ++c)
      text += fmt::format("{:<{}}", short_text(r.cells[c]), cell_width);
    text += "\n";
  }
  return text;
}

/// One reason often stands for several cells.
struct note {
  std::string subject, text;
  std::vector<std::string> rows;
};

std::string notes(const matrix& m, verdict v, const char* title) {
  std::vector<note> all;
  for (const group& g : m.groups)
    for (const row& r : g.rows)
      for (std::size_t c = 0; c < r.cells.size(); ++c) {
        if (r.cells[c].state() != v) continue;
        const std::string subject = v == verdict::failed
                                        ? fmt::format("{}, {}, ranks {}", g.subject,
                                                      messages::to_string(g.gradient), g.ranks[c])
                                        : "";
        const std::string name(to_string(r.of)), reason = r.cells[c].reason();
        auto same = std::find_if(all.begin(), all.end(), [&](const note& n) {
          return n.subject == subject && n.text == reason;
        });
        if (same == all.end()) same = all.insert(all.end(), {subject, reason, {}});
        if (std::find(same->rows.begin(), same->rows.end(), name) == same->rows.end())
          same->rows.push_back(name);
      }
  if (all.empty()) return "";
  std::string text = fmt::format("\n{}\n", title);
  for (const note& n : all)
    text += wrapped(fmt::format("  {}{}{}: {}", n.subject, n.subject.empty() ? "" : ": ",
                                fmt::join(n.rows, ", "), n.text),
                    4);
  return text;
}

std::string bounds(const matrix& m) {
  std::vector<std::string> lines;
  for (const group& g : m.groups)
    for (const row& r : g.rows)
      for (const cell& c : r.cells)
        for (const measurement& one : c.measurements()) {
          const std::string line =
              fmt::format("  {}: {} <= {:.3g}", to_string(r.of), one.what, one.bound);
          if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
        }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += wrapped(line, 4);
  return text.empty() ? "" : "\nBounds\n" + text;
}

}  // namespace

std::string as_text(const matrix& m, const circumstances& about) {
  std::string text = wrapped(fmt::format("LongStraw audit, {}, {}", about.date, about.machine), 2);
  text +=
      "proved: measured here, within its bound   FAILED: measured or thrown here   not run: no "
      "claim\n";
  for (const group& g : m.groups) {
    text += '\n';
    text += wrapped(fmt::format("{}, {} gradient ({}; against {})", g.subject,
                                messages::to_string(g.gradient), g.about, g.truth),
                    2);
    // A whole group with one reason is one line.
    const std::string reason = g.rows.front().cells.front().reason();
    const bool none = std::all_of(g.rows.begin(), g.rows.end(), [&](const row& r) {
      return std::all_of(r.cells.begin(), r.cells.end(), [&](const cell& c) {
        return c.state() == verdict::not_run && c.reason() == reason;
      });
    });
    if (none) {
      text += wrapped("  not run: " + reason, 4);
      continue;
    }
    for (std::size_t c = 0; c < g.ranks.size(); c += columns_max)
      text += block(g, c, std::min(g.ranks.size(), c + columns_max));
  }
  const tally t = m.count();
  text += bounds(m) + notes(m, verdict::not_run, "Not run") + notes(m, verdict::failed, "Failed");
  return text + fmt::format("\n{} proved, {} failed, {} not run, in {:.1f} s\n", t.proved, t.failed,
                            t.not_run, about.seconds);
}

}  // namespace longstraw::audit
