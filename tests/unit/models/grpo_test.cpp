#include "support/compare.hpp"
#include "support/files.hpp"

#include <longstraw/models/case.hpp>
#include <longstraw/models/data.hpp>
#include <longstraw/models/grpo.hpp>
#include <longstraw/models/safetensors.hpp>

#include <catch2/catch_approx.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_range.hpp>

#include <cmath>
#include <numeric>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;
using Catch::Approx;

group golden_group(const std::filesystem::path& folder) {
  data_rules rules;
  rules.vocabulary = 1'000'000;
  return read_batch(folder / "batch.safetensors", rules);
}

std::vector<double> padded(const safetensors_file& file, const std::string& name) {
  std::vector<double> v(static_cast<std::size_t>(file.find(name)->count()));
  file.read_doubles(name, v);
  return v;
}

/// One response of three tokens under the group of `counts`, with chosen ratios to the old policy.
struct small_case {
  std::vector<double> logps{-1.0, -2.0, -0.5};
  std::vector<float> old_logps{-1.1f, -1.5f, -0.4f};
  std::vector<float> ref_logps{-1.3f, -1.9f, -0.6f};
  double advantage = 0.7;
  group_counts counts{4, 20, 16};
  loss_settings s;

  response_loss run(std::vector<float>& d_logps) const {
    const auto f = as<float>(logps);
    d_logps.assign(f.size(), 99.0f);
    return evaluate_response(d_logps, f, old_logps, ref_logps, {}, advantage,
                             static_cast<index>(f.size()), counts, s);
  }
};

}  // namespace

TEST_CASE("losses and their gradients are those of the golden cases", "[unit][golden]") {
  const std::string name = GENERATE(Catch::Generators::as<std::string>{}, "qwen35-tiny",
                                    "qwen35-8l", "qwen3-dense-tiny", "llama-tiny");
  const auto folder = golden(name);
  const case_settings settings = read_case(folder / "case.json");
  const group g = golden_group(folder);
  const safetensors_file expected(folder / "expected.safetensors");
  const auto logps = padded(expected, "logps"), entropies = padded(expected, "entropies");
  const std::size_t longest = logps.size() / g.responses.size();

  REQUIRE(settings.losses.size() == 8);
  for (const case_loss& loss : settings.losses) {
    CAPTURE(name, loss.name);
    const auto want = padded(expected, "dlogps." + loss.name);
    const group_counts counts = counts_of(g, loss.settings);
    double total = 0;
    std::vector<double> got(want.size(), 0.0);
    for (std::size_t i = 0; i < g.responses.size(); ++i) {
      const response& r = g.responses[i];
      const auto row = [&](const std::vector<double>& v) {
        const auto begin = v.begin() + static_cast<std::ptrdiff_t>(i * longest);
        return std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(r.tokens.size()));
      };
      std::vector<float> d(r.tokens.size());
      const response_loss part =
          evaluate_response(d, row(logps), r.old_logps, r.ref_logps, row(entropies), r.advantage,
                            r.loss_tokens, counts, loss.settings);
      total += part.loss;
      std::copy(d.begin(), d.end(), got.begin() + static_cast<std::ptrdiff_t>(i * longest));
    }
    // The logps went through float: a relative 2^-24 of each, times the loss's slope in it.
    CHECK(std::abs(total - loss.value) < 1e-6 * (1 + std::abs(loss.value)));
    CHECK(relative_error(got, want) < 2e-6);
  }
}

TEST_CASE("advantages are those of the golden cases", "[unit][golden]") {
  const std::string name = GENERATE(Catch::Generators::as<std::string>{}, "qwen35-tiny",
                                    "qwen35-8l", "qwen3-dense-tiny", "llama-tiny");
  const group g = golden_group(golden(name));
  std::vector<double> rewards, want;
  for (const response& r : g.responses) {
    rewards.push_back(r.reward);
    want.push_back(r.advantage);
  }
  const auto got = advantages_of(rewards, reward_scale::group);
  CHECK(relative_error(got, want) < 1e-6);
  CHECK(advantages_of(rewards, reward_scale::batch) == got);
}

