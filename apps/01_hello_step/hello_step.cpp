// LongStraw inside a trainer of one's own: a model with its own layer program takes a few GRPO
// steps.

#include "mixing_layer.hpp"

#include <longstraw/actors/runtime.hpp>
#include <longstraw/models/data.hpp>

#include <cstdio>
#include <random>

using namespace longstraw;

int main() try {
  models::model_config config;
  config.vocabulary = 256;  // bytes
  config.hidden_size = 32;
  config.tied_embeddings = true;
  config.rotary.width = 2;

  models::parameter_layout layout;
  layout.add("model.embed_tokens.weight", {config.vocabulary, config.hidden_size});
  layout.add("mix.weight", {config.hidden_size, config.hidden_size});
  layout.add("model.norm.weight", {config.hidden_size});

  auto budget = memory::budget::make(std::size_t{256} << 20);
  auto parameters =
      std::make_shared<models::parameter_store>(layout, models::parameter_use::train, *budget);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.2f);
  for (float& w : parameters->weights()) w = normal(random);
  for (float& w : parameters->weights(layout.at("model.norm.weight"))) w = 1.0f;

  std::vector<std::unique_ptr<models::layer_program>> layers;
  layers.push_back(std::make_unique<mixing_layer>(models::matrix_of(*parameters, "mix.weight")));
  auto model = std::make_shared<models::language_model>(config, parameters, std::move(layers));
  actors::runtime runtime({}, model, budget);

  models::data_rules rules;
  rules.vocabulary = config.vocabulary;
  const auto group = models::parse_group(
      R"({"prompt": "Is the sky blue? ", "responses": ["yes", "no", "yes!", "perhaps"], "rewards": [1, 0, 1, 0]})",
      "group", rules);
  actors::step_settings settings;
  settings.optimizer.adamw.learning_rate = 0.01;
  for (settings.optimizer_step = 1; settings.optimizer_step <= 8; ++settings.optimizer_step) {
    const auto o = runtime.step(group, settings);
    const auto& yes = o.responses[0].logps;
    std::printf("step %d  loss %9.6f  grad norm %8.5f  log p(yes) %8.4f\n",
                static_cast<int>(settings.optimizer_step), o.loss, o.grad_norm,
                static_cast<double>(yes[0] + yes[1] + yes[2]));
  }
} catch (const error& e) {
  std::fprintf(stderr, "hello_step: %s\n", e.what());
  return 1;
}
