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
  check_count(got.size(), want.size(), "responses");
  worst_error worst;
  for (std::size_t r = 0; r < got.size(); ++r)
    worst.add(largest_difference(got[r].*member, want[r].*wanted), fmt::format("response {}", r));
  return worst;
}

void measure_loss(cell& here, const actors::step_outcome& got, const truth& t,
                  const parity_bounds& b) {
  here.measure({"loss, difference", std::abs(got.loss - t.loss), b.loss, ""});
  here.measure({"KL, difference", std::abs(got.kl - t.kl), b.logps, ""});
  const double clipped = got.clip_fraction * static_cast<double>(t.loss_tokens);
  here.measure({"clipped tokens, difference",
                std::abs(std::round(clipped) - static_cast<double>(t.clipped)), different_values,
                ""});
}

double relative(double got, double want) { return std::abs(got - want) / std::abs(want); }

}  // namespace

truth truth_of(const subject& s, const models::group& g, const actors::step_settings& settings) {
  const ref::decoder d(s.config, s.layout, s.weights);
  truth t;
  t.gradients.resize(s.weights.size());
  ref::group_evaluation whole;
  if (settings.gradient == gradient_mode::full) {
    whole = ref::evaluate_group(d, g, settings.loss, nullptr, t.gradients);
  } else {
    const ref::decoder_state captured = ref::capture_prompt(d, g);
    ref::evaluate_group(d, g, settings.loss, &captured, t.gradients);
    whole = ref::evaluate_group(d, g, settings.loss, nullptr);
  }
  t.scores = std::move(whole.scores);
  t.loss = whole.loss;
  t.kl = whole.kl;
  t.clipped = whole.clipped;
  t.loss_tokens = whole.loss_tokens;
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
    check_scores(step.get());
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
    measure_loss(here, r.outcome, t, bounds_of(*c.model));
  });
}

void measure_update(const column& c, const shared_step& step, const truth& t) {
  cell& here = c.at(claim::optimizer_delta);
  attempt(here, [&] {
    const step_record& r = step.get();
    const l2_error off = l2(r.weights, t.weights);
    const l2_error moved = l2(c.model->weights, t.weights);
    here.measure({"(w' - w_ref') / (w_ref' - w), L2 of all", off.difference / moved.difference,
                  bounds_of(*c.model).update,
                  largest_share<double>(r.weights, t.weights, c.model->layout)});
  });
}

void measure_ranks(const column& c, const shared_step& step, const shared_step& one) {
  cell& here = c.at(claim::distributed_consistency);
  if (c.how.ranks == 1) return here.leave_out("the others are held against one rank");
  attempt(here, [&] {
    const step_record &many = step.get(), &single = one.get();
    check_scores(many);
    check_scores(single);
    const auto logps = worst_response(many.outcome.responses, &messages::response_result::logps,
                                      single.outcome.responses, &messages::response_result::logps);
    const auto worst = [&](bool decay) {
      return worst_gradient<float>(
          many.gradients, single.gradients, c.model->layout,
          [&](const models::parameter& p) { return is_decay(p.name) == decay; });
    };
    const l2_error whole = l2(many.gradients, single.gradients);
    here.measure({"gradient against one rank, relative L2 of all", whole.difference / whole.norm,
                  ranks_gradient,
                  largest_share<float>(many.gradients, single.gradients, c.model->layout)});
    const worst_error plain = worst(false);
    here.measure({"gradient of the worst parameter against one rank, relative L2", plain.error,
                  ranks_gradient, plain.where});
    if (const worst_error decay = worst(true); !decay.where.empty())
      here.measure({"gradient of the worst decay parameter against one rank, relative L2",
                    decay.error, ranks_decay_gradient, decay.where});
    here.measure(
        {"logps against one rank, largest difference", logps.error, ranks_logps, logps.where});
    here.measure({"gradient norm against one rank, relative",
                  relative(many.outcome.grad_norm, single.outcome.grad_norm), ranks_grad_norm, ""});
  });
}

}  // namespace longstraw::audit
