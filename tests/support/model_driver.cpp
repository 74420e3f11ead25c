#include "model_driver.hpp"

#include <algorithm>
#include <limits>

namespace longstraw::testing {

using models::layer_pass;
using models::state_page;

/// One run of tokens through the model. Workspaces lie between guard words and begin as NaN.
struct model_driver::run {
  model_driver& d;
  std::span<const token_id> ids;
  token_range positions;
  guarded hidden, d_hidden, angles;
  std::vector<std::unique_ptr<guarded>> activations;
  std::vector<std::vector<state_page>> pages, gradients;
  std::vector<layer_pass> passes;
  std::unique_ptr<guarded> head_workspace;
  models::head_pass head;

  run(model_driver& driver, std::span<const token_id> i, index position, bool keep)
      : d(driver),
        ids(i),
        positions{position, position + static_cast<index>(i.size())},
        hidden(tokens() * d.model_.config().hidden_size),
        d_hidden(tokens() * d.model_.config().hidden_size, 0.0f),
        angles(tokens() * d.model_.config().rotary.width),
        pages(static_cast<std::size_t>(d.model_.layer_count())),
        gradients(pages.size()) {
    const models::model_config& c = d.model_.config();
    for (index l = 0; l < d.model_.layer_count(); ++l) {
      activations.push_back(
          std::make_unique<guarded>(d.model_.layer(l).activation_floats(tokens(), {})));
      layer_pass p;
      p.positions = p.whole = positions;
      p.hidden = hidden.matrix(tokens(), c.hidden_size);
      p.d_hidden = d_hidden.matrix(tokens(), c.hidden_size);
      p.angles = angles.matrix(tokens(), c.rotary.width);
      p.activations = activations.back()->values();
      p.keep = keep;
      p.gradients = d.model_.parameters()->gradients();
      p.on = &d.on_;
      passes.push_back(p);
    }
  }

  index tokens() const { return positions.count(); }
  layer_pass& pass(index l) { return passes[static_cast<std::size_t>(l)]; }

  /// Pages of the first `end` tokens.
  void use_pages(driver_state& state, index end, bool writes, bool full) {
    for (std::size_t l = 0; l < passes.size(); ++l) {
      driver_layer_state& s = state.layers[l];
      pages[l] = d.pages_of(s.pages, static_cast<index>(l), end);
      passes[l].pages = pages[l];
      passes[l].writes_pages = writes;
      passes[l].recurrent_before = s.recurrent;
      if (!full) continue;
      gradients[l] = d.pages_of(s.page_gradients, static_cast<index>(l), end);
      passes[l].page_gradients = gradients[l];
      passes[l].d_recurrent = s.d_recurrent;
    }
  }

  void forward() {
    layer_pass& first = passes.front();
    d.model_.embed(first.hidden, mat(angles.data(), tokens(), d.model_.config().rotary.width), ids,
                   positions, d.on_);
    for (index l = 0; l < d.model_.layer_count(); ++l) {
      const auto segments = d.model_.layer(l).segments();
      for (std::size_t s = 0; s < segments.size(); ++s)
        if (segments[s].for_state || !pass(l).state_only) d.model_.layer(l).forward(s, pass(l));
    }
  }

  void backward() {
    for (index l = d.model_.layer_count() - 1; l >= 0; --l) {
      const auto segments = d.model_.layer(l).segments();
      for (std::size_t s = segments.size(); s-- > 0;)
        if (segments[s].for_state || !pass(l).state_only) d.model_.layer(l).backward(s, pass(l));
    }
    d.model_.embed_backward(passes.front().d_hidden, ids, passes.front().gradients, d.on_);
  }

