// Whole checkpoints against PyTorch in float64, within what PyTorch's own float32 earns (the cases'
// tolerances).

#include "support/golden_case.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace longstraw::testing {
namespace {

const std::vector<std::string> cases{"qwen35-tiny", "qwen35-8l", "qwen35-multimodal-prefix",
                                     "qwen3-dense-tiny", "llama-tiny"};

/// Largest error / bound of a kind. Printed when LONGSTRAW_SHOW_ERRORS is set: what the bounds
/// leave.
struct worst_ratio {
  std::string kind, tensor;
  double ratio = 0;

  explicit worst_ratio(std::string k) : kind(std::move(k)) {}
  void add(double error, double bound, const std::string& name) {
    INFO(kind << " " << name << ": error " << error << ", bound " << bound);
    CHECK(error <= bound);
    if (error / bound > ratio) {
      ratio = error / bound;
      tensor = name;
    }
  }
  ~worst_ratio() {
    if (std::getenv("LONGSTRAW_SHOW_ERRORS"))
      std::printf("  %-12s %5.3f of its bound  %s\n", kind.c_str(), ratio, tensor.c_str());
  }
};

template <class A, class B>
double largest_difference(const A& got, const B& want) {
  REQUIRE(std::size(got) == std::size(want));
  double largest = 0;
  for (std::size_t i = 0; i < std::size(got); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(d <= largest)) largest = d;  // NaN stays
  }
  return largest;
}

/// Gradients of all log-probabilities of one response.
std::vector<float> d_logps_of(const golden_case& c, std::size_t g, const driver_scores& s) {
  models::group group;
  group.prompt = c.step.prompt;
  for (const auto& tokens : c.step.responses) {
    models::response r;
    r.tokens = tokens;
    r.loss_tokens = static_cast<index>(tokens.size());
    group.responses.push_back(r);
  }
  std::vector<float> d_logps(s.logps.size());
  models::evaluate_response(d_logps, s.logps, c.old_logps[g], c.ref_logps[g], s.entropies,
                            c.advantages[g], static_cast<index>(s.logps.size()),
                            models::counts_of(group, c.loss), c.loss);
  return d_logps;
}

void check_gradients(const golden_case& c, const std::string& kind,
                     const std::map<std::string, std::vector<float>>& expected) {
  worst_ratio worst(kind);
  for (const models::parameter& p : c.parameters->layout().all()) {
    const std::string name = c.expected_name(p.name);
    const auto got = c.parameters->gradients(p);
    const auto bound = c.bound(kind, name);
    INFO(name);
    if (bound)
      worst.add(relative_error(got, expected.at(name)), *bound, name);
    else
      CHECK(std::all_of(got.begin(), got.end(), [](float g) { return g == 0; }));
  }
}

/// The recurrent state's tail, [kernel - 1, channels], as [channels, kernel]: the oldest column is
/// not kept.
std::vector<float> conv_columns(std::span<const float> tail, const std::vector<float>& expected,
                                index kernel) {
  const index channels = static_cast<index>(tail.size()) / (kernel - 1);
  std::vector<float> columns(expected);
  for (index ch = 0; ch < channels; ++ch)
    for (index j = 1; j < kernel; ++j)
      columns[static_cast<std::size_t>(ch * kernel + j)] =
          tail[static_cast<std::size_t>((j - 1) * channels + ch)];
  return columns;
}

void check_state(const golden_case& c, const model_driver& driver, const driver_state& state,
                 bool gradients) {
  const std::string kind = gradients ? "dstate_rel" : "state_rel";
  const auto& expected = gradients ? c.d_state : c.state;
  worst_ratio worst(kind);
  const auto check = [&](std::span<const float> got, const std::string& name) {
    worst.add(relative_error(got, expected.at(name)), c.state_bound(kind, name), name);
  };
  for (std::size_t l = 0; l < c.config.layers.size(); ++l) {
    const std::string at = "layers." + std::to_string(l) + ".";
    if (c.config.layers[l] == models::layer_kind::full_attention) {
      const auto kv = driver.keys_and_values(state, static_cast<index>(l), gradients);
      check(std::span(kv).first(kv.size() / 2), at + "key");
      check(std::span(kv).last(kv.size() / 2), at + "value");
    } else {
      const auto r = driver.recurrent(state, static_cast<index>(l), gradients);
      const auto matrix = expected.at(at + "recurrent").size();
      check(std::span(r).first(matrix), at + "recurrent");
      check(conv_columns(std::span(r).subspan(matrix), expected.at(at + "conv"),
                         c.config.conv_kernel),
            at + "conv");
    }
  }
}

