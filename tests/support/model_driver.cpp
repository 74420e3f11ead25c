#include "model_driver.hpp"

#include <algorithm>
#include <limits>

namespace longstraw::testing {

using models::direction;
using models::layer_pass;
using models::state_page;

namespace {
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

template <class T>
std::span<T> part_of(std::span<T> all, token_range part) {
  return all.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.count()));
}
}  // namespace

/// One rank's slice of a run. Workspaces lie between guard words and begin as NaN.
struct model_driver::rank_run {
  const models::language_model& model;
  token_range positions;
  guarded hidden, d_hidden, angles;
  std::vector<float> own_gradients;  ///< of several ranks, to be summed
  std::vector<std::unique_ptr<guarded>> activations;
  std::vector<std::vector<state_page>> pages, gradients;
  std::vector<layer_pass> passes;
  std::unique_ptr<guarded> head_workspace;
  models::head_pass head;

  rank_run(const models::language_model& m, kernels::executor& on, token_range whole,
           models::rank_share at, bool keep)
      : model(m),
        positions(at.slice(whole)),
        hidden(positions.count() * m.config().hidden_size),
        d_hidden(positions.count() * m.config().hidden_size, 0.0f),
        angles(positions.count() * m.config().rotary.width),
        own_gradients(at.alone() ? 0 : m.parameters()->gradients().size()),
        pages(static_cast<std::size_t>(m.layer_count())),
        gradients(pages.size()) {
    for (index l = 0; l < m.layer_count(); ++l) {
      activations.push_back(
          std::make_unique<guarded>(m.layer(l).activation_floats(whole.count(), at)));
      layer_pass p;
      p.positions = positions;
      p.whole = whole;
      p.at = at;
      p.hidden = hidden.matrix(positions.count(), m.config().hidden_size);
      p.d_hidden = d_hidden.matrix(positions.count(), m.config().hidden_size);
      p.angles = angles.matrix(positions.count(), m.config().rotary.width);
      p.activations = activations.back()->values();
      p.keep = keep;
      p.gradients = at.alone() ? m.parameters()->gradients() : std::span<float>(own_gradients);
      p.on = &on;
      passes.push_back(p);
    }
  }

  layer_pass& pass(index l) { return passes[static_cast<std::size_t>(l)]; }

  /// targets: of the last of this rank's tokens.
  void head_forward(std::span<const token_id> targets, std::span<float> logps,
                    std::span<float> entropies, float temperature) {
    if (targets.empty()) return;
    const auto count = static_cast<index>(targets.size()), tokens = positions.count();
    head_workspace = std::make_unique<guarded>(model.head_workspace_floats(count));
    head.hidden = passes.front().hidden.row_range(tokens - count, tokens);
    head.d_hidden = passes.front().d_hidden.row_range(tokens - count, tokens);
    head.targets = targets;
    head.temperature = temperature;
    head.logps = logps;
    head.entropies = entropies;
    head.workspace = head_workspace->values();
    head.gradients = passes.front().gradients;
    head.on = passes.front().on;
    model.head_forward(head);
  }
};

/// One run of tokens through the model, on all ranks.
struct model_driver::run {
  model_driver& d;
  std::span<const token_id> ids;
  token_range whole;
  std::vector<std::unique_ptr<rank_run>> ranks;

  run(model_driver& driver, std::span<const token_id> i, index position, bool keep)
      : d(driver), ids(i), whole{position, position + static_cast<index>(i.size())} {
    for (index r = 0; r < d.ranks_; ++r)
      ranks.push_back(std::make_unique<rank_run>(d.model_, d.on_, whole, d.share(r), keep));
  }

  /// Pages of the first `chunks` chunks.
  void use_pages(driver_state& state, std::size_t chunks, bool writes, bool full) {
    for (std::size_t r = 0; r < ranks.size(); ++r)
      for (std::size_t l = 0; l < ranks[r]->passes.size(); ++l) {
        driver_layer_state& s = state.ranks[r][l];
        layer_pass& pass = ranks[r]->passes[l];
        const auto rank = static_cast<index>(r);
        pass.pages = ranks[r]->pages[l] = d.pages_of(s.pages, state, rank, chunks);
        pass.writes_pages = writes;
        pass.recurrent_before = s.recurrent;
        if (!full) continue;
        pass.page_gradients = ranks[r]->gradients[l] =
            d.pages_of(s.page_gradients, state, rank, chunks);
        pass.d_recurrent = s.d_recurrent;
      }
  }