TEST_CASE("advantages computed by hand", "[unit]") {
  // mean 2, deviation 1 with divisor n - 1
  const auto scaled = advantages_of(std::vector<double>{1, 2, 3}, reward_scale::group);
  CHECK(scaled[0] == Approx(-1.0 / 1.0001).epsilon(1e-6));
  CHECK(scaled[1] == 0.0);
  const auto centred = advantages_of(std::vector<double>{1, 2, 6}, reward_scale::none);
  CHECK(centred == std::vector<double>{-2, -1, 3});
}

TEST_CASE("equal rewards, and one response alone, give advantages of exactly 0", "[unit]") {
  for (const double reward : {0.1, 1.0 / 3, 1e30, -7.7e-12, 0.0})
    for (std::size_t n = 1; n < 40; ++n)
      for (const auto scale : {reward_scale::group, reward_scale::none})
        for (const double a : advantages_of(std::vector<double>(n, reward), scale))
          REQUIRE(a == 0.0);
  CHECK(advantages_of({}, reward_scale::group).empty());
}

TEST_CASE("the gradient of every loss is its finite difference", "[unit]") {
  small_case c;
  c.s.type = GENERATE(loss_type::grpo, loss_type::bnpo, loss_type::dr_grpo, loss_type::dapo);
  c.s.level = GENERATE(sampling_level::token, sampling_level::sequence);
  c.s.beta = GENERATE(0.0, 0.3);
  c.advantage = GENERATE(0.7, -1.3);
  c.s.epsilon_high = 0.28;
  SECTION("one-sided") {}
  SECTION("two-sided") { c.s.delta = 1.05; }
  SECTION("two-sided beyond the clip bound") { c.s.delta = 3.0; }
  std::vector<float> d;
  c.run(d);
  // Steps in the float logps, so the difference is taken over the steps that were really made.
  for (std::size_t t = 0; t < c.logps.size(); ++t) {
    const double kept = c.logps[t];
    std::vector<float> ignored;
    c.logps[t] = static_cast<float>(kept + 1e-3);
    const double above = c.run(ignored).loss, high = c.logps[t];
    c.logps[t] = static_cast<float>(kept - 1e-3);
    const double below = c.run(ignored).loss, low = c.logps[t];
    c.logps[t] = kept;
    CAPTURE(to_string(c.s.type), to_string(c.s.level), c.s.beta, c.advantage, t);
    CHECK(d[t] == Approx((above - below) / (high - low)).epsilon(1e-4).margin(1e-7));
  }
}

TEST_CASE("a ratio above delta carries no gradient when the advantage is negative", "[unit]") {
  small_case c;
  c.logps = {-1.0};
  c.old_logps = {-3.0f};  // ratio e^2 = 7.39
  c.ref_logps = {-1.0f};
  c.counts = {1, 1, 1};
  c.advantage = -1.0;
  std::vector<float> d;
  CHECK(c.run(d).loss == Approx(std::exp(2.0)));
  CHECK(d[0] == Approx(std::exp(2.0)));
  c.s.delta = 4.0;
  CHECK(c.run(d).loss == Approx(4.0));
  CHECK(d[0] == 0.0f);
  // A positive advantage is bounded by epsilon_high already.
  c.advantage = 1.0;
  CHECK(c.run(d).loss == Approx(-1.2));
  CHECK(d[0] == 0.0f);
}

TEST_CASE("clipped tokens are counted by side, and the ratio's range is kept", "[unit]") {
  small_case c;
  c.logps = {-1.0, -1.0, -1.0};
  c.old_logps = {-1.0f, -2.0f, -0.1f};  // ratios 1, e, e^-0.9
  std::vector<float> d;
  const response_loss up = c.run(d);
  CHECK(up.clipped_high == 1);
  CHECK(up.clipped_low == 0);
  CHECK(up.ratio_max == Approx(std::exp(1.0)));
  CHECK(up.ratio_min == Approx(std::exp(-0.9)));
  c.advantage = -c.advantage;
  CHECK(c.run(d).clipped_low == 1);
  CHECK(c.run(d).clipped_high == 0);
}

