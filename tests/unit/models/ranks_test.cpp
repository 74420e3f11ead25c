// Several ranks give what one gives: the programs' side of it, with the driver's plain loops in
// place of the exchanges between machines.

#include "support/model_parity.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/cpu/simd.hpp>

#include <algorithm>

namespace longstraw::testing {

using models::direction;
using models::language_model;
using models::layer_kind;
using models::rank_share;

namespace {
struct step_result {
  std::vector<std::vector<float>> logps;
  std::vector<float> frozen, full;
};

step_result step_on(index ranks, const language_model& model, const step_case& c, index page_tokens,
                    index chunk_tokens) {
  model_driver driver(model, page_tokens, chunk_tokens, ranks);
  driver_state state = driver.capture(c.captured());
  const std::span<float> gradients = model.parameters()->gradients();
  step_result result;
  for (const bool full : {false, true}) {
    std::fill(gradients.begin(), gradients.end(), 0.0f);
    for (std::size_t r = 0; r < c.responses.size(); ++r)
      result.logps.push_back(
          driver.replay(state, c.suffix(r), c.responses[r], c.d_logps[r], full).logps);
    if (full) driver.sweep(state, c.captured());
    (full ? result.full : result.frozen).assign(gradients.begin(), gradients.end());
  }
  return result;
}

void compare_steps(const step_result& got, const step_result& want) {
  for (std::size_t i = 0; i < want.logps.size(); ++i)
    CHECK(relative_error(got.logps[i], want.logps[i]) < 1e-5);
  CHECK(relative_error(got.frozen, want.frozen) < 1e-5);
  CHECK(relative_error(got.full, want.full) < 1e-5);
}

/// `part` is what [begin, end) of the layers is bit for bit: states, and the keys and values of an
/// attention layer, which show the output of the layer before.
void compare_state_bits(const model_driver& a, const driver_state& of_a, const model_driver& b,
                        const driver_state& of_b, const language_model& model, index end) {
  for (index l = 0; l < end; ++l) {
    INFO("layer " << l);
    if (model.config().layers[static_cast<std::size_t>(l)] == layer_kind::gated_delta_net)
      CHECK(same_bits(a.recurrent(of_a, l), b.recurrent(of_b, l)));
    else
      CHECK(same_bits(a.keys_and_values(of_a, l), b.keys_and_values(of_b, l)));
  }
}
}  // namespace

// More ranks than key heads, kv heads and, in chunks of 7 and responses of 1, tokens.
TEST_CASE("a step on several ranks gives scores and gradients of one rank", "[models]") {
  unsigned seed = 700;
  for (const auto& [name, config] : small_configs()) {
    const language_model model(config, random_parameters(config, ++seed));
    const step_case c = random_step(31, {1, 9}, config.vocabulary, ++seed);
    const step_result one = step_on(1, model, c, 16, 7);
    for (const index ranks : {2, 3, 5, 16}) {
      INFO(name << ", " << ranks << " ranks");
      compare_steps(step_on(ranks, model, c, 5, 7), one);
    }
  }
}

TEST_CASE(
    "slices shorter than the convolution, and empty ones, give scores and gradients of one rank",
    "[models]") {
  unsigned seed = 800;
  for (const auto& [name, config] : small_configs()) {
    const language_model model(config, random_parameters(config, ++seed));
    for (const index prompt : {1, 2, 10}) {
      INFO(name << ", prompt " << prompt);
      const step_case c = random_step(prompt, {2, 1}, config.vocabulary, ++seed);
      compare_steps(step_on(3, model, c, 2, 2), step_on(1, model, c, 2, 2));
    }
  }
}

TEST_CASE("a step on several ranks gives states and gradients of the double reference",
          "[models]") {
  unsigned seed = 900;
  for (const auto& [name, config] : small_configs()) {
    INFO(name);
    const language_model model(config, random_parameters(config, ++seed));
    const decoder reference(config, model.parameters()->layout(), model.parameters()->weights());
    const step_case c = random_step(70, {5}, config.vocabulary, ++seed);
    const step_errors e = compare_step(model, c, reference_step(reference, c), 16, 48, 1, 3);
    CHECK(e.scores < 2e-6);
    CHECK(e.state < 5e-6);
    CHECK(e.frozen < 2e-5);
    CHECK(e.d_state < 2e-5);
    CHECK(e.full < 2e-5);
  }
}

// Attention sums over keys in another order on several ranks; what lies before shows no rank count.
TEST_CASE("up to the first attention, states and outputs have the bits of one rank", "[models]") {
  if (kernels::simd::lanes < 16) SKIP("all products run on oneDNN here, which does not promise it");
  models::model_config config = small_configs().front().config;
  config.hidden_size = 300;  // beyond the depth up to which all products agree
  config.intermediate_size = 340;
  config.delta_key_heads = 3;
  config.delta_value_heads = 6;
  config.layers = {layer_kind::gated_delta_net, layer_kind::gated_delta_net,
                   layer_kind::full_attention, layer_kind::gated_delta_net};
  const language_model model(config, random_parameters(config, 11));
  const auto ids = random_tokens(300, config.vocabulary, 12);
  for (const index chunk : {3, 100, 300}) {
    const auto prompt = std::span(ids).first(static_cast<std::size_t>(chunk == 3 ? 20 : 300));
    model_driver one(model, 64, chunk);
    const driver_state want = one.capture(prompt);
    for (const index ranks : {2, 3, 16}) {
      INFO("chunks of " << chunk << ", " << ranks << " ranks");
      model_driver several(model, 32, chunk, ranks);
      compare_state_bits(several, several.capture(prompt), one, want, model, 3);
    }
  }
}

TEST_CASE("the gradient of a recurrent state has the bits of one rank where its causes have",
          "[models]") {
  if (kernels::simd::lanes < 16) SKIP("all products run on oneDNN here, which does not promise it");
  models::model_config config = small_configs().front().config;
  config.layers = {layer_kind::gated_delta_net, layer_kind::gated_delta_net};
  const language_model model(config, random_parameters(config, 13));
  const step_case c = random_step(21, {9}, config.vocabulary, 14);
  model_driver one(model, 8, 8), several(model, 8, 8, 3);
  driver_state of_one = one.capture(c.captured()), of_several = several.capture(c.captured());
  one.replay(of_one, c.suffix(0), c.responses[0], c.d_logps[0], true);
  several.replay(of_several, c.suffix(0), c.responses[0], c.d_logps[0], true);
  for (index l = 0; l < 2; ++l)
    CHECK(same_bits(several.recurrent(of_several, l, true), one.recurrent(of_one, l, true)));
}

// With one token and no state, all ranks but the last have neither a query nor a key.
TEST_CASE("ranks that see no key give no NaN, forward and backward", "[models]") {
  for (const auto& [name, config] : small_configs()) {
    INFO(name);
    const language_model model(config, random_parameters(config, 15));
    const step_case c = random_step(1, {1}, config.vocabulary, 16);
    const step_result four = step_on(4, model, c, 4, 4);
    const auto finite = [](const std::vector<float>& v) {
      return std::all_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); });
    };
    CHECK(finite(four.logps[0]));
    CHECK(finite(four.frozen));
    CHECK(finite(four.full));
    compare_steps(four, step_on(1, model, c, 4, 4));
  }
}

TEST_CASE("workspaces and exchanges never need less for more tokens, and ranks share the work",
          "[models]") {
  for (const auto& [name, config] : small_configs()) {
    const language_model model(config, random_parameters(config, 1));
    for (index l = 0; l < model.layer_count(); ++l) {
      const models::layer_program& layer = model.layer(l);
      index recurrent = 0;
      for (index rank = 0; rank < 5; ++rank) {
        const rank_share at{rank, 5};
        recurrent += layer.state(at).recurrent_floats;
        INFO(name << ", layer " << l << ", rank " << rank);
        for (index tokens = 0; tokens < 40; ++tokens) {
          CHECK(layer.activation_floats(tokens + 1, at) >= layer.activation_floats(tokens, at));
          for (std::size_t s = 0; s + 1 < layer.segments().size(); ++s)
            for (const direction way : {direction::forward, direction::backward})
              CHECK(layer.given_floats(s, way, tokens + 1, at) >=
                    layer.given_floats(s, way, tokens, at));
        }
      }
      CHECK(recurrent == layer.state({}).recurrent_floats);
    }
  }
}

}  // namespace longstraw::testing