  void keep_recurrent(driver_state& state) {
    for (std::size_t r = 0; r < ranks.size(); ++r)
      for (std::size_t l = 0; l < ranks[r]->passes.size(); ++l)
        ranks[r]->passes[l].recurrent_after = state.ranks[r][l].recurrent;
  }

  void last_layer_state_only() {
    for (auto& rank : ranks) rank->passes.back().state_only = true;
  }

  /// The tokens of a rank, counted from the first of the run.
  token_range rows(const rank_run& rank) const {
    return {rank.positions.begin - whole.begin, rank.positions.end - whole.begin};
  }

  void exchange_after(index l, std::size_t s, direction way) {
    const models::layer_program& layer = d.model_.layer(l);
    if (ranks.size() == 1 ||
        !models::exchanges_after(layer.segments(), s, ranks[0]->pass(l).state_only))
      return;
    std::vector<std::unique_ptr<guarded>> memory;
    std::vector<std::span<const float>> given;
    for (auto& rank : ranks) {
      const layer_pass& pass = rank->pass(l);
      memory.push_back(
          std::make_unique<guarded>(layer.given_floats(s, way, whole.count(), pass.at)));
      const index used = layer.give(s, way, pass, memory.back()->values());
      given.push_back(memory.back()->values().first(static_cast<std::size_t>(used)));
    }
    for (auto& rank : ranks) layer.take(s, way, rank->pass(l), given);
  }

  void forward() {
    for (auto& rank : ranks)
      d.model_.embed(
          rank->passes.front().hidden,
          mat(rank->angles.data(), rank->positions.count(), d.model_.config().rotary.width),
          part_of(ids, rows(*rank)), rank->positions, d.on_);
    for (index l = 0; l < d.model_.layer_count(); ++l) {
      const auto segments = d.model_.layer(l).segments();
      for (std::size_t s = 0; s < segments.size(); ++s) {
        if (!segments[s].for_state && ranks[0]->pass(l).state_only) continue;
        for (auto& rank : ranks) d.model_.layer(l).forward(s, rank->pass(l));
        exchange_after(l, s, direction::forward);
      }
    }
  }

  void backward() {
    for (index l = d.model_.layer_count() - 1; l >= 0; --l) {
      const auto segments = d.model_.layer(l).segments();
      for (std::size_t s = segments.size(); s-- > 0;) {
        if (!segments[s].for_state && ranks[0]->pass(l).state_only) continue;
        exchange_after(l, s, direction::backward);
        for (auto& rank : ranks) d.model_.layer(l).backward(s, rank->pass(l));
      }
    }
    for (auto& rank : ranks) {
      const layer_pass& first = rank->passes.front();
      d.model_.embed_backward(first.d_hidden, part_of(ids, rows(*rank)), first.gradients, d.on_);
      const std::span<float> sum = d.model_.parameters()->gradients();
      for (std::size_t i = 0; i < rank->own_gradients.size(); ++i) sum[i] += rank->own_gradients[i];
    }
  }

  /// A rank's part of what belongs to the last `count` tokens of the run.
  token_range of_last(const rank_run& rank, index count) const {
    const index first = whole.count() - count;
    const token_range own = rows(rank);
    return {std::max<index>(own.begin - first, 0), std::max<index>(own.end - first, 0)};
  }

  driver_scores scores(std::span<const token_id> targets, float temperature) {
    driver_scores s{std::vector<float>(targets.size()), std::vector<float>(targets.size())};
    for (auto& rank : ranks) {
      const token_range own = of_last(*rank, static_cast<index>(targets.size()));
      rank->head_forward(part_of(targets, own), part_of(std::span(s.logps), own),
                         part_of(std::span(s.entropies), own), temperature);
    }
    return s;
  }

  void scores_backward(std::span<const float> d_logps) {
    for (auto& rank : ranks) {
      rank->head.d_logps = part_of(d_logps, of_last(*rank, static_cast<index>(d_logps.size())));
      if (!rank->head.d_logps.empty()) d.model_.head_backward(rank->head);
    }
  }
};

