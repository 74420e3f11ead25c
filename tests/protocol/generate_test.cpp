// Generation from one captured prompt.

#include "support/golden_case.hpp"
#include "support/job_runner.hpp"

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {
namespace {

models::group prompt_only(std::vector<token_id> ids) {
  models::group g;
  g.name = "prompt";
  g.prompt = std::move(ids);
  return g;
}

TEST_CASE("greedy generation continues as the golden files say", "[protocol][golden]") {
  const char* name = GENERATE("qwen35-tiny", "qwen35-8l", "qwen3-dense-tiny", "llama-tiny");
  const index chunk = GENERATE(7, 1000);
  const golden_case c = load_golden(name);
  actors::runtime_options options;
  options.chunk_tokens = chunk;
  options.page_tokens = 16;
  actors::runtime runtime(options,
                          std::make_shared<const models::language_model>(c.config, c.parameters),
                          memory::budget::make(0));
  actors::generate_settings s;
  s.sampling.temperature = 0;
  s.max_tokens = static_cast<index>(c.greedy.size());
  s.stop_at_end_of_sequence = false;
  const auto out = runtime.generate(prompt_only(c.step.prompt), s);
  REQUIRE(out.samples.size() == 1);
  CHECK(out.samples[0] == c.greedy);
}

TEST_CASE("a sample depends on its own number and the seed alone", "[protocol]") {
  auto m = make_hybrid_model();
  actors::runtime runtime({}, m.model, m.budget);
  const auto prompt = prompt_only(random_tokens(50, m.model->config().vocabulary, 4));
  actors::generate_settings s;
  s.max_tokens = 12;
  s.seed = 11;
  s.samples = 3;
  const auto three = runtime.generate(prompt, s);
  s.samples = 1;
  const auto one = runtime.generate(prompt, s);
  REQUIRE(three.samples.size() == 3);
  CHECK(three.samples[0] == one.samples[0]);
  CHECK(three.samples[0] != three.samples[1]);
  s.seed = 12;
  CHECK(runtime.generate(prompt, s).samples[0] != one.samples[0]);
}

TEST_CASE("a sample ends with its first end-of-sequence token", "[protocol]") {
  auto m = make_hybrid_model();
  auto config = m.model->config();
  for (token_id t = 0; t < static_cast<token_id>(config.vocabulary); ++t)
    config.end_of_sequence.push_back(t);
  actors::runtime runtime({}, std::make_shared<const models::language_model>(config, m.parameters),
                          m.budget);
  actors::generate_settings s;
  s.max_tokens = 12;
  CHECK(runtime.generate(prompt_only({1, 2, 3}), s).samples[0].size() == 1);
}

TEST_CASE("a prompt of one token has an empty state and generates", "[protocol]") {
  auto m = make_hybrid_model();
  actors::runtime runtime({}, m.model, m.budget);
  actors::generate_settings s;
  s.max_tokens = 5;
  CHECK(runtime.generate(prompt_only({7}), s).samples[0].size() == 5);
}

}  // namespace
}  // namespace longstraw::testing