TEST_CASE("cispo holds the bounded ratio constant", "[unit]") {
  small_case c;
  c.s.type = loss_type::cispo;
  c.s.epsilon_high = 2.0;
  c.logps = {-1.0, -1.0};
  c.old_logps = {-1.5f, -3.0f};  // ratios e^0.5 and e^2, bounded by 2
  c.ref_logps = {-1.0f, -1.0f};
  c.counts.loss_tokens = 10;
  std::vector<float> d;
  const response_loss r = c.run(d);
  CHECK(d[0] == Approx(-std::exp(0.5) * 0.7 / 10));
  CHECK(d[1] == Approx(-2.0 * 0.7 / 10));
  CHECK(r.loss == Approx((std::exp(0.5) + 2.0) * 0.7 / 10));
  CHECK(r.clipped_high == 1);
}

TEST_CASE("a zero advantage contributes its KL term only, whatever the ratio", "[unit]") {
  small_case c;
  c.advantage = 0;
  c.logps[0] = -1.0;
  c.old_logps[0] = -1e6f;  // the ratio overflows
  std::vector<float> d;
  const response_loss none = c.run(d);
  CHECK(none.loss == 0.0);
  CHECK(d == std::vector<float>(3, 0.0f));
  c.s.beta = 0.5;
  const response_loss kl = c.run(d);
  CHECK(kl.policy_loss == 0.0);
  CHECK(kl.loss == Approx(0.5 * kl.kl / (4 * 3)));
  CHECK(kl.kl > 0);
}

TEST_CASE("tokens beyond the loss neither count nor get a gradient", "[unit]") {
  small_case c;
  const auto logps = as<float>(c.logps);
  std::vector<float> d(3, 99.0f), first(2);
  const response_loss cut =
      evaluate_response(d, logps, c.old_logps, c.ref_logps, logps, 0.7, 2, c.counts, c.s);
  CHECK(d[2] == 0.0f);
  CHECK(cut.entropy == Approx(-3.0));
  const std::span<const float> two(logps.data(), 2);
  const response_loss alone =
      evaluate_response(first, two, std::span(c.old_logps).first(2),
                        std::span(c.ref_logps).first(2), two, 0.7, 2, c.counts, c.s);
  CHECK(alone.loss == cut.loss);
  const response_loss masked =
      evaluate_response(d, logps, c.old_logps, c.ref_logps, logps, 0.7, 0, c.counts, c.s);
  CHECK(masked.loss == 0.0);
  CHECK(d == std::vector<float>(3, 0.0f));
}

TEST_CASE("masked responses count as responses of the group", "[unit]") {
  group g;
  g.responses.resize(3);
  g.responses[0].tokens.resize(5);
  g.responses[0].loss_tokens = 4;
  g.responses[1].tokens.resize(7);
  g.responses[1].loss_tokens = 7;
  loss_settings s;
  const group_counts n = counts_of(g, s);
  CHECK(n.responses == 3);
  CHECK(n.loss_tokens == 11);
  CHECK(n.max_completion_length == 7);
  s.max_completion_length = 32;
  CHECK(counts_of(g, s).max_completion_length == 32);

  CHECK_FALSE(has_signal(g.responses[0], s));
  s.beta = 0.1;
  CHECK(has_signal(g.responses[0], s));
  CHECK_FALSE(has_signal(g.responses[2], s));
}

TEST_CASE("names of losses, levels and scales are read and refused by name", "[unit][negative]") {
  for (const char* name : {"grpo", "bnpo", "dr_grpo", "dapo", "cispo"})
    CHECK(to_string(parse_loss_type(name, "--loss")) == name);
  for (const char* name : {"token", "sequence"})
    CHECK(to_string(parse_sampling_level(name, "--level")) == name);
  for (const char* name : {"group", "batch", "none"})
    CHECK(to_string(parse_reward_scale(name, "--scale")) == name);
  const auto sentence = failure_of([] { parse_loss_type("ppo", "--loss-type"); });
  CHECK_THAT(sentence, ContainsSubstring("--loss-type is \"ppo\""));
  CHECK_THAT(sentence, ContainsSubstring("grpo, bnpo, dr_grpo, dapo, cispo"));
}

}  // namespace longstraw::models
