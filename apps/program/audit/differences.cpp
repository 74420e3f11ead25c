// The conventional check of a gradient: two evaluations of the whole loss, a step apart.

#include "bounds.hpp"
#include "claims.hpp"
#include "compare.hpp"
#include "data.hpp"

#include <algorithm>
#include <map>

namespace longstraw::audit {
namespace {

namespace ref = models::reference;

constexpr index prompt_tokens = 21;
constexpr unsigned group_seed = 31, logps_seed = 32;

/// "layers.*.mlp.up_proj.weight"
std::string kind_of(const std::string& name) {
  const auto at = name.find("layers.");
  if (at == std::string::npos) return name;
  return "layers.*" + name.substr(name.find('.', at + 7));
}

/// The first layer that has a kind stands for it; there the largest value of the gradient, and one
/// whose place does not depend on it.
std::map<std::string, std::vector<std::size_t>> places(const models::parameter_layout& layout,
                                                       std::span<const double> gradients) {
  std::map<std::string, std::vector<std::size_t>> all;
  for (const models::parameter& p : layout.all()) {
    auto& here = all[kind_of(p.name)];
    if (!here.empty()) continue;
    const auto begin = gradients.begin() + p.offset, end = begin + p.count;
    const auto largest =
        std::max_element(begin, end, [](double a, double b) { return std::abs(a) < std::abs(b); });
    here.push_back(static_cast<std::size_t>(largest - gradients.begin()));
    here.push_back(static_cast<std::size_t>(p.offset + p.count / 3));
  }
  return all;
}

template <class Gradients>
worst_error worst_kind(const difference_samples& d, const Gradients& got) {
  check_count(got.size(), d.gradients.size(), "gradients");
  if (d.samples.empty()) fail(errc::internal, "there are no differences to compare with");
  std::map<std::string, std::pair<std::vector<double>, std::vector<double>>> kinds;
  for (const auto& s : d.samples) {
    kinds[s.kind].first.push_back(static_cast<double>(got[s.at]));
    kinds[s.kind].second.push_back(s.difference);
  }
  const double floor = norm_floor_share * ref::norm_of(d.gradients) /
                       std::sqrt(static_cast<double>(d.gradients.size()));
  worst_error worst;
  for (const auto& [kind, values] : kinds) {
    const l2_error e = l2(values.first, values.second);
    worst.add(e.difference / std::max(e.norm, floor), kind);
  }
  return worst;
}

}  // namespace

difference_samples sample_differences(const subject& s, messages::gradient_mode mode) {
  const models::loss_settings loss = audit_step(mode).loss;
  ref::decoder d(s.config, s.layout, s.weights);
  difference_samples out;
  out.data = plain_group(prompt_tokens, {5, 7}, s.config.vocabulary, group_seed);
  add_given_logps(out.data, d, loss, logps_seed);
  const ref::decoder_state state = ref::capture_prompt(d, out.data);
  const ref::decoder_state* captured = mode == messages::gradient_mode::frozen ? &state : nullptr;
  out.gradients.resize(s.weights.size());
  ref::evaluate_group(d, out.data, loss, captured, out.gradients);

  for (const auto& [kind, at] : places(s.layout, out.gradients))
    for (const std::size_t i : at) {
      double& w = d.weights()[i];
      const double kept = w;
      w = kept + difference_step;
      const double above = ref::evaluate_group(d, out.data, loss, captured).loss;
      w = kept - difference_step;
      const double below = ref::evaluate_group(d, out.data, loss, captured).loss;
      w = kept;
      out.samples.push_back({kind, i, (above - below) / (2 * difference_step)});
    }
  return out;
}

void measure_differences(const column& c, const difference_samples& d) {
  cell& here = c.at(claim::reference_gradient);
  attempt(here, [&] {
    const auto reference = worst_kind(d, d.gradients);
    here.measure({"reference gradient against central differences, relative", reference.error,
                  difference_reference, reference.where});
    const step_record r = first_step(*c.model, d.data, c.how, audit_step(c.how.gradient));
    const auto step = worst_kind(d, r.gradients);
    const parity_bounds b = c.model->hybrid() ? hybrid_bounds : dense_bounds;
    here.measure({"gradient of the step against central differences, relative", step.error,
                  b.gradient + difference_reference, step.where});
  });
}

}  // namespace longstraw::audit
