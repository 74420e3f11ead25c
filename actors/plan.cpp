#include <longstraw/actors/plan.hpp>
#include <longstraw/kernels/head.hpp>

#include <algorithm>
#include <numeric>

namespace longstraw::actors {

using namespace messages;

bool workspace_sizes::covers(const workspace_sizes& o) const {
  return hidden >= o.hidden && d_hidden >= o.d_hidden && angles >= o.angles &&
         activations >= o.activations && head >= o.head && logits >= o.logits;
}

workspace_sizes workspace_of(const job& j) {
  const auto& model = *j.model;
  workspace_sizes w;
  index score_tokens = 0;
  for (const schedule_entry& e : j.plan.entries) {
    const index tokens = e.tokens.count();
    w.pass_tokens = std::max(w.pass_tokens, tokens);
    if (e.in == phase::replay) w.replay_tokens = std::max(w.replay_tokens, tokens);
    if (e.in == phase::score) score_tokens = std::max(score_tokens, tokens);
    if (e.what == verb::sample)
      w.logits = model.config().vocabulary + model.config().hidden_size + 1;
  }
  w.hidden = w.pass_tokens * model.config().hidden_size;
  w.d_hidden = w.replay_tokens * model.config().hidden_size;
  w.angles = w.pass_tokens * model.config().rotary.width;
  index kept = 0;
  for (index l = 0; l < model.layer_count(); ++l) {
    w.activations = std::max(w.activations, model.layer(l).activation_floats(w.pass_tokens, {}));
    if (w.replay_tokens > 0) kept += model.layer(l).activation_floats(w.replay_tokens, {});
  }
  w.activations = std::max(w.activations, kept);
  const index head_tokens = std::max(w.replay_tokens, score_tokens);
  if (head_tokens > 0) w.head = model.head_workspace_floats(head_tokens) + head_tokens;
  return w;
}

std::size_t memory_plan::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), std::size_t{0},
                         [](std::size_t sum, const auto& b) { return sum + b.second; });
}

namespace {

constexpr std::size_t float_bytes(index floats) {
  return static_cast<std::size_t>(floats) * sizeof(float);
}

// Conditional state of a prompt of that many captured tokens, and of the samples that decode from
// it.
std::size_t state_bytes(const job& j, index captured_tokens) {
  std::map<index, index> samples;
  for (const schedule_entry& e : j.plan.entries)
    if (e.in == phase::decode) {
      auto& tokens = samples[e.response];
      tokens = std::max(tokens, e.tokens.end - (static_cast<index>(j.data->prompt.size()) - 1));
    }
  std::size_t bytes = 0;
  for (index l = 0; l < j.model->layer_count(); ++l) {
    const models::state_spec s = j.model->layer(l).state({});
    const auto pages = [&](index tokens) {
      return float_bytes(kernels::blocks_of(tokens, j.page_tokens) * j.page_tokens *
                         s.page_floats_per_token);
    };
    bytes += float_bytes(s.recurrent_floats) + pages(captured_tokens);
    for (const auto& [sample, tokens] : samples)
      bytes += float_bytes(s.recurrent_floats) + pages(tokens);
  }
  return bytes;
}

index captured_tokens_of(const job& j) { return static_cast<index>(j.data->prompt.size()) - 1; }

}  // namespace

memory_plan plan_of(const job& j) {
  const workspace_sizes w = workspace_of(j);
  memory_plan p;
  p.bytes[j.arena_prefix + arena_name::conditional_state] = state_bytes(j, captured_tokens_of(j));
  p.bytes[j.arena_prefix + arena_name::hidden_states] =
      float_bytes(w.hidden + w.d_hidden + w.angles);
  p.bytes[j.arena_prefix + arena_name::activations] = float_bytes(w.activations);
  p.bytes[j.arena_prefix + arena_name::head] = float_bytes(w.head + w.logits);
  return p;
}

void check_budget(const job& j, const memory::budget& budget) {
  if (budget.limit_bytes() == 0) return;
  memory_plan plan = plan_of(j);
  // Between jobs the arenas of the plan hold only the workspace of the last one, which the next job
  // reuses or frees.
  std::size_t held = 0;
  for (const auto& u : budget.report()) {
    const auto planned = plan.bytes.find(u.name);
    if (planned == plan.bytes.end())
      held += u.current_bytes;
    else
      planned->second = std::max(planned->second, u.current_bytes);
  }
  if (held + plan.total() <= budget.limit_bytes()) return;

  std::string parts;
  for (const auto& u : budget.report())
    if (u.current_bytes > 0 && !plan.bytes.contains(u.name))
      parts += fmt::format("{} {}, ", u.name, memory::readable_bytes(u.current_bytes));
  for (const auto& [name, bytes] : plan.bytes)
    parts += fmt::format("{} {}, ", name, memory::readable_bytes(bytes));
  parts.resize(parts.size() - 2);

  // What would fit: the prompt whose state takes the room that everything else leaves.
  const std::size_t others =
      held + plan.total() - plan.bytes.at(j.arena_prefix + arena_name::conditional_state);
  std::string fits = "";
  if (others < budget.limit_bytes()) {
    index low = 0, high = captured_tokens_of(j);
    while (low < high) {
      const index middle = (low + high + 1) / 2;
      if (others + state_bytes(j, middle) <= budget.limit_bytes())
        low = middle;
      else
        high = middle - 1;
    }
    if (low > 0) fits = fmt::format("a prompt of {} tokens", low + 1);
  }
  const index chunk = workspace_of(j).pass_tokens;
  if (chunk > 64 && workspace_of(j).replay_tokens < chunk)
    fits += fmt::format("{}a smaller --chunk-tokens than {} needs less",
                        fits.empty() ? "" : " would fit; ", chunk);
  else if (!fits.empty())
    fits += " would fit";
  fail(errc::over_budget,
       "job '{}' with a prompt of {} tokens needs {} ({}), but --memory is {}{}{}", j.name,
       j.data->prompt.size(), memory::readable_bytes(held + plan.total()), parts,
       memory::readable_bytes(budget.limit_bytes()), fits.empty() ? "" : "; ", fits);
}

}  // namespace longstraw::actors