model_driver::model_driver(const models::language_model& model, index page_tokens,
                           index chunk_tokens, index ranks)
    : model_(model), page_tokens_(page_tokens), chunk_tokens_(chunk_tokens), ranks_(ranks) {
  for (index l = 0; l < model.layer_count(); ++l)
    LS_ASSERT(ranks == 1 || model.layer(l).runs_on_ranks(), "every layer runs on several ranks");
}

void model_driver::append(driver_state& state, index tokens) const {
  state.chunks.push_back({state.tokens, state.tokens + tokens});
  state.tokens += tokens;
  for (index r = 0; r < ranks_; ++r) {
    index own = 0;
    for (const token_range& chunk : state.chunks) own += share(r).slice(chunk).count();
    for (index l = 0; l < model_.layer_count(); ++l) {
      driver_layer_state& s = state.ranks[static_cast<std::size_t>(r)][static_cast<std::size_t>(l)];
      const index token_floats = model_.layer(l).state(share(r)).page_floats_per_token;
      if (token_floats == 0) continue;
      const auto floats = static_cast<std::size_t>(token_floats * page_tokens_);
      while (static_cast<index>(s.pages.size()) * page_tokens_ < own) {
        s.pages.emplace_back(floats, nan);
        s.page_gradients.emplace_back(floats, 0.0f);
      }
    }
  }
}

std::vector<state_page> model_driver::pages_of(const std::vector<std::vector<float>>& memory,
                                               const driver_state& state, index rank,
                                               std::size_t chunks) const {
  std::vector<state_page> runs;
  if (memory.empty()) return runs;
  index stored = 0;
  for (std::size_t c = 0; c < chunks; ++c) {
    token_range slice = share(rank).slice(state.chunks[c]);
    while (slice.count() > 0) {
      const index slot = stored % page_tokens_;
      const index count = std::min(slice.count(), page_tokens_ - slot);
      // On one rank, what follows in the page follows in the sequence: one run.
      if (slot > 0 && runs.back().position + runs.back().tokens == slice.begin) {
        runs.back().tokens += count;
      } else {
        const auto& page = memory[static_cast<std::size_t>(stored / page_tokens_)];
        runs.push_back({const_cast<float*>(page.data()), page_tokens_, count, slice.begin, slot});
      }
      stored += count;
      slice.begin += count;
    }
  }
  return runs;
}

driver_state model_driver::capture(std::span<const token_id> ids) {
  driver_state state;
  for (index r = 0; r < ranks_; ++r) {
    state.ranks.emplace_back(static_cast<std::size_t>(model_.layer_count()));
    for (index l = 0; l < model_.layer_count(); ++l) {
      driver_layer_state& s = state.ranks.back()[static_cast<std::size_t>(l)];
      s.recurrent.resize(
          static_cast<std::size_t>(model_.layer(l).state(share(r)).recurrent_floats));
      s.d_recurrent.resize(s.recurrent.size());
    }
  }
  while (state.tokens < static_cast<index>(ids.size())) {
    const index begin = state.tokens;
    const index count = std::min(chunk_tokens_, static_cast<index>(ids.size()) - begin);
    for (auto& rank : state.ranks)
      for (driver_layer_state& s : rank) s.recurrent_at.push_back(s.recurrent);
    append(state, count);
    run r(*this, part_of(ids, state.chunks.back()), begin, false);
    r.use_pages(state, state.chunks.size(), true, false);
    r.keep_recurrent(state);
    r.last_layer_state_only();
    r.forward();
  }
  return state;
}

driver_scores model_driver::score(const driver_state& state, std::span<const token_id> ids,
                                  std::span<const token_id> targets, float temperature) {
  run r(*this, ids, state.tokens, false);
  driver_state& unchanged = const_cast<driver_state&>(state);  // the pass writes nothing there
  r.use_pages(unchanged, state.chunks.size(), false, false);
  r.forward();
  return r.scores(targets, temperature);
}