  driver_scores scores(std::span<const token_id> targets, float temperature) {
    const auto count = static_cast<index>(targets.size());
    driver_scores s{std::vector<float>(targets.size()), std::vector<float>(targets.size())};
    head_workspace = std::make_unique<guarded>(d.model_.head_workspace_floats(count));
    head.hidden = passes.front().hidden.row_range(tokens() - count, tokens());
    head.d_hidden = passes.front().d_hidden.row_range(tokens() - count, tokens());
    head.targets = targets;
    head.temperature = temperature;
    head.logps = s.logps;
    head.entropies = s.entropies;
    head.workspace = head_workspace->values();
    head.gradients = d.model_.parameters()->gradients();
    head.on = &d.on_;
    d.model_.head_forward(head);
    return s;
  }
};

model_driver::model_driver(const models::language_model& model, index page_tokens,
                           index chunk_tokens)
    : model_(model), page_tokens_(page_tokens), chunk_tokens_(chunk_tokens) {}

void model_driver::make_room(driver_state& state, index tokens) const {
  state.layers.resize(static_cast<std::size_t>(model_.layer_count()));
  for (index l = 0; l < model_.layer_count(); ++l) {
    driver_layer_state& s = state.layers[static_cast<std::size_t>(l)];
    const models::state_spec spec = model_.layer(l).state({});
    s.recurrent.resize(static_cast<std::size_t>(spec.recurrent_floats));
    s.d_recurrent.resize(s.recurrent.size());
    if (spec.page_floats_per_token == 0) continue;
    const auto floats = static_cast<std::size_t>(spec.page_floats_per_token * page_tokens_);
    while (static_cast<index>(s.pages.size()) * page_tokens_ < tokens) {
      s.pages.emplace_back(floats, std::numeric_limits<float>::quiet_NaN());
      s.page_gradients.emplace_back(floats, 0.0f);
    }
  }
}

std::vector<state_page> model_driver::pages_of(std::vector<std::vector<float>>& memory, index layer,
                                               index tokens) const {
  std::vector<state_page> pages;
  if (model_.layer(layer).state({}).page_floats_per_token == 0) return pages;
  for (std::size_t i = 0; i < memory.size(); ++i) {
    const index position = static_cast<index>(i) * page_tokens_;
    if (position >= tokens) break;
    pages.push_back(
        {memory[i].data(), page_tokens_, std::min(page_tokens_, tokens - position), position});
  }
  return pages;
}

driver_state model_driver::capture(std::span<const token_id> ids) {
  driver_state state;
  make_room(state, 0);
  while (state.tokens < static_cast<index>(ids.size())) {
    const index count = std::min(chunk_tokens_, static_cast<index>(ids.size()) - state.tokens);
    for (driver_layer_state& s : state.layers) s.recurrent_at.push_back(s.recurrent);
    make_room(state, state.tokens + count);
    run r(*this,
          ids.subspan(static_cast<std::size_t>(state.tokens), static_cast<std::size_t>(count)),
          state.tokens, false);
    r.use_pages(state, r.positions.end, true, false);
    for (std::size_t l = 0; l < r.passes.size(); ++l)
      r.passes[l].recurrent_after = state.layers[l].recurrent;
    r.passes.back().state_only = true;
    r.forward();
    state.tokens += count;
  }
  return state;
}

driver_scores model_driver::score(const driver_state& state, std::span<const token_id> ids,
                                  std::span<const token_id> targets, float temperature) {
  run r(*this, ids, state.tokens, false);
  driver_state& unchanged = const_cast<driver_state&>(state);  // the pass writes nothing there
  r.use_pages(unchanged, state.tokens, false, false);
  r.forward();
  return r.scores(targets, temperature);
}

driver_scores model_driver::replay(driver_state& state, std::span<const token_id> ids,
                                   std::span<const token_id> targets,
                                   std::span<const float> d_logps, bool full, float temperature) {
  run r(*this, ids, state.tokens, true);
  r.use_pages(state, state.tokens, false, full);
  // The gradient of the state after the suffix is zero; that of the state before is summed over
  // suffixes.
  std::vector<std::vector<float>> d_recurrent;
  for (std::size_t l = 0; l < r.passes.size(); ++l) {
    d_recurrent.emplace_back(state.layers[l].d_recurrent.size());
    if (full) r.passes[l].d_recurrent = d_recurrent[l];
  }
  r.forward();
  driver_scores s = r.scores(targets, temperature);
  r.head.d_logps = d_logps;
  model_.head_backward(r.head);
  r.backward();
  for (std::size_t l = 0; full && l < r.passes.size(); ++l)
    for (std::size_t i = 0; i < d_recurrent[l].size(); ++i)
      state.layers[l].d_recurrent[i] += d_recurrent[l][i];
  return s;
}

void model_driver::sweep(driver_state& state, std::span<const token_id> ids) {
  const index chunks = (static_cast<index>(ids.size()) + chunk_tokens_ - 1) / chunk_tokens_;
  for (index c = chunks - 1; c >= 0; --c) {
    const index begin = c * chunk_tokens_;
    const index end = std::min(begin + chunk_tokens_, static_cast<index>(ids.size()));
    run r(*this,
          ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
          begin, true);
    r.use_pages(state, end, true, true);
    for (std::size_t l = 0; l < r.passes.size(); ++l)
      r.passes[l].recurrent_before = state.layers[l].recurrent_at[static_cast<std::size_t>(c)];
    r.passes.back().state_only = true;
    r.forward();
    r.backward();
  }
}

std::vector<float> model_driver::decode(driver_state& state, std::span<const token_id> ids) {
  make_room(state, state.tokens + static_cast<index>(ids.size()));
  run r(*this, ids, state.tokens, false);
  r.use_pages(state, r.positions.end, true, false);
  for (std::size_t l = 0; l < r.passes.size(); ++l)
    r.passes[l].recurrent_after = state.layers[l].recurrent;
  r.forward();
  state.tokens = r.positions.end;
  guarded logits(model_.config().vocabulary), workspace(model_.config().hidden_size + 1);
  model_.last_logits(logits.matrix(1, model_.config().vocabulary), r.passes.front().hidden,
                     workspace.values(), on_);
  return {logits.values().begin(), logits.values().end()};
}

std::vector<float> model_driver::keys_and_values(const driver_state& state, index layer,
                                                 bool gradients) const {
  const models::model_config& c = model_.config();
  const driver_layer_state& s = state.layers[static_cast<std::size_t>(layer)];
  const auto& pages = gradients ? s.page_gradients : s.pages;
  std::vector<float> all;
  for (index part = 0; part < 2 * c.kv_heads; ++part)  // heads of keys, then of values
    for (index t = 0; t < state.tokens; ++t) {
      const std::vector<float>& page = pages[static_cast<std::size_t>(t / page_tokens_)];
      const auto row = page.begin() + (part * page_tokens_ + t % page_tokens_) * c.head_dim;
      all.insert(all.end(), row, row + c.head_dim);
    }
  return all;
}

}  // namespace longstraw::testing
