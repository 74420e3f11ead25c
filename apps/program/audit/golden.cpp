// Golden cases: what conventional PyTorch training computed in float64, with the tolerances that
// PyTorch's own float32 earned.

#include "audit.hpp"
#include "claims.hpp"
#include "compare.hpp"

#include <longstraw/models/case.hpp>
#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/data.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>

#include <algorithm>
#include <map>

namespace longstraw::audit {
namespace {

namespace fs = std::filesystem;
using messages::gradient_mode;
using models::safetensors_file;

constexpr std::uint64_t case_bytes_max = std::uint64_t{16} << 20;
constexpr const char* loss_name = "grpo";  // of the case's steps
constexpr const char* truth_name = "PyTorch float64 (golden files)";

std::vector<double> doubles(const safetensors_file& file, const std::string& name) {
  const auto* info = file.find(name);
  if (!info) fail(errc::bad_input, "{}: tensor \"{}\" is missing", file.path().string(), name);
  std::vector<double> values(static_cast<std::size_t>(info->count()));
  file.read_doubles(name, values);
  return values;
}

struct expectations {
  fs::path folder;  ///< of the case whose batch and values apply
  nlohmann::json about;
  models::case_settings settings;

  /// A number of case.json, by path.
  double number(std::initializer_list<const char*> path) const {
    const nlohmann::json* at = &about;
    for (const char* name : path) {
      if (!at->is_object() || !at->contains(name))
        fail(errc::bad_input, "{}: there is no \"{}\"", (folder / "case.json").string(), name);
      at = &at->at(name);
    }
    if (!at->is_number())
      fail(errc::bad_input, "{}: \"{}\" is no number", (folder / "case.json").string(),
           *(path.end() - 1));
    return at->get<double>();
  }
};

expectations read_expectations(const fs::path& folder) {
  expectations e;
  e.folder = folder;
  e.settings = models::read_case(folder / "case.json");
  if (!e.settings.expected_from.empty()) {
    e.folder = folder.parent_path() / e.settings.expected_from;
    e.settings = models::read_case(e.folder / "case.json");
  }
  const fs::path file = e.folder / "case.json";
  e.about = models::parse_json(models::read_text(file, case_bytes_max), file.string());
  return e;
}

/// Expected files name parameters as the class without a vision tower does.
std::string expected_name(const std::string& on_disk, const models::model_config& c) {
  return on_disk.starts_with(c.tensor_prefix) ? "model." + on_disk.substr(c.tensor_prefix.size())
                                              : on_disk;
}

/// Why that model is of an architecture that this version does not have; none if it has it, or if
/// config.json does not say, which its reader refuses.
std::optional<std::string> other_architecture(const fs::path& model) {
  const fs::path file = model / "config.json";
  const nlohmann::json config =
      models::parse_json(models::read_text(file, case_bytes_max), file.string());
  if (!config.is_object() || !config.contains("model_type")) return std::nullopt;
  const nlohmann::json& type = config.at("model_type");
  const auto types = models::supported_model_types();
  if (!type.is_string() || std::find(types.begin(), types.end(), type) != types.end())
    return std::nullopt;
  return fmt::format("{}: \"model_type\" is \"{}\", and this version has {}", file.string(),
                     type.get<std::string>(), fmt::join(types, ", "));
}

void measure_scores(cell& here, const expectations& e, const step_record& r) {
  check_scores(r);
  const safetensors_file expected(e.folder / "expected.safetensors");
  for (const auto& [name, member] :
       {std::pair{"logps", &messages::response_result::logps},
        std::pair{"entropies", &messages::response_result::entropies}}) {
    const auto want = doubles(expected, name);
    const auto& responses = r.outcome.responses;
    const std::size_t longest =
        *std::max_element(r.response_tokens.begin(), r.response_tokens.end());
    check_count(want.size(), responses.size() * longest, fmt::format("expected {}", name));
    worst_error worst;
    for (std::size_t g = 0; g < responses.size(); ++g) {
      const auto& got = responses[g].*member;
      worst.add(largest_difference(got, std::span(want).subspan(g * longest, got.size())),
                fmt::format("response {}", g));
    }
    here.measure({fmt::format("{}, largest difference", name), worst.error,
                  e.number({"tolerance", fmt::format("{}_abs", name).c_str()}), worst.where});
  }
}

/// Each parameter has a tolerance of its own: the worst is the one that takes up most of it.
void measure_gradients(cell& here, const expectations& e, const subject& s, const step_record& r,
                       gradient_mode mode) {
  const std::string kind = fmt::format("grads_{}", messages::to_string(mode));
  const safetensors_file expected(e.folder / (kind + ".safetensors"));
  const nlohmann::json& bounds = e.about.at("tolerance").at(kind + "_rel");
  check_count(expected.tensors().size(), s.layout.all().size(), "expected gradients");
  check_count(r.gradients.size(), static_cast<std::size_t>(s.layout.total()), "gradients");
  worst_error worst;
  double error = 0, bound = 1;
  for (const models::parameter& p : s.layout.all()) {
    const std::string name = expected_name(p.name, s.config);
    const auto got =
        std::span(r.gradients)
            .subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
    const l2_error off = l2(got, doubles(expected, name));
    if (bounds.at(name).is_null()) {
      if (off.difference > 0)
        here.measure({"a gradient that must vanish, L2", off.difference, 0, p.name});
      continue;
    }
    const double own = bounds.at(name).get<double>(), here_error = off.difference / off.norm;
    const std::string before = worst.where;
    worst.add(here_error / own, p.name);
    if (worst.where == before) continue;
    error = here_error;
    bound = own;
  }
  if (worst.where.empty()) fail(errc::internal, "no expected gradient has a bound");
  here.measure({"gradient of the worst parameter, relative L2", error, bound, worst.where});
}

/// The step's own loss and metrics, and every loss of the case by the product's functions on the
/// log-probabilities of the step.
void measure_losses(cell& here, const expectations& e, const models::group& data,
                    const step_record& r) {
  check_scores(r);
  const double bound = e.number({"tolerance", "losses_abs"});
  here.measure({"loss, difference", std::abs(r.outcome.loss - e.settings.loss(loss_name).value),
                bound, loss_name});
  worst_error worst;
  for (const models::case_loss& loss : e.settings.losses) {
    const models::group_counts counts = models::counts_of(data, loss.settings);
    double value = 0;
    for (std::size_t g = 0; g < data.responses.size(); ++g) {
      const models::response& one = data.responses[g];
      const auto& logps = r.outcome.responses[g].logps;
      std::vector<float> unused(logps.size());
      value += models::evaluate_response(unused, logps, one.old_logps, one.ref_logps, {},
                                         one.advantage, one.loss_tokens, counts, loss.settings)
                   .loss;
    }
    worst.add(std::abs(value - loss.value), loss.name);
  }
  here.measure({"every loss of the case, largest difference", worst.error, bound, worst.where});
  here.measure({"KL, difference", std::abs(r.outcome.kl - e.number({"metrics", "kl_mean"})),
                e.number({"tolerance", "logps_abs"}), ""});
  double tokens = 0;
  for (const std::size_t one : r.response_tokens) tokens += static_cast<double>(one);
  const double clipped =
      e.number({"metrics", "clip_low_mean"}) + e.number({"metrics", "clip_high_mean"});
  here.measure(
      {"clipped tokens, difference",
       std::abs(std::round(r.outcome.clip_fraction * tokens) - std::round(clipped * tokens)),
       different_values, ""});
}

void measure_golden_update(cell& here, const expectations& e, const subject& s,
                           const step_record& r, gradient_mode mode) {
  const std::string word(messages::to_string(mode));
  const safetensors_file after(e.folder / fmt::format("after_step_{}.safetensors", word));
  check_count(r.weights.size(), static_cast<std::size_t>(s.layout.total()), "weights");
  double off = 0, moved = 0;
  worst_error worst;
  for (const models::parameter& p : s.layout.all()) {
    const auto begin = static_cast<std::size_t>(p.offset),
               count = static_cast<std::size_t>(p.count);
    const auto want = doubles(after, expected_name(p.name, s.config));
    const double own = l2(std::span(r.weights).subspan(begin, count), want).difference;
    off += own * own;
    moved += std::pow(l2(std::span(s.weights).subspan(begin, count), want).difference, 2);
    worst.add(own, p.name);
  }
  here.measure({"(w' - w_ref') / (w_ref' - w), L2 of all", std::sqrt(off / moved),
                e.number({"tolerance", "update_rel", word.c_str()}), worst.where});
}

}  // namespace

std::vector<golden_case_folder> golden_cases(const fs::path& folder) {
  std::error_code failure;
  std::vector<golden_case_folder> all;
  for (const auto& entry : fs::directory_iterator(folder, failure))
    if (fs::exists(entry.path() / "case.json", failure))
      all.push_back({entry.path().filename().string(), entry.path()});
  if (all.empty())
    fail(errc::bad_input, "--golden {} holds no folder with a case.json", folder.string());
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

std::vector<group> groups_of(const golden_case_folder& c, const settings& o) {
  std::vector<group> all;
  for (const gradient_mode mode : o.gradients) {
    group& g =
        all.emplace_back("golden " + c.name, mode, o.ranks,
                         std::vector<claim>{claim::response_fidelity,
                                            mode == gradient_mode::full ? claim::full_gradient
                                                                        : claim::frozen_gradient,
                                            claim::optimizer_delta});
    g.truth = truth_name;
  }
  return all;
}

void audit_golden(group& g, const golden_case_folder& c, const settings& o) {
  subject s;
  expectations expected;
  models::group data;
  std::optional<std::string> other;
  const auto failure = failure_of([&] {
    // A case of another architecture is no failure of this version. Whatever else is wrong is one.
    other = other_architecture(c.path / "model");
    if (other) return;
    s = checkpoint_subject(c.path / "model");
    expected = read_expectations(c.path);
    models::data_rules rules;
    rules.vocabulary = s.config.vocabulary;
    data = models::read_batch(expected.folder / "batch.safetensors", rules);
    expected.settings.loss(loss_name);
  });
  g.about = other ? "not a model of this version" : failure ? "not read" : s.about();
  if (other) return g.leave_out(*other);
  if (failure) return g.fail(*failure);
  actors::step_settings step;
  step.loss = expected.settings.loss(loss_name).settings;
  step.optimizer.adamw = expected.settings.optimizer;
  step.optimizer.max_grad_norm = expected.settings.max_grad_norm;
  step.gradient = g.gradient;

  for (std::size_t n = 0; n < g.ranks.size(); ++n) {
    if (o.go_on && !o.go_on()) fail(errc::cancelled, "the audit was stopped");
    if (o.tell)
      o.tell(fmt::format("{}, {} gradient, ranks {}", g.subject, messages::to_string(g.gradient),
                         g.ranks[n]));
    setup how;
    how.gradient = g.gradient;
    how.ranks = g.ranks[n];
    how.threads = o.threads;
    how.go_on = o.go_on;
    const shared_step run([&] { return first_step(s, data, how, step); });
    const auto fill = [&](claim of, const auto& measure) {
      cell& here = g.at(of, n);
      attempt(here, [&] { measure(here, run.get()); });
    };
    g.at(claim::response_fidelity, n).add_seconds(run.seconds());
    fill(claim::response_fidelity,
         [&](cell& here, const step_record& r) { measure_scores(here, expected, r); });
    fill(g.gradient == gradient_mode::full ? claim::full_gradient : claim::frozen_gradient,
         [&](cell& here, const step_record& r) {
           measure_gradients(here, expected, s, r, g.gradient);
           measure_losses(here, expected, data, r);
         });
    fill(claim::optimizer_delta, [&](cell& here, const step_record& r) {
      measure_golden_update(here, expected, s, r, g.gradient);
    });
    if (o.column_done) o.column_done();
  }
}

}  // namespace longstraw::audit
