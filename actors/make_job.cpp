#include <longstraw/actors/make_job.hpp>

#include <algorithm>

namespace longstraw::actors {

using namespace messages;

namespace {

// What comes through the library's front door may be anything; kernels trust it afterwards.
void check_group(const models::group& g, index vocabulary) {
  const auto check_ids = [&](const std::vector<token_id>& ids, const std::string& what) {
    for (const token_id id : ids)
      if (id < 0 || id >= vocabulary)
        fail(errc::bad_input, "{}: {} holds id {}, expected 0 to {}", g.name, what, id,
             vocabulary - 1);
  };
  if (g.prompt.empty()) fail(errc::bad_input, "{}: the prompt is empty", g.name);
  check_ids(g.prompt, "the prompt");
  for (std::size_t r = 0; r < g.responses.size(); ++r) {
    const models::response& response = g.responses[r];
    const std::string what = fmt::format("response {}", r);
    check_ids(response.tokens, what);
    const auto tokens = static_cast<index>(response.tokens.size());
    if (response.loss_tokens < 0 || response.loss_tokens > tokens)
      fail(errc::bad_input, "{}: {} has {} loss tokens, expected 0 to {}", g.name, what,
           response.loss_tokens, tokens);
    for (const auto* logps : {&response.old_logps, &response.ref_logps})
      if (!logps->empty() && static_cast<index>(logps->size()) != tokens)
        fail(errc::bad_input, "{}: {} has {} given log-probabilities, expected {}", g.name, what,
             logps->size(), tokens);
  }
}

}  // namespace

job_ptr make_job(const job_origin& from, const char* name, const models::group& g) {
  check_group(g, from.model->config().vocabulary);
  auto j = std::make_shared<job>();
  j->number = from.number;
  j->name = name;
  j->model = from.model;
  j->data = std::make_shared<const models::group>(g);
  // A page longer than the prompt would only reserve what nobody uses.
  constexpr index shortest_page = 256;
  j->page_tokens = std::min(from.options.page_tokens,
                            std::max(shortest_page, static_cast<index>(g.prompt.size())));
  j->arena_prefix = from.options.arena_prefix;
  j->ranks = from.options.ranks;
  j->policy_version = from.policy_version;
  j->chunks = chunks_of_prompt(static_cast<index>(g.prompt.size()), from.options.chunk_tokens);
  return j;
}

job_ptr make_step_job(const job_origin& from, const models::group& g, const step_settings& s,
                      const rank_gradients& gradients) {
  const models::language_model& model = *from.model;
  if (!model.parameters()->trains())
    fail(errc::bad_input, "the model was loaded without gradients and cannot take a step");
  if (!model.parameters()->keeps_moments() && s.optimizer_step != 1)
    fail(errc::bad_input,
         "step_settings::optimizer_step is {}, expected 1: the model was loaded for one update, "
         "without moments",
         s.optimizer_step);
  for (index l = 0; s.gradient == gradient_mode::full && l < model.layer_count(); ++l)
    if (!model.layer(l).gives_state_gradient())
      fail(errc::bad_input,
           "layer {} ({}) gives no gradient of its state, which the full gradient needs", l,
           model.layer(l).kind());
  auto j = make_job(from, "step", g);
  j->loss = s.loss;
  j->counts = models::counts_of(g, s.loss);
  j->commits = true;
  j->gradient = s.gradient;
  j->checkpoint = s.checkpoint;
  j->gradients = gradients;
  j->optimizer = s.optimizer;
  j->optimizer_step = s.optimizer_step;
  const index prompt = static_cast<index>(g.prompt.size());
  const index layers = model.layer_count();
  std::vector<index> to_score;
  for (index r = 0; r < static_cast<index>(g.responses.size()); ++r) {
    const models::response& response = g.responses[static_cast<std::size_t>(r)];
    response_result result;
    result.old_logps = response.old_logps;
    j->results.push_back(std::move(result));
    if (response.loss_tokens == 0) continue;
    const bool signal = models::has_signal(response, s.loss);
    if (signal) j->replayed_responses.push_back(r);
    if (!signal || (response.old_logps.empty() && s.separate_score)) to_score.push_back(r);
    if (signal && s.loss.beta != 0 && response.ref_logps.empty())
      fail(errc::bad_input, "{}: beta is {} but response {} has no reference log-probabilities",
           g.name, s.loss.beta, r);
  }
  if (j->replayed_responses.empty()) return j;  // nothing to learn from: an empty schedule
  add_capture(j->plan, prompt, from.options.chunk_tokens, layers);
  const auto tokens_of = [&](index r) {
    return static_cast<index>(g.responses[static_cast<std::size_t>(r)].tokens.size());
  };
  for (const index r : to_score) add_score(j->plan, r, prompt, tokens_of(r), layers);
  j->scores_first = !to_score.empty() && s.separate_score;
  for (const index r : j->replayed_responses)
    add_replay(j->plan, r, prompt, tokens_of(r), layers, s.checkpoint);
  if (s.gradient == gradient_mode::full)
    add_sweep(j->plan, prompt, from.options.chunk_tokens, layers, s.checkpoint);
  return j;
}

}  // namespace longstraw::actors
