// Cells, the matrix and its outputs, without the program: a cell is proved by measurements alone.

#include "audit/audit.hpp"
#include "audit/claims.hpp"
#include "audit/compare.hpp"
#include "audit/data.hpp"
#include "audit/outputs.hpp"
#include "support/files.hpp"

#include <nlohmann/json.hpp>

#include <functional>
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

/// A short step on a built-in model, with its truth.
struct known_step {
  subject model;
  models::group data;
  step_record record;
  truth wanted;

  explicit known_step(const char* architecture)
      : model(built_in_subjects(architecture).front()),
        data(plain_group(20, {5, 8}, model.config.vocabulary, 1)) {
    const actors::step_settings settings = audit_step(gradient_mode::frozen);
    add_given_logps(data, {model.config, model.layout, model.weights}, settings.loss, 2);
    record = first_step(model, data, {}, settings);
    wanted = truth_of(model, data, settings);
  }
  shared_step of(const step_record& r) const {
    return shared_step([&] { return r; });
  }
  std::span<float> gradient(step_record& r, const char* name) const {
    const models::parameter& p = model.layout.at(name);
    return std::span(r.gradients)
        .subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
  }
};

/// The cells of one column.
struct one_column {
  audit::group g;
  column c;
  one_column(const subject& s, const std::vector<claim>& claims, index ranks = 1)
      : g(s.name, gradient_mode::frozen, {ranks}, claims), c{&g, 0, &s, {}} {
    c.how.ranks = ranks;
  }
  const cell& at(claim of) { return g.at(of, 0); }
};

/// A copy of a golden case whose files may be changed.
std::filesystem::path copy_of(const char* name, const std::filesystem::path& folder) {
  const auto to = folder / name;
  std::filesystem::copy(golden(name), to, std::filesystem::copy_options::recursive);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(to))
    std::filesystem::permissions(entry.path(), std::filesystem::perms::owner_write,
                                 std::filesystem::perm_options::add);
  return to;
}

void change(const std::filesystem::path& file, const std::function<void(nlohmann::json&)>& edit) {
  auto j = nlohmann::json::parse(read_file(file));
  edit(j);
  write_file(file, j.dump());
}

