// The programs as a whole model: against the double reference, and against themselves in other
// cuts.

#include "../../../apps/01_hello_step/mixing_layer.hpp"
#include "support/model_parity.hpp"

#include <longstraw/kernels/head.hpp>

#include <algorithm>

namespace longstraw::testing {

using models::language_model;

namespace {
language_model make_model(const models::model_config& config, unsigned seed) {
  return {config, random_parameters(config, seed)};
}
decoder reference_of(const language_model& model) {
  return {model.config(), model.parameters()->layout(), model.parameters()->weights()};
}

// Some hundred roundings in a row from the embedding to a gradient, each half a unit of 6e-8,
// amplified where norms divide by small numbers; how much depends on where a compiler fuses
// multiplications and additions (1.6e-6 to 2.0e-6 for the worst score among builds).
constexpr double scores_bound = 3e-6, state_bound = 5e-6, gradient_bound = 2e-5;
}  // namespace

TEST_CASE("a step gives the scores, states and gradients of the double reference", "[models]") {
  struct cut {
    index page_tokens, chunk_tokens;
  };
  const std::vector<cut> cuts{{1, 1},  {16, 7}, {256, 64}, {16, 1000}, {1, 64},   {256, 7},
                              {16, 1}, {1, 7},  {16, 64},  {256, 1},   {1, 1000}, {256, 1000}};
  unsigned seed = 100;
  std::size_t next_cut = 0;
  for (const auto& [name, config] : small_configs()) {
    const language_model model = make_model(config, ++seed);
    const decoder reference = reference_of(model);
    for (const index prompt : {1, 2, 3, 63, 64, 65, 129}) {
      const step_case c = random_step(prompt, {1, 9}, config.vocabulary, ++seed);
      const step_truth truth = reference_step(reference, c);
      for (int i = 0; i < 2; ++i) {
        const cut here = cuts[next_cut++ % cuts.size()];
        INFO(name << ", prompt " << prompt << ", pages of " << here.page_tokens << ", chunks of "
                  << here.chunk_tokens);
        const step_errors e = compare_step(model, c, truth, here.page_tokens, here.chunk_tokens);
        INFO("state " << e.worst_state << ", d_state " << e.worst_d_state << ", frozen "
                      << e.worst_frozen << ", full " << e.worst_full);
        CHECK(e.scores < scores_bound);
        CHECK(e.state < state_bound);
        CHECK(e.frozen < gradient_bound);
        CHECK(e.d_state < gradient_bound);
        CHECK(e.full < gradient_bound);
      }
    }
  }
}

TEST_CASE("temperature divides the logits in scores and gradients", "[models]") {
  const auto config = small_configs().front().config;
  const language_model model = make_model(config, 3);
  const step_case c = random_step(20, {7}, config.vocabulary, 4);
  const step_truth truth = reference_step(reference_of(model), c, 0.7f);
  const step_errors e = compare_step(model, c, truth, 8, 8, 0.7f);
  CHECK(e.scores < scores_bound);
  CHECK(e.frozen < gradient_bound);
  CHECK(e.full < gradient_bound);
}

TEST_CASE("a response of more than one block of logits gives the same", "[models]") {
  const auto config = small_configs().front().config;
  const language_model model = make_model(config, 5);
  const index tokens = kernels::head_block_tokens(config.vocabulary) + 3;
  const step_case c = random_step(4, {tokens}, config.vocabulary, 6);
  const step_errors e = compare_step(model, c, reference_step(reference_of(model), c), 64, 64);
  CHECK(e.scores < scores_bound);
  CHECK(e.frozen < gradient_bound);
  CHECK(e.full < gradient_bound);
}

TEST_CASE("the reference's gradients are those of finite differences", "[models]") {
  unsigned seed = 300;
  for (const auto& [name, config] : small_configs()) {
    const language_model model = make_model(config, ++seed);
    decoder reference = reference_of(model);
    const step_case c = random_step(6, {4}, config.vocabulary, ++seed);
    const step_truth truth = reference_step(reference, c);
    const auto suffix = c.suffix(0);
    std::vector<token_id> whole(c.captured().begin(), c.captured().end());
    whole.insert(whole.end(), suffix.begin(), suffix.end());
    const decoder_state empty = reference.empty_state();

    for (const bool full : {false, true}) {
      const auto loss = [&] {
        const auto s = full ? reference.score(empty, whole, c.responses[0])
                            : reference.score(truth.state, suffix, c.responses[0]);
        double sum = 0;
        for (std::size_t t = 0; t < s.logps.size(); ++t) sum += c.d_logps[0][t] * s.logps[t];
        return sum;
      };
      const std::vector<double>& gradient = full ? truth.full : truth.frozen;
      for (const models::parameter& p : reference.layout().all()) {
        INFO(name << ", " << (full ? "full" : "frozen") << ", " << p.name);
        std::vector<double> got, want;
        for (const index i : {p.count / 3, p.count - 1}) {
          const auto at = static_cast<std::size_t>(p.offset + i);
          double& w = reference.weights()[at];
          const double kept = w, step = 1e-5;
          w = kept + step;
          const double above = loss();
          w = kept - step;
          const double below = loss();
          w = kept;
          got.push_back((above - below) / (2 * step));
          want.push_back(gradient[at]);
        }
        CHECK(scaled_error(got, want, 1.0) < 1e-5);
      }
    }
  }
}

TEST_CASE("a suffix at once, token by token and computed anew give the same logits", "[models]") {
  unsigned seed = 500;
  for (const auto& [name, config] : small_configs()) {
    for (const index prompt : {1, 5, 70}) {
      INFO(name << ", prompt " << prompt);
      const language_model model = make_model(config, ++seed);
      const step_case c = random_step(prompt, {12}, config.vocabulary, ++seed);
      const auto suffix = c.suffix(0);
      model_driver driver(model, 16, 64);
      const driver_state captured = driver.capture(c.captured());

      driver_state at_once = captured, stepwise = captured, anew = driver.capture({});
      const auto logits = driver.decode(at_once, suffix);
      std::vector<float> last;
      for (const token_id id : suffix) last = driver.decode(stepwise, std::span(&id, 1));
      std::vector<token_id> whole(c.captured().begin(), c.captured().end());
      whole.insert(whole.end(), suffix.begin(), suffix.end());
      const auto from_start = driver.decode(anew, whole);

      CHECK(relative_error(last, logits) < 1e-5);
      CHECK(relative_error(from_start, logits) < 1e-5);
      for (index l = 0; l < model.layer_count(); ++l) {
        if (model.layer(l).state({}).page_floats_per_token > 0) {
          const auto want = driver.keys_and_values(anew, l);
          CHECK(relative_error(driver.keys_and_values(at_once, l), want) < 1e-5);
          CHECK(relative_error(driver.keys_and_values(stepwise, l), want) < 1e-5);
        } else {
          const auto want = driver.recurrent(anew, l);
          CHECK(relative_error(driver.recurrent(at_once, l), want) < 1e-5);
          CHECK(relative_error(driver.recurrent(stepwise, l), want) < 1e-5);
        }
      }
    }
  }
}

TEST_CASE("a model of the caller's own layer programs runs them in their order", "[models]") {
  const auto config = small_configs().front().config;
  const auto store = random_parameters(config, 8);
  struct doubling final : models::layer_program {
    std::string_view kind() const override { return "doubling"; }
    std::span<const models::segment> segments() const override {
      static constexpr models::segment only{"double", models::exchange::none, false};
      return {&only, 1};
    }
    models::state_spec state(const models::rank_share&) const override { return {}; }
    index activation_floats(index, const models::rank_share&) const override { return 0; }
    void forward(std::size_t, models::layer_pass& pass) const override {
      for (index i = 0; i < pass.hidden.rows * pass.hidden.cols; ++i) pass.hidden.data[i] *= 2;
    }
    void backward(std::size_t, models::layer_pass&) const override {}
  };
  std::vector<std::unique_ptr<models::layer_program>> layers;
  layers.push_back(std::make_unique<doubling>());
  layers.push_back(std::make_unique<doubling>());
  const language_model model(config, store, std::move(layers));
  CHECK(model.layer_count() == 2);
  CHECK(model.layer(1).kind() == "doubling");

  // The final norm takes the factor out again, but for its eps.
  const language_model bare(config, store, {});
  const auto ids = random_tokens(3, config.vocabulary, 5);
  const auto budget = memory::budget::make(0);
  kernels::executor on(1, *budget->named("scratch"));
  std::vector<float> hidden(static_cast<std::size_t>(3 * config.hidden_size)),
      angles(static_cast<std::size_t>(3 * config.rotary.width)),
      work(static_cast<std::size_t>(config.hidden_size + 1));
  std::vector<float> logits[2];
  for (const int doubled : {0, 1}) {
    const mat h(hidden.data(), 3, config.hidden_size);
    model.embed(h, mat(angles.data(), 3, config.rotary.width), ids, {0, 3}, on);
    models::layer_pass pass;
    pass.hidden = h;
    for (index l = 0; doubled && l < 2; ++l) model.layer(l).forward(0, pass);
    logits[doubled].resize(static_cast<std::size_t>(config.vocabulary));
    bare.last_logits(mat(logits[doubled].data(), 1, config.vocabulary), h, work, on);
  }
  CHECK(relative_error(logits[1], logits[0]) < 1e-4);
  CHECK(logits[1] != logits[0]);
}

TEST_CASE("the sample's layer gives the gradient of one long pass through its state", "[models]") {
  models::model_config config;
  config.vocabulary = 30;
  config.hidden_size = 12;
  config.tied_embeddings = true;
  config.rotary.width = 2;
  models::parameter_layout layout;
  layout.add("model.embed_tokens.weight", {config.vocabulary, config.hidden_size});
  layout.add("mix.weight", {config.hidden_size, config.hidden_size});
  layout.add("model.norm.weight", {config.hidden_size});
  const auto budget = memory::budget::make(0);
  const auto store =
      std::make_shared<models::parameter_store>(layout, models::parameter_use::train, *budget);
  const auto weights = random_values<float>(layout.total(), 41, 0.5);
  std::copy(weights.begin(), weights.end(), store->weights().begin());
  std::vector<std::unique_ptr<models::layer_program>> layers;
  for (int l = 0; l < 2; ++l)
    layers.push_back(std::make_unique<mixing_layer>(models::matrix_of(*store, "mix.weight")));
  const language_model model(config, store, std::move(layers));
  REQUIRE(model.layer(0).gives_state_gradient());

  const step_case c = random_step(20, {6, 3}, config.vocabulary, 42);
  model_driver driver(model, 4, 7);
  driver_state state = driver.capture(c.captured());
  for (std::size_t r = 0; r < c.responses.size(); ++r)
    driver.replay(state, c.suffix(r), c.responses[r], c.d_logps[r], true);
  driver.sweep(state, c.captured());
  const std::vector<float> swept(store->gradients().begin(), store->gradients().end());

  std::fill(store->gradients().begin(), store->gradients().end(), 0.0f);
  for (std::size_t r = 0; r < c.responses.size(); ++r) {
    std::vector<token_id> whole(c.captured().begin(), c.captured().end());
    const auto suffix = c.suffix(r);
    whole.insert(whole.end(), suffix.begin(), suffix.end());
    driver_state empty = driver.capture({});
    driver.replay(empty, whole, c.responses[r], c.d_logps[r], false);
  }
  CHECK(relative_error(swept, store->gradients()) < 1e-5);
}

}  // namespace longstraw::testing
