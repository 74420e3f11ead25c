// Cells, the matrix and its outputs, without the program: a cell is proved by measurements alone.

#include "audit/claims.hpp"
#include "audit/data.hpp"
#include "audit/outputs.hpp"
#include "support/files.hpp"

#include <nlohmann/json.hpp>

#include <limits>
#include <sstream>

namespace longstraw::testing {
namespace {

using namespace audit;
using messages::gradient_mode;

/// Opening and closing tags match, attributes are quoted, and nothing is left open.
std::string fault_of_markup(const std::string& page) {
  std::vector<std::string> open;
  std::size_t at = page.find("<html");
  if (!page.starts_with("<!DOCTYPE html>") || at == std::string::npos) return "no html";
  while ((at = page.find('<', at)) != std::string::npos) {
    std::size_t end = at;
    bool quoted = false;
    for (; end < page.size() && (quoted || page[end] != '>'); ++end) {
      if (page[end] == '"') quoted = !quoted;
      if (quoted && page[end] == '<') return "a < inside quotes";
    }
    if (end == page.size()) return "a tag that does not end";
    const std::string tag = page.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag.starts_with("/")) {
      if (open.empty() || "/" + open.back() != tag) return "unexpected <" + tag + ">";
      open.pop_back();
    } else if (!tag.ends_with("/")) {
      open.push_back(name);
    }
    at = end;
  }
  for (at = page.find('&'); at != std::string::npos; at = page.find('&', at + 1)) {
    const std::string entity = page.substr(at, page.find(';', at) - at);
    if (entity != "&amp" && entity != "&lt" && entity != "&gt" && entity != "&quot")
      return "unescaped &";
  }
  return open.empty() ? "" : "<" + open.back() + "> is not closed";
}

audit::matrix small_matrix() {
  audit::matrix m;
  audit::group& g = m.groups.emplace_back(
      "a <model> & \"more\"", gradient_mode::frozen, std::vector<index>{1, 2, 3, 4, 8, 16},
      std::vector<claim>{claim::response_fidelity, claim::frozen_gradient});
  g.at(claim::response_fidelity, 0).measure({"logps", 1e-7, 1e-5, "response 1"});
  g.at(claim::frozen_gradient, 0).measure({"gradient", 0.25, 1e-5, "model.norm.weight"});
  g.at(claim::frozen_gradient, 1).fail("a rank <ended>");
  return m;
}

}  // namespace

TEST_CASE("a cell is proved by measurements within their bounds, and by nothing else", "[audit]") {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  cell untouched;
  CHECK(untouched.state() == verdict::not_run);
  CHECK_FALSE(untouched.reason().empty());
  CHECK(untouched.worst() == nullptr);

  cell left_out;
  left_out.leave_out("no such machine");
  left_out.add_seconds(3);
  CHECK(left_out.state() == verdict::not_run);
  CHECK(left_out.reason() == "no such machine");

  cell proved;
  proved.measure({"error", 1e-6, 1e-5, ""});
  CHECK(proved.state() == verdict::proved);
  CHECK(proved.reason().empty());
  proved.leave_out("it has run");
  CHECK(proved.state() == verdict::proved);
  proved.measure({"bits", 0, 0, ""});
  CHECK(proved.state() == verdict::proved);
  CHECK(proved.headline()->what == "error");
  proved.measure({"another", 3e-5, 1e-5, "lm_head.weight"});
  CHECK(proved.state() == verdict::failed);
  CHECK(proved.headline()->what == "another");
  CHECK_THAT(proved.reason(), ContainsSubstring("lm_head.weight"));
  proved.measure({"error", 0, 1e-5, ""});
  CHECK(proved.state() == verdict::failed);

  for (const auto& [figure, bound] : {std::pair{nan, 1.0}, {1.0, nan}, {1.0, 0.0}, {0.0, -1.0}}) {
    cell c;
    c.measure({"error", figure, bound, ""});
    CHECK(c.state() == verdict::failed);
  }

  cell thrown;
  attempt(thrown, [] { fail(errc::bad_input, "this version does not do it"); });
  CHECK(thrown.state() == verdict::failed);
  CHECK(thrown.reason() == "this version does not do it");
  thrown.measure({"error", 0, 1, ""});
  thrown.leave_out("later");
  CHECK(thrown.state() == verdict::failed);
  cell silent;
  attempt(silent, [] { throw std::runtime_error(""); });
  CHECK(silent.state() == verdict::failed);

  cell stopped;
  CHECK_THROWS_AS(attempt(stopped, [] { fail(errc::cancelled, "stopped"); }), error);
  CHECK(stopped.state() == verdict::not_run);
}

