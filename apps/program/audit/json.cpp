#include "outputs.hpp"

#include <nlohmann/json.hpp>

#include <cmath>

namespace longstraw::audit {
namespace {

using json = nlohmann::ordered_json;

/// JSON has no NaN and no infinity; as text they stay readable.
json number(double v) {
  if (std::isfinite(v)) return v;
  return std::isnan(v) ? "nan" : v > 0 ? "infinity" : "-infinity";
}

json pairs(const std::vector<std::pair<std::string, std::string>>& all) {
  json object = json::object();
  for (const auto& [name, value] : all) object[name] = value;
  return object;
}

json as_json(const group& g, const row& r, std::size_t column) {
  const cell& c = r.cells[column];
  json measured = json::array();
  for (const measurement& m : c.measurements())
    measured.push_back({{"what", m.what},
                        {"figure", number(m.figure)},
                        {"bound", number(m.bound)},
                        {"unit", m.in == measurement::unit::bytes ? "bytes" : ""},
                        {"where", m.where}});
  return {{"claim", to_string(r.of)},
          {"subject", g.subject},
          {"about", g.about},
          {"against", g.truth},
          {"gradient", messages::to_string(g.gradient)},
          {"ranks", g.ranks[column]},
          {"state", to_string(c.state())},
          {"reason", c.reason()},
          {"measurements", measured},
          {"seconds", c.seconds()}};
}

}  // namespace

json as_json(const matrix& m, const circumstances& about) {
  json cells = json::array();
  for (const group& g : m.groups)
    for (const row& r : g.rows)
      for (std::size_t c = 0; c < r.cells.size(); ++c) cells.push_back(as_json(g, r, c));
  const tally t = m.count();
  return {{"format_version", 1},
          {"date", about.date},
          {"machine", about.machine},
          {"versions", pairs(about.versions)},
          {"settings", pairs(about.settings)},
          {"seconds", about.seconds},
          {"proved", t.proved},
          {"failed", t.failed},
          {"not_run", t.not_run},
          {"cells", cells}};
}

}  // namespace longstraw::audit
