#include "model_parity.hpp"

#include <algorithm>
#include <cmath>

namespace longstraw::testing {
namespace {

void keep_worst(double& worst, std::string& name, double error, const std::string& here) {
  if (std::isnan(worst) || error <= worst) return;
  worst = error;
  name = here;
}

/// The state of all layers as named tensors of one order: keys and values by head, as pages hold
/// them.
struct named_tensor {
  std::string name;
  std::vector<double> values;
};

std::vector<named_tensor> tensors_of(const decoder_state& s, const models::model_config& c) {
  std::vector<named_tensor> all;
  for (std::size_t l = 0; l < s.layers.size(); ++l) {
    const layer_state& layer = s.layers[l];
    const std::string at = "layer " + std::to_string(l);
    if (c.layers[l] == models::layer_kind::gated_delta_net) {
      all.push_back({at + " recurrent", layer.recurrent});
      all.push_back({at + " tail", layer.tail});
      continue;
    }
    for (const auto* part : {&layer.keys, &layer.values}) {
      std::vector<double> by_head;
      for (index h = 0; h < c.kv_heads; ++h)
        for (index t = 0; t < s.tokens; ++t) {
          const auto row = part->begin() + (t * c.kv_heads + h) * c.head_dim;
          by_head.insert(by_head.end(), row, row + c.head_dim);
        }
      all.push_back({at + (part == &layer.keys ? " keys" : " values"), by_head});
    }
  }
  return all;
}

std::vector<named_tensor> tensors_of(const model_driver& driver, const driver_state& s,
                                     const models::model_config& c, bool gradients) {
  std::vector<named_tensor> all;
  for (std::size_t l = 0; l < c.layers.size(); ++l) {
    const std::string at = "layer " + std::to_string(l);
    if (c.layers[l] == models::layer_kind::gated_delta_net) {
      const auto r = driver.recurrent(s, static_cast<index>(l), gradients);
      const auto matrix = r.begin() + c.delta_value_heads * c.delta_key_dim * c.delta_value_dim;
      all.push_back({at + " recurrent", {r.begin(), matrix}});
      all.push_back({at + " tail", {matrix, r.end()}});
      continue;
    }
    const auto kv = driver.keys_and_values(s, static_cast<index>(l), gradients);
    const auto middle = kv.begin() + static_cast<std::ptrdiff_t>(kv.size() / 2);
    all.push_back({at + " keys", {kv.begin(), middle}});
    all.push_back({at + " values", {middle, kv.end()}});
  }
  return all;
}

void compare_tensors(double& worst, std::string& name, const std::vector<named_tensor>& got,
                     const std::vector<named_tensor>& want) {
  REQUIRE(got.size() == want.size());
  double squares = 0;
  for (const auto& w : want)
    for (double v : w.values) squares += v * v;
  const double scale = std::sqrt(squares / static_cast<double>(want.size()));
  for (std::size_t i = 0; i < want.size(); ++i) {
    REQUIRE(got[i].values.size() == want[i].values.size());
    keep_worst(worst, name, scaled_error(got[i].values, want[i].values, scale), want[i].name);
  }
}

void compare_gradients(double& worst, std::string& name, const models::parameter_store& store,
                       std::span<const double> want) {
  const auto all = store.layout().all();
  const double scale = scale_of(want, all.size());
  for (const models::parameter& p : all) {
    const auto truth =
        want.subspan(static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
    keep_worst(worst, name, scaled_error(store.gradients(p), truth, scale), p.name);
  }
}

decoder_state zero_like(decoder_state s) {
  for (auto& layer : s.layers)
    for (auto* part : {&layer.keys, &layer.values, &layer.recurrent, &layer.tail})
      std::fill(part->begin(), part->end(), 0.0);
  return s;
}
}  // namespace

double scale_of(std::span<const double> values, std::size_t tensors) {
  double squares = 0;
  for (double v : values) squares += v * v;
  return std::sqrt(squares / static_cast<double>(tensors));
}

std::vector<token_id> step_case::suffix(std::size_t response) const {
  std::vector<token_id> ids{prompt.back()};
  ids.insert(ids.end(), responses[response].begin(), responses[response].end() - 1);
  return ids;
}

step_case random_step(index prompt_tokens, std::vector<index> response_tokens, index vocabulary,
                      unsigned seed) {
  step_case c;
  c.prompt = random_tokens(prompt_tokens, vocabulary, seed);
  for (index count : response_tokens) {
    c.responses.push_back(random_tokens(count, vocabulary, ++seed));
    c.d_logps.push_back(random_values<float>(count, ++seed));
  }
  return c;
}

step_truth reference_step(const decoder& reference, const step_case& c, float temperature) {
  step_truth t;
  const decoder_state empty = reference.empty_state();
  t.state = reference.capture(empty, c.captured());
  t.d_state = zero_like(t.state);
  t.frozen.resize(static_cast<std::size_t>(reference.layout().total()));
  t.full.resize(t.frozen.size());
  for (std::size_t r = 0; r < c.responses.size(); ++r) {
    const auto suffix = c.suffix(r);
    std::vector<token_id> whole(c.captured().begin(), c.captured().end());
    whole.insert(whole.end(), suffix.begin(), suffix.end());
    const auto d_logps = as<double>(c.d_logps[r]);
    t.scores.push_back(reference.score(empty, whole, c.responses[r], temperature));
    reference.backward(t.frozen, t.state, suffix, c.responses[r], d_logps, temperature, &t.d_state);
    reference.backward(t.full, empty, whole, c.responses[r], d_logps, temperature);
  }
  return t;
}

step_errors compare_step(const models::language_model& model, const step_case& c,
                         const step_truth& truth, index page_tokens, index chunk_tokens,
                         float temperature, index ranks) {
  const models::parameter_store& store = *model.parameters();
  const models::model_config& config = model.config();
  model_driver driver(model, page_tokens, chunk_tokens, ranks);
  step_errors e;

  driver_state state = driver.capture(c.captured());
  compare_tensors(e.state, e.worst_state, tensors_of(driver, state, config, false),
                  tensors_of(truth.state, config));

  for (const bool full : {false, true}) {
    std::fill(store.gradients().begin(), store.gradients().end(), 0.0f);
    for (std::size_t r = 0; r < c.responses.size(); ++r) {
      const auto scored = driver.score(state, c.suffix(r), c.responses[r], temperature);
      const auto s =
          driver.replay(state, c.suffix(r), c.responses[r], c.d_logps[r], full, temperature);
      // Replay must not only be near what scoring gave: it is the same arithmetic.
      CHECK(scored.logps == s.logps);
      CHECK(scored.entropies == s.entropies);
      std::string unused;
      keep_worst(e.scores, unused, relative_error(s.logps, truth.scores[r].logps), "");
      keep_worst(e.scores, unused, relative_error(s.entropies, truth.scores[r].entropies), "");
    }
    if (!full) {
      compare_gradients(e.frozen, e.worst_frozen, store, truth.frozen);
      continue;
    }
    compare_tensors(e.d_state, e.worst_d_state, tensors_of(driver, state, config, true),
                    tensors_of(truth.d_state, config));
    driver.sweep(state, c.captured());
    compare_gradients(e.full, e.worst_full, store, truth.full);
  }
  return e;
}

}  // namespace longstraw::testing