TEST_CASE("a wrong number in one parameter turns its cell red and names it", "[audit]") {
  const subject s = built_in_subjects("llama").front();
  models::group data = plain_group(20, {5, 8}, s.config.vocabulary, 1);
  const actors::step_settings settings = audit_step(gradient_mode::frozen);
  add_given_logps(data, {s.config, s.layout, s.weights}, settings.loss, 2);
  const shared_step step([&] { return first_step(s, data, {}, settings); });
  truth t = truth_of(s, data, settings);

  audit::group g(s.name, gradient_mode::frozen, {1, 2},
                 {claim::response_fidelity, claim::frozen_gradient, claim::optimizer_delta,
                  claim::distributed_consistency});
  const auto measure = [&](std::size_t number) {
    setup how;
    how.ranks = static_cast<index>(number + 1);
    const column c{&g, number, &s, how};
    measure_fidelity(c, step, t);
    measure_gradient(c, step, t);
    measure_update(c, step, t);
    measure_ranks(c, step, step);
  };
  measure(0);
  for (const row& r : g.rows)
    CHECK(r.cells[0].state() ==
          (r.of == claim::distributed_consistency ? verdict::not_run : verdict::proved));

  const models::parameter& broken = s.layout.at("model.layers.1.mlp.up_proj.weight");
  for (index i = 0; i < broken.count; ++i)
    t.gradients[static_cast<std::size_t>(broken.offset + i)] *= 1.01;
  t.scores[1].logps[3] += 0.01;
  t.weights[static_cast<std::size_t>(broken.offset)] += 0.1;
  measure(1);
  CHECK(g.at(claim::frozen_gradient, 1).state() == verdict::failed);
  CHECK_THAT(g.at(claim::frozen_gradient, 1).reason(), ContainsSubstring(broken.name));
  CHECK(g.at(claim::optimizer_delta, 1).state() == verdict::failed);
  CHECK_THAT(g.at(claim::optimizer_delta, 1).reason(), ContainsSubstring(broken.name));
  CHECK(g.at(claim::response_fidelity, 1).state() == verdict::failed);
  CHECK_THAT(g.at(claim::response_fidelity, 1).reason(), ContainsSubstring("response 1"));
  CHECK(g.at(claim::distributed_consistency, 1).state() == verdict::proved);
  audit::matrix m;
  m.groups.push_back(g);
  CHECK(m.count().failed == 3);
}

TEST_CASE("a step that throws fails every cell that looks at it, with its sentence", "[audit]") {
  const subject s = built_in_subjects("llama").front();
  audit::group g(s.name, gradient_mode::frozen, {2},
                 {claim::frozen_gradient, claim::distributed_consistency});
  const shared_step step([]() -> step_record { fail(errc::actor_lost, "rank 1 ended"); });
  setup how;
  how.ranks = 2;
  const column c{&g, 0, &s, how};
  measure_gradient(c, step, {});
  measure_ranks(c, step, step);
  for (const row& r : g.rows) {
    CHECK(r.cells[0].state() == verdict::failed);
    CHECK(r.cells[0].reason() == "rank 1 ended");
  }
}

TEST_CASE("table, JSON and page say what the cells say", "[audit]") {
  const audit::matrix m = small_matrix();
  circumstances about;
  about.date = "2000-01-01 00:00:00 UTC";
  about.machine = "a <machine>";
  about.versions = {{"longstraw", "0"}};

  const std::string text = as_text(m, about);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.size() <= 100);
  }
  for (const char* part :
       {"16 ranks", "proved 1e-07", "FAILED 2e-01", "model.norm.weight", "a rank <ended>",
        "nothing measured it", "1 proved, 2 failed, 9 not run"})
    CHECK_THAT(text, ContainsSubstring(part));

  const auto json = as_json(m, about);
  REQUIRE(json.at("cells").size() == 12);
  CHECK(json.at("failed") == 2);
  CHECK(json.at("cells")[0].at("state") == "proved");
  CHECK(json.at("cells")[0].at("measurements")[0].at("bound") == 1e-5);
  CHECK(json.at("cells")[6].at("state") == "failed");
  CHECK(json.at("cells")[6].at("measurements")[0].at("where") == "model.norm.weight");
  CHECK(json.at("cells")[7].at("reason") == "a rank <ended>");
  CHECK(json.at("cells")[8].at("state") == "not run");

  const std::string page = as_html(m, about);
  CHECK(fault_of_markup(page) == "");
  CHECK(page.find("http://www.w3.org/1999/xhtml") == page.rfind("http"));  // nothing from outside
  CHECK(page.find("<script") == std::string::npos);
  for (const char* part : {"class=\"proved\"", "class=\"failed\"", "class=\"not_run\"",
                           "a rank &lt;ended&gt;", "model.norm.weight"})
    CHECK_THAT(page, ContainsSubstring(part));
}

TEST_CASE("finite differences see a gradient that leaves a part out", "[audit]") {
  const subject s = built_in_subjects("qwen3").front();
  // The frozen gradient is not the derivative of the loss of whole sequences.
  difference_samples d = sample_differences(s, gradient_mode::full);
  const models::reference::decoder reference(s.config, s.layout, s.weights);
  const auto captured = models::reference::capture_prompt(reference, d.data);
  std::fill(d.gradients.begin(), d.gradients.end(), 0.0);
  models::reference::evaluate_group(reference, d.data, audit_step(gradient_mode::full).loss,
                                    &captured, d.gradients);
  audit::group g(s.name, gradient_mode::frozen, {1}, {claim::reference_gradient});
  measure_differences({&g, 0, &s, {}}, d);
  CHECK(g.at(claim::reference_gradient, 0).state() == verdict::failed);
}

}  // namespace longstraw::testing
