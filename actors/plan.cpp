#include <longstraw/actors/page_views.hpp>
#include <longstraw/actors/plan.hpp>
#include <longstraw/actors/suffix_head.hpp>
#include <longstraw/kernels/head.hpp>

#include <algorithm>
#include <numeric>

namespace longstraw::actors {

using namespace messages;

bool workspace_sizes::covers(const workspace_sizes& o) const {
  return hidden >= o.hidden && d_hidden >= o.d_hidden && inputs >= o.inputs && angles >= o.angles &&
         activations >= o.activations && head >= o.head && logits >= o.logits;
}

workspace_sizes workspace_of(const job& j, const models::rank_share& at) {
  return workspace_of(j, at, j.gradient);
}

workspace_sizes workspace_of(const job& j, const models::rank_share& at, gradient_mode mode) {
  const auto& model = *j.model;
  workspace_sizes w;
  index head_tokens = 0;
  for (const schedule_entry& e : j.plan.entries) {
    const index tokens = e.tokens.count();
    if (e.in == phase::sweep && mode == gradient_mode::frozen) continue;
    w.pass_tokens = std::max(w.pass_tokens, tokens);
    if (e.in == phase::replay || e.in == phase::sweep)
      w.gradient_tokens = std::max(w.gradient_tokens, tokens);
    if (e.in == phase::replay || e.in == phase::score) head_tokens = std::max(head_tokens, tokens);
    if (e.what == verb::sample)
      w.logits = model.config().vocabulary + model.config().hidden_size + 1;
  }
  const index rows = at.largest_part(w.pass_tokens);
  const index gradient_rows = at.largest_part(w.gradient_tokens);
  w.hidden = rows * model.config().hidden_size;
  w.d_hidden = gradient_rows * model.config().hidden_size;
  w.angles = rows * model.config().rotary.width;
  index kept = 0;
  for (index l = 0; l < model.layer_count(); ++l) {
    w.activations = std::max(w.activations, model.layer(l).activation_floats(w.pass_tokens, at));
    if (w.gradient_tokens > 0) kept += model.layer(l).activation_floats(w.gradient_tokens, at);
  }
  if (j.checkpoint == checkpointing::layer)
    w.inputs = model.layer_count() * w.d_hidden;
  else
    w.activations = std::max(w.activations, kept);
  if (head_tokens > 0)
    w.head = model.head_workspace_floats(at.largest_part(head_tokens)) + head_tokens;
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

index captured_tokens_of(const job& j) { return static_cast<index>(j.data->prompt.size()) - 1; }

// What one layer keeps of the first `captured_tokens` of the prompt on one rank, and of the samples that decode from it.
struct state_sizes {
  index state = 0, snapshots = 0, gradients = 0;
};
state_sizes state_of(const job& j, index layer, const models::rank_share& at, index captured_tokens,
                     gradient_mode mode) {
  std::map<index, index> samples;
  for (const schedule_entry& e : j.plan.entries)
    if (e.in == phase::decode) {
      auto& tokens = samples[e.response];
      tokens = std::max(tokens, e.tokens.end - captured_tokens_of(j));
    }
  std::vector<token_range> chunks;
  for (token_range c : j.chunks) {
    if (c.begin >= captured_tokens) break;
    chunks.push_back({c.begin, std::min(c.end, captured_tokens)});
  }
  const models::state_spec s = j.model->layer(layer).state(at);
  const auto pages = [&](index tokens) {
    return kernels::blocks_of(tokens, j.page_tokens) * j.page_tokens * s.page_floats_per_token;
  };
  state_sizes sizes;
  const index prompt_pages = pages(tokens_of_rank(chunks, at));
  sizes.state = s.recurrent_floats + prompt_pages;
  for (const auto& [sample, tokens] : samples) sizes.state += s.recurrent_floats + pages(tokens);
  if (mode == gradient_mode::full) {
    sizes.snapshots = s.recurrent_floats * static_cast<index>(chunks.size());
    sizes.gradients = 2 * s.recurrent_floats + prompt_pages;
  }
  return sizes;
}

/// On its way between ranks at one time. A rank gives again while the others may still read what it gave last, and what
/// it gave before that may not be let go yet.
index staging_floats(const job& j, const models::rank_share& at) {
  constexpr index buffers = 3;
  if (at.alone()) return 0;
  index largest = 0;
  index longest = 0;
  for (const schedule_entry& e : j.plan.entries) {
    longest = std::max(longest, e.tokens.count());
    if (e.what == verb::score_head || e.what == verb::loss_head)
      largest = std::max(largest, score_floats(at.largest_part(e.tokens.count())));
  }
  for (index l = 0; l < j.model->layer_count(); ++l) {
    const models::layer_program& program = j.model->layer(l);
    for (std::size_t s = 0; s < program.segments().size(); ++s) {
      if (program.segments()[s].after == models::exchange::none) continue;
      for (const auto way : {models::direction::forward, models::direction::backward})
        largest = std::max(largest, program.given_floats(s, way, longest, at));
    }
  }
  return buffers * largest;
}

// All that depends on the length of the prompt, over all ranks.
std::size_t state_bytes(const job& j, index captured_tokens) {
  std::size_t bytes = 0;
  for (index r = 0; r < j.ranks; ++r)
    for (index l = 0; l < j.model->layer_count(); ++l) {
      const state_sizes s = state_of(j, l, {r, j.ranks}, captured_tokens, j.gradient);
      bytes += float_bytes(s.state + s.snapshots + s.gradients);
    }
  return bytes;
}

}  // namespace

memory_plan plan_of(const job& j) { return plan_of(j, j.gradient); }

memory_plan plan_of(const job& j, gradient_mode mode) {
  memory_plan p;
  const auto add = [&](const char* name, index floats) {
    if (floats > 0) p.bytes[j.arena_prefix + name] += float_bytes(floats);
  };
  p.bytes[j.arena_prefix + arena_name::conditional_state] = 0;
  for (index r = 0; r < j.ranks; ++r) {
    const models::rank_share at{r, j.ranks};
    const workspace_sizes w = workspace_of(j, at, mode);
    add(arena_name::hidden_states, w.hidden + w.d_hidden + w.inputs + w.angles);
    add(arena_name::activations, w.activations);
    add(arena_name::head, w.head + w.logits);
    add(arena_name::staging, staging_floats(j, at));
    for (index l = 0; l < j.model->layer_count(); ++l) {
      const state_sizes s = state_of(j, l, at, captured_tokens_of(j), mode);
      add(arena_name::conditional_state, s.state);
      add(arena_name::snapshots, s.snapshots);
      add(arena_name::state_gradients, s.gradients);
    }
  }
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

  std::vector<std::string> fits;
  // What would fit: the prompt whose state takes the room that everything else leaves.
  const std::size_t others = held + plan.total() - state_bytes(j, captured_tokens_of(j));
  if (others < budget.limit_bytes()) {
    index low = 0, high = captured_tokens_of(j);
    while (low < high) {
      const index middle = (low + high + 1) / 2;
      if (others + state_bytes(j, middle) <= budget.limit_bytes())
        low = middle;
      else
        high = middle - 1;
    }
    if (low > 0) fits.push_back(fmt::format("a prompt of {} tokens would fit", low + 1));
  }
  if (j.gradient == gradient_mode::full) {
    const std::size_t frozen = held + plan_of(j, gradient_mode::frozen).total();
    if (frozen <= budget.limit_bytes())
      fits.push_back(fmt::format(
          "--gradient frozen would fit with {}, full misses {}", memory::readable_bytes(frozen),
          memory::readable_bytes(held + plan.total() - budget.limit_bytes())));
  }
  const bool trains = workspace_of(j, {0, j.ranks}).gradient_tokens > 0;
  if (trains && j.checkpoint == checkpointing::none)
    fits.push_back("--checkpoint layer needs less");
  const index chunk = workspace_of(j, {0, j.ranks}).pass_tokens;
  index suffix = 0;
  for (const schedule_entry& e : j.plan.entries)
    if (e.in == phase::replay) suffix = std::max(suffix, e.tokens.count());
  if (chunk > 64 && suffix < chunk)
    fits.push_back(fmt::format("a smaller --chunk-tokens than {} needs less", chunk));
  fail(errc::over_budget,
       "job '{}' with a prompt of {} tokens needs {} ({}), but --memory is {}{}{}", j.name,
       j.data->prompt.size(), memory::readable_bytes(held + plan.total()), parts,
       memory::readable_bytes(budget.limit_bytes()), fits.empty() ? "" : "; ",
       fmt::join(fits, "; "));
}

}  // namespace longstraw::actors
