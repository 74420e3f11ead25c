// Fidelity, gradient, update and ranks: one step, seen from four sides.

#include "bounds.hpp"
#include "claims.hpp"
#include "compare.hpp"

namespace longstraw::audit {
namespace {

namespace ref = models::reference;
using messages::gradient_mode;

parity_bounds bounds_of(const subject& s) { return s.hybrid() ? hybrid_bounds : dense_bounds; }

/// Largest difference over all responses, and which.
template <class Scores, class Member, class Want>
worst_error worst_response(const std::vector<messages::response_result>& got, Member member,
                           const Scores& want, Want wanted) {
  worst_error worst;
  for (std::size_t r = 0; r < got.size(); ++r) {
    const auto& g = got[r].*member;
    const auto& w = want[r].*wanted;
    if (g.size() != w.size())
      fail(errc::internal, "response {} has {} values, expected {}", r, g.size(), w.size());
    worst.add(largest_difference(g, w), fmt::format("response {}", r));
  }
  return worst;
}

double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

}  // namespace

truth truth_of(const subject& s, const models::group& g, const actors::step_settings& settings) {
  const ref::decoder d(s.config, s.layout, s.weights);
  truth t;
  t.gradients.resize(s.weights.size());
  if (settings.gradient == gradient_mode::full) {
    t.scores = ref::evaluate_group(d, g, settings.loss, nullptr, t.gradients).scores;
  } else {
    const ref::decoder_state captured = ref::capture_prompt(d, g);
    ref::evaluate_group(d, g, settings.loss, &captured, t.gradients);
    t.scores = ref::evaluate_group(d, g, settings.loss, nullptr).scores;
  }
  t.grad_norm = ref::norm_of(t.gradients);
  const std::vector<double> before(s.weights.begin(), s.weights.end());
  t.weights = ref::first_update(before, t.gradients, settings.optimizer.adamw,
                                settings.optimizer.max_grad_norm);
  return t;
}

void measure_fidelity(const column& c, const shared_step& step, const truth& t) {
  cell& here = c.at(claim::response_fidelity);
  here.add_seconds(step.seconds());
  attempt(here, [&] {
    const auto& responses = step.get().outcome.responses;
    const parity_bounds b = bounds_of(*c.model);
    const auto logps = worst_response(responses, &messages::response_result::logps, t.scores,
                                      &ref::token_scores::logps);
    const auto entropies = worst_response(responses, &messages::response_result::entropies,
                                          t.scores, &ref::token_scores::entropies);
    here.measure({"logps, largest difference", logps.error, b.logps, logps.where});
    here.measure({"entropies, largest difference", entropies.error, b.entropies, entropies.where});
  });
}

void measure_gradient(const column& c, const shared_step& step, const truth& t) {
  const bool full = c.how.gradient == gradient_mode::full;
  cell& here = c.at(full ? claim::full_gradient : claim::frozen_gradient);
  attempt(here, [&] {
    const step_record& r = step.get();
    const auto worst = worst_gradient<double>(r.gradients, t.gradients, c.model->layout);
    here.measure({"gradient of the worst parameter, relative L2", worst.error,
                  bounds_of(*c.model).gradient, worst.where});
    here.measure({"gradient norm, relative", relative(r.outcome.grad_norm, t.grad_norm),
                  grad_norm_relative, ""});
  });
}

void measure_update(const column& c, const shared_step& step, const truth& t) {
  cell& here = c.at(claim::optimizer_delta);
  attempt(here, [&] {
    const step_record& r = step.get();
    const l2_error off = l2(r.weights, t.weights);
    const l2_error moved = l2(c.model->weights, t.weights);
    // The parameter that adds most to the error of all.
    worst_error worst;
    for (const models::parameter& p : c.model->layout.all()) {
      const auto begin = static_cast<std::size_t>(p.offset),
                 count = static_cast<std::size_t>(p.count);
      worst.add(
          l2(std::span(r.weights).subspan(begin, count), std::span(t.weights).subspan(begin, count))
              .difference,
          p.name);
    }
    here.measure({"(w' - w_ref') / (w_ref' - w), L2 of all", off.difference / moved.difference,
                  bounds_of(*c.model).update, worst.where});
  });
}

void measure_ranks(const column& c, const shared_step& step, const shared_step& one) {
  cell& here = c.at(claim::distributed_consistency);
  if (c.how.ranks == 1) return here.leave_out("the others are held against one rank");
  attempt(here, [&] {
    const step_record &many = step.get(), &single = one.get();
    const auto logps = worst_response(many.outcome.responses, &messages::response_result::logps,
                                      single.outcome.responses, &messages::response_result::logps);
    const auto gradient = worst_gradient<float>(many.gradients, single.gradients, c.model->layout);
    const l2_error whole = l2(many.gradients, single.gradients);
    here.measure({"gradient against one rank, relative L2 of all", whole.difference / whole.norm,
                  ranks_gradient, gradient.where});
    here.measure({"gradient of the worst parameter against one rank, relative L2", gradient.error,
                  bounds_of(*c.model).gradient, gradient.where});
    here.measure(
        {"logps against one rank, largest difference", logps.error, ranks_logps, logps.where});
    here.measure({"gradient norm against one rank, relative",
                  relative(many.outcome.grad_norm, single.outcome.grad_norm), ranks_grad_norm, ""});
  });
}

}  // namespace longstraw::audit