void check_step(const golden_case& c, index page_tokens, index chunk_tokens, index ranks) {
  const models::language_model model(c.config, c.parameters);
  model_driver driver(model, page_tokens, chunk_tokens, ranks);
  driver_state state = driver.capture(c.step.captured());
  check_state(c, driver, state, false);

  const double logps_bound = c.about.at("tolerance").at("logps_abs");
  const double entropies_bound = c.about.at("tolerance").at("entropies_abs");
  worst_ratio logps("logps"), warm("logps t 0.7"), entropies("entropies");
  for (const bool full : {false, true}) {
    std::fill(c.parameters->gradients().begin(), c.parameters->gradients().end(), 0.0f);
    for (std::size_t g = 0; g < c.step.responses.size(); ++g) {
      const auto suffix = c.step.suffix(g);
      const auto& response = c.step.responses[g];
      const std::string name = "response " + std::to_string(g);
      const auto s = driver.score(state, suffix, response);
      const auto w = driver.score(state, suffix, response, 0.7f);
      logps.add(largest_difference(s.logps, c.expected_row("logps", g)), logps_bound, name);
      entropies.add(largest_difference(s.entropies, c.expected_row("entropies", g)),
                    entropies_bound, name);
      // A logit's error grows by the same factor as the logit.
      warm.add(largest_difference(w.logps, c.expected_row("logps_t0p7", g)), logps_bound / 0.7,
               name);
      driver.replay(state, suffix, response, d_logps_of(c, g, s), full);
    }
    if (!full) {
      check_gradients(c, "grads_frozen_rel", c.grads_frozen);
      continue;
    }
    check_state(c, driver, state, true);
    driver.sweep(state, c.step.captured());
    check_gradients(c, "grads_full_rel", c.grads_full);
  }

  std::vector<token_id> chosen;
  auto logits = driver.decode(state, std::span(&c.step.prompt.back(), 1));
  std::vector<token_id> order;
  while (chosen.size() < c.greedy.size()) {
    chosen.push_back(kernels::sample_token(logits, {.temperature = 0}, 0, order));
    logits = driver.decode(state, std::span(&chosen.back(), 1));
  }
  CHECK(chosen == c.greedy);
}
}  // namespace

TEST_CASE("golden cases: scores, state, frozen and full gradients, greedy continuation",
          "[models][golden]") {
  for (const std::string& name : cases) {
    const golden_case c = load_golden(name);
    struct cut {
      index page_tokens, chunk_tokens, ranks;
    };
    for (const auto& [page_tokens, chunk_tokens, ranks] :
         {cut{16, 48, 1}, {256, 1000, 1}, {16, 48, 2}, {5, 31, 3}, {256, 1000, 4}, {16, 48, 8}}) {
      INFO(name << ", pages of " << page_tokens << ", chunks of " << chunk_tokens << ", " << ranks
                << " ranks");
      if (std::getenv("LONGSTRAW_SHOW_ERRORS"))
        std::printf("%s, pages of %d, chunks of %d, %d ranks\n", name.c_str(),
                    static_cast<int>(page_tokens), static_cast<int>(chunk_tokens),
                    static_cast<int>(ranks));
      check_step(c, page_tokens, chunk_tokens, ranks);
    }
  }
}

TEST_CASE("golden cases: the double reference is PyTorch's float64", "[models][golden]") {
  for (const std::string& name : cases) {
    golden_case c = load_golden(name);
    INFO(name);
    const decoder reference(c.config, c.parameters->layout(), c.parameters->weights());
    const decoder_state state = reference.capture(reference.empty_state(), c.step.captured());
    std::vector<double> gradients(static_cast<std::size_t>(reference.layout().total()));
    for (std::size_t g = 0; g < c.step.responses.size(); ++g) {
      const auto suffix = c.step.suffix(g);
      const auto s = reference.score(state, suffix, c.step.responses[g]);
      CHECK(largest_difference(s.logps, c.expected_row("logps", g)) < 1e-7);
      CHECK(largest_difference(s.entropies, c.expected_row("entropies", g)) < 1e-7);
      reference.backward(gradients, state, suffix, c.step.responses[g],
                         c.expected_row("dlogps.grpo", g));
    }
    for (const models::parameter& p : reference.layout().all()) {
      INFO(p.name);
      const auto got = std::span<const double>(gradients).subspan(
          static_cast<std::size_t>(p.offset), static_cast<std::size_t>(p.count));
      CHECK(relative_error(got, c.grads_frozen.at(c.expected_name(p.name))) < 3e-7);
    }
  }
}

}  // namespace longstraw::testing