audit::group audited(const std::filesystem::path& one_case) {
  settings o;
  o.ranks = {1};
  o.gradients = {gradient_mode::frozen};
  const golden_case_folder c{one_case.filename().string(), one_case};
  audit::group g = groups_of(c, o).front();
  audit_golden(g, c, o);
  return g;
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

TEST_CASE("no figure is computed over missing scores", "[audit]") {
  const known_step step("llama");
  const auto fails_without = [&](const std::function<void(step_record&)>& lose,
                                 const std::string& sentence) {
    step_record r = step.record;
    lose(r);
    one_column alone(step.model, {claim::response_fidelity}),
        ranks(step.model, {claim::distributed_consistency}, 2);
    measure_fidelity(alone.c, step.of(r), step.wanted);
    measure_ranks(ranks.c, step.of(r), step.of(r));  // equal to itself
    for (const cell& c :
         {alone.at(claim::response_fidelity), ranks.at(claim::distributed_consistency)}) {
      CHECK(c.state() == verdict::failed);
      CHECK(c.measurements().empty());
      CHECK_THAT(c.reason(), ContainsSubstring(sentence));
    }
  };
  fails_without([](step_record& r) { r.outcome.responses[1].logps.clear(); },
                "0 logps of response 1, expected 8");
  fails_without([](step_record& r) { r.outcome.responses[0].entropies.pop_back(); },
                "4 entropies of response 0, expected 5");
  fails_without([](step_record& r) { r.outcome.responses.pop_back(); }, "1 responses, expected 2");
  fails_without([](step_record& r) { r.outcome.responses.clear(); }, "0 responses, expected 2");

  const std::vector<float> none;
  CHECK_THAT(failure_of([&] { largest_difference(none, none); }, errc::internal),
             ContainsSubstring("no values"));
  CHECK_THAT(failure_of([&] { l2(none, step.record.weights); }, errc::internal),
             ContainsSubstring("0 values"));
  one_column c(step.model, {claim::frozen_gradient});
  step_record r = step.record;
  r.gradients.clear();
  measure_gradient(c.c, step.of(r), step.wanted);
  CHECK(c.at(claim::frozen_gradient).state() == verdict::failed);
}

TEST_CASE("a wrong loss, KL or clipped token turns the parity cell red", "[audit]") {
  const known_step step("llama");
  const auto reason_with = [&](const std::function<void(actors::step_outcome&)>& edit) {
    step_record r = step.record;
    edit(r.outcome);
    one_column c(step.model, {claim::frozen_gradient});
    measure_gradient(c.c, step.of(r), step.wanted);
    return c.at(claim::frozen_gradient).reason();
  };
  CHECK(reason_with([](auto&) {}).empty());
  CHECK(step.wanted.clipped > 0);
  CHECK_THAT(reason_with([](auto& o) { o.loss += 1e-5; }), ContainsSubstring("loss, difference"));
  CHECK_THAT(reason_with([](auto& o) { o.kl *= 1.001; }), ContainsSubstring("KL, difference"));
  CHECK_THAT(reason_with([](auto& o) { o.clip_fraction += 1.0 / 13; }),
             ContainsSubstring("clipped tokens"));
}

TEST_CASE("each parameter is held to one rank, and the whole names what adds most", "[audit]") {
  const known_step step("qwen3_5_text");
  const auto cell_with = [&](const std::function<void(step_record&)>& edit) {
    step_record r = step.record;
    edit(r);
    one_column c(step.model, {claim::distributed_consistency}, 2);
    measure_ranks(c.c, step.of(r), step.of(step.record));
    return c.at(claim::distributed_consistency);
  };
  const auto scale = [&](step_record& r, const char* name, float by) {
    for (float& v : step.gradient(r, name)) v *= by;
  };
  const char* decay = "model.layers.0.linear_attn.A_log";
  const char* small = "model.layers.0.linear_attn.norm.weight";
  CHECK(cell_with([&](step_record& r) { scale(r, decay, 1 + 2e-5f); }).state() == verdict::proved);
  CHECK_THAT(cell_with([&](step_record& r) { scale(r, decay, 1 + 5e-5f); }).reason(),
             ContainsSubstring(decay));
  CHECK_THAT(cell_with([&](step_record& r) { scale(r, small, 1 + 2e-5f); }).reason(),
             ContainsSubstring(small));
  // Relatively the small one is farther off; the head adds more.
  const cell both = cell_with([&](step_record& r) {
    scale(r, small, 1 + 5e-6f);
    scale(r, "lm_head.weight", 1 + 2e-6f);
  });
  CHECK(both.measurements()[0].where == "lm_head.weight");
  CHECK(both.measurements()[1].where == small);
}

TEST_CASE("the restart row goes through the saves of a training run", "[audit]") {
  const known_step step("llama");
  const auto cell_with = [&](const std::function<void(const std::filesystem::path&)>& between) {
    one_column c(step.model, {claim::restart_equivalence}, 2);
    measure_restart(c.c, step.data, between);
    return c.at(claim::restart_equivalence);
  };
  CHECK(cell_with([](const auto& run) {
          const auto names = names_in(run / "checkpoint-1");
          CHECK(std::find(names.begin(), names.end(), "optimizer-00003-of-00003.safetensors") !=
                names.end());
        }).state() == verdict::proved);
  const cell damaged = cell_with([](const auto& run) {
    const auto part = run / "checkpoint-1" / "optimizer-00002-of-00003.safetensors";
    std::string bytes = read_file(part);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(part, bytes);
  });
  CHECK(damaged.state() == verdict::failed);
  CHECK_THAT(damaged.reason(), ContainsSubstring("optimizer-00002"));
  const cell lost = cell_with([](const auto& run) {
    write_file(run / "journal.jsonl", read_file(run / "journal.jsonl").substr(0, 40));
  });
  CHECK(lost.state() == verdict::failed);
}

TEST_CASE("a golden case that cannot be read has failed, whatever is wrong", "[audit][parity]") {
  const auto state_with = [](const std::function<void(const std::filesystem::path&)>& edit,
                             const std::string& sentence) {
    const temporary_folder folder;
    const auto at = copy_of("llama-tiny", folder.path());
    edit(at);
    const audit::group g = audited(at);
    const verdict first = g.rows.front().cells.front().state();
    for (const row& r : g.rows) {
      CHECK(r.cells[0].state() == first);
      CHECK_THAT(r.cells[0].reason(), ContainsSubstring(sentence));
    }
    return first;
  };
  const auto in_config = [](const std::function<void(nlohmann::json&)>& edit) {
    return [=](const std::filesystem::path& at) { change(at / "model" / "config.json", edit); };
  };
  CHECK(state_with(in_config([](auto& j) { j["model_type"] = "mamba"; }), "mamba") ==
        verdict::not_run);
  CHECK(state_with(in_config([](auto& j) { j.erase("model_type"); }), "model_type") ==
        verdict::failed);
  CHECK(state_with(in_config([](auto& j) { j["num_hidden_layers"] = "three"; }),
                   "num_hidden_layers") == verdict::failed);
  CHECK(state_with(in_config([](auto& j) { j["intermediate_size"] = 8; }), "mlp") ==
        verdict::failed);
  CHECK(state_with([](const auto& at) { write_file(at / "model" / "config.json", "{"); },
                   "config.json") == verdict::failed);
  CHECK(state_with([](const auto& at) { std::filesystem::remove(at / "batch.safetensors"); },
                   "batch.safetensors") == verdict::failed);
}

TEST_CASE("the losses and metrics of a golden case are compared", "[audit][parity]") {
  const auto parity_with = [](const std::function<void(nlohmann::json&)>& edit) {
    const temporary_folder folder;
    const auto at = copy_of("llama-tiny", folder.path());
    change(at / "case.json", edit);
    audit::group g = audited(at);
    CHECK(g.at(claim::response_fidelity, 0).state() == verdict::proved);
    return g.at(claim::frozen_gradient, 0).reason();
  };
  CHECK(parity_with([](auto&) {}).empty());
  for (const std::size_t n : {0, 3}) {
    const auto reason = parity_with([&](auto& j) {
      auto& value = j["losses"][n]["value"];
      value = value.template get<double>() + 1e-4;
    });
    CHECK_THAT(reason, ContainsSubstring("loss"));
  }
  CHECK_THAT(parity_with([](auto& j) { j["metrics"]["kl_mean"] = 0.05; }), ContainsSubstring("KL"));
  CHECK_THAT(parity_with([](auto& j) { j["metrics"]["clip_low_mean"] = 0.0; }),
             ContainsSubstring("clipped"));
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
