#include "outputs.hpp"

#include <fmt/format.h>

namespace longstraw::audit {
namespace {

// Words stand beside the colours, and the borders differ: printed in grey the page says the same.
constexpr const char* style = R"(
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #1b1b1b; background: #fff; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin: 2em 0 .3em; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid #bbb; padding: .35em .55em; text-align: left; vertical-align: top; }
thead th { background: #f1f1f1; } tbody th { font-weight: 500; width: 16em; }
td small, p small { color: #333; display: block; font-size: .8em; overflow-wrap: anywhere; }
.proved { background: #d9f2dc; border-left: 4px solid #1f7a33; }
.failed { background: #f9d6d3; border-left: 4px double #a31515; font-weight: 600; }
.not_run { background: #ececec; border-left: 4px dotted #777; color: #444; }
.legend span { padding: .2em .6em; margin-right: .8em; }
dl { display: grid; grid-template-columns: max-content auto; gap: .15em 1em; } dt { font-weight: 600; } dd { margin: 0; }
@media print { body { margin: 0; max-width: none; } h2, tr { break-inside: avoid; } }
)";

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // Control characters have no place in XML, not even escaped.
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  return out;
}

const char* class_of(verdict v) {
  switch (v) {
    case verdict::not_run:
      return "not_run";
    case verdict::proved:
      return "proved";
    case verdict::failed:
      break;
  }
  return "failed";
}

std::string line_of(const measurement& m) {
  return fmt::format("{}: {}, bound {}{}{}", m.what, figure_text(m), bound_text(m),
                     m.where.empty() ? "" : " at ", m.where);
}

std::string html_of(const cell& c) {
  std::string hover;
  for (const measurement& m : c.measurements()) hover += (hover.empty() ? "" : "; ") + line_of(m);
  if (hover.empty()) hover = c.reason();
  std::string small = c.reason();
  if (c.state() == verdict::proved)
    small = fmt::format("{} of at most {}", figure_text(*c.headline()), bound_text(*c.headline()));
  return fmt::format("<td class=\"{}\" title=\"{}\">{}<small>{}</small></td>", class_of(c.state()),
                     escaped(hover), to_string(c.state()), escaped(small));
}

std::string html_of(const group& g) {
  std::string text = fmt::format(
      "<h2>{}, {} gradient</h2>\n<p>{}; compared with {}.</p>\n<table>\n<thead><tr><th>claim</th>",
      escaped(g.subject), messages::to_string(g.gradient), escaped(g.about), escaped(g.truth));
  for (const index ranks : g.ranks)
    text += fmt::format("<th>{} rank{}</th>", ranks, ranks == 1 ? "" : "s");
  text += "</tr></thead>\n<tbody>\n";
  for (const row& r : g.rows) {
    text += fmt::format("<tr><th title=\"{}\">{}</th>", escaped(meaning(r.of)), to_string(r.of));
    for (const cell& c : r.cells) text += html_of(c);
    text += "</tr>\n";
  }
  return text + "</tbody>\n</table>\n";
}

std::string list_of(const std::vector<std::pair<std::string, std::string>>& all) {
  std::string text = "<dl>";
  for (const auto& [name, value] : all)
    text += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value));
  return text + "</dl>\n";
}

std::string meanings() {
  std::string text = "<h2>What a proved row says</h2>\n<dl>";
  for (int c = 0; c <= static_cast<int>(claim::learning); ++c)
    text += fmt::format("<dt>{}</dt><dd>{}</dd>\n", to_string(static_cast<claim>(c)),
                        escaped(meaning(static_cast<claim>(c))));
  return text + "</dl>\n";
}

}  // namespace

std::string as_html(const matrix& m, const circumstances& about) {
  const tally t = m.count();
  std::string text = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n"
      "<meta charset=\"utf-8\"/>\n<title>LongStraw audit</title>\n<style>{}</style>\n</head>\n"
      "<body>\n<h1>LongStraw audit</h1>\n"
      "<p>{} on {}: {} proved, {} failed, {} not run, in {:.1f} s.</p>\n",
      style, escaped(about.date), escaped(about.machine), t.proved, t.failed, t.not_run,
      about.seconds);
  text +=
      "<p class=\"legend\"><span class=\"proved\">proved</span>measured on this machine in this "
      "audit, within its bound. <span class=\"failed\">failed</span>outside its bound, or it "
      "threw. "
      "<span class=\"not_run\">not run</span>nothing is claimed; the reason is given.</p>\n"
      "<p>A cell shows its first measurement, a failed one its worst; all of them appear when the "
      "pointer rests on it.</p>\n";
  for (const group& g : m.groups) text += html_of(g);
  text += meanings();
  text += "<h2>Settings</h2>\n" + list_of(about.settings);
  text += "<h2>Versions</h2>\n" + list_of(about.versions);
  return text + "</body>\n</html>\n";
}

}  // namespace longstraw::audit
