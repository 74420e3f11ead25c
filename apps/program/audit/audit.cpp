#include "audit.hpp"

#include "claims.hpp"
#include "data.hpp"

namespace longstraw::audit {
namespace {

constexpr index prompt_tokens = 300;  // several chunks, the last of them short
constexpr unsigned group_seed = 51, logps_seed = 52;

setup setup_of(const settings& o, messages::gradient_mode gradient, index ranks) {
  setup how;
  how.gradient = gradient;
  how.ranks = ranks;
  how.threads = o.threads;
  how.go_on = o.go_on;
  return how;
}

}  // namespace

std::vector<group> groups_of(const subject& s, const settings& o) {
  std::vector<group> all;
  for (const messages::gradient_mode mode : o.gradients) {
    const bool full = mode == messages::gradient_mode::full;
    group& g = all.emplace_back(
        s.name, mode, o.ranks,
        std::vector<claim>{claim::execution_capacity, claim::response_fidelity,
                           full ? claim::full_gradient : claim::frozen_gradient,
                           claim::reference_gradient, claim::optimizer_delta,
                           claim::distributed_consistency, claim::group_size_memory,
                           claim::restart_equivalence, claim::learning});
    g.about = s.about();
    g.truth = "this project's reference in double, whole sequences";
  }
  return all;
}

void audit_subject(group& g, const subject& s, const settings& o) {
  const auto tell = [&](const std::string& what) {
    if (o.go_on && !o.go_on()) fail(errc::cancelled, "the audit was stopped");
    if (o.tell)
      o.tell(fmt::format("{}, {} gradient: {}", s.name, messages::to_string(g.gradient), what));
  };
  tell("reference in double");
  const actors::step_settings step = audit_step(g.gradient);
  models::group data = plain_group(prompt_tokens, {24, 9, 17, 31}, s.config.vocabulary, group_seed);
  const models::reference::decoder d(s.config, s.layout, s.weights);
  add_given_logps(data, d, step.loss, logps_seed);
  const truth reference = truth_of(s, data, step);
  tell("finite differences");
  const difference_samples differences = sample_differences(s, g.gradient);
  tell("one rank");
  const auto run = [&](index ranks) {
    return shared_step([&] { return first_step(s, data, setup_of(o, g.gradient, ranks), step); });
  };
  const shared_step one = run(1);

  for (std::size_t n = 0; n < g.ranks.size(); ++n) {
    const index ranks = g.ranks[n];
    const column c{&g, n, &s, setup_of(o, g.gradient, ranks)};
    const auto row = [&](claim of) {
      tell(fmt::format("{}, {} rank{}", to_string(of), ranks, ranks == 1 ? "" : "s"));
    };
    row(claim::response_fidelity);
    const shared_step here = ranks == 1 ? one : run(ranks);
    measure_fidelity(c, here, reference);
    measure_gradient(c, here, reference);
    measure_update(c, here, reference);
    measure_ranks(c, here, one);
    row(claim::reference_gradient);
    measure_differences(c, differences);
    row(claim::group_size_memory);
    measure_group_memory(c);
    row(claim::execution_capacity);
    measure_capacity(c, o.memory);
    row(claim::restart_equivalence);
    measure_restart(c, data);
    c.at(claim::learning).leave_out("no training run is measured yet");
    if (o.column_done) o.column_done();
  }
}

}  // namespace longstraw::audit