driver_scores model_driver::replay(driver_state& state, std::span<const token_id> ids,
                                   std::span<const token_id> targets,
                                   std::span<const float> d_logps, bool full, float temperature) {
  run r(*this, ids, state.tokens, true);
  r.use_pages(state, state.chunks.size(), false, full);
  // The gradient of the state after the suffix is zero; that of the state before is summed over
  // suffixes.
  std::vector<std::vector<float>> d_recurrent;
  std::vector<std::span<float>> sums;
  for (std::size_t rank = 0; full && rank < r.ranks.size(); ++rank)
    for (layer_pass& pass : r.ranks[rank]->passes) {
      sums.push_back(pass.d_recurrent);
      d_recurrent.emplace_back(pass.d_recurrent.size());
      pass.d_recurrent = d_recurrent.back();
    }
  r.forward();
  driver_scores s = r.scores(targets, temperature);
  r.scores_backward(d_logps);
  r.backward();
  for (std::size_t n = 0; n < sums.size(); ++n)
    for (std::size_t i = 0; i < sums[n].size(); ++i) sums[n][i] += d_recurrent[n][i];
  return s;
}

void model_driver::sweep(driver_state& state, std::span<const token_id> ids) {
  for (std::size_t c = state.chunks.size(); c-- > 0;) {
    run r(*this, part_of(ids, state.chunks[c]), state.chunks[c].begin, true);
    r.use_pages(state, c + 1, true, true);
    for (std::size_t rank = 0; rank < r.ranks.size(); ++rank)
      for (std::size_t l = 0; l < r.ranks[rank]->passes.size(); ++l)
        r.ranks[rank]->passes[l].recurrent_before = state.ranks[rank][l].recurrent_at[c];
    r.last_layer_state_only();
    r.forward();
    r.backward();
  }
}

std::vector<float> model_driver::decode(driver_state& state, std::span<const token_id> ids) {
  const index begin = state.tokens;
  append(state, static_cast<index>(ids.size()));
  run r(*this, ids, begin, false);
  r.use_pages(state, state.chunks.size(), true, false);
  r.keep_recurrent(state);
  r.forward();
  guarded logits(model_.config().vocabulary), workspace(model_.config().hidden_size + 1);
  model_.last_logits(logits.matrix(1, model_.config().vocabulary),
                     r.ranks.back()->passes.front().hidden, workspace.values(), on_);
  return {logits.values().begin(), logits.values().end()};
}

std::vector<float> model_driver::keys_and_values(const driver_state& state, index layer,
                                                 bool gradients) const {
  const models::model_config& c = model_.config();
  std::vector<float> all(static_cast<std::size_t>(2 * c.kv_heads * state.tokens * c.head_dim), nan);
  for (index r = 0; r < ranks_; ++r) {
    const auto& s = state.ranks[static_cast<std::size_t>(r)][static_cast<std::size_t>(layer)];
    for (const state_page& page :
         pages_of(gradients ? s.page_gradients : s.pages, state, r, state.chunks.size()))
      for (index part = 0; part < 2 * c.kv_heads; ++part)  // heads of keys, then of values
        std::copy_n(page.data + (part * page.capacity + page.slot) * c.head_dim,
                    page.tokens * c.head_dim,
                    all.begin() + (part * state.tokens + page.position) * c.head_dim);
  }
  return all;
}

std::vector<float> model_driver::recurrent(const driver_state& state, index layer,
                                           bool gradients) const {
  const models::model_config& c = model_.config();
  const index ratio = c.delta_value_heads / c.delta_key_heads;
  const index matrix_floats = ratio * c.delta_key_dim * c.delta_value_dim;  // of a key head
  std::vector<float> all(static_cast<std::size_t>(model_.layer(layer).state({}).recurrent_floats),
                         nan);
  for (index r = 0; r < ranks_; ++r) {
    const auto& s = state.ranks[static_cast<std::size_t>(r)][static_cast<std::size_t>(layer)];
    auto from = (gradients ? s.d_recurrent : s.recurrent).begin();
    const token_range own = share(r).part(c.delta_key_heads);
    std::copy_n(from, own.count() * matrix_floats, all.begin() + own.begin * matrix_floats);
    from += own.count() * matrix_floats;
    auto to = all.begin() + c.delta_key_heads * matrix_floats;
    for (index row = 1; row < c.conv_kernel; ++row)
      for (const index width : {c.delta_key_dim, c.delta_key_dim, ratio * c.delta_value_dim}) {
        std::copy_n(from, own.count() * width, to + own.begin * width);
        from += own.count() * width;
        to += c.delta_key_heads * width;
      }
  }
  return all;
}

}  // namespace longstraw::testing
