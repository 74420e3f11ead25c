#include "support/compare.hpp"

#include <longstraw/kernels/sampling.hpp>

#include <map>

namespace longstraw::testing {

using namespace kernels;

namespace {

// How often each token comes, over evenly spread uniforms.
std::map<token_id, double> shares(const std::vector<float>& logits, const sampling_settings& s,
                                  int draws = 20000) {
  std::map<token_id, double> count;
  std::vector<token_id> order;
  for (int i = 0; i < draws; ++i)
    count[sample_token(logits, s, (i + 0.5) / draws, order)] += 1.0 / draws;
  return count;
}

const std::vector<float> logits{0.0f, 2.0f, -1.0f, 1.0f, 2.0f, -30.0f};

}  // namespace

TEST_CASE("greedy takes the largest logit and the lower id of equals", "[unit]") {
  std::vector<token_id> order;
  for (double u : {0.0, 0.5, 0.999}) CHECK(sample_token(logits, {.temperature = 0}, u, order) == 1);
  CHECK(sample_token(std::vector<float>{-5.0f}, {.temperature = 0}, 0.3, order) == 0);
}

TEST_CASE("without cuts each token comes with its softmax probability", "[unit]") {
  for (double temperature : {1.0, 0.5, 3.0}) {
    double total = 0;
    for (float x : logits) total += std::exp(x / temperature);
    auto got = shares(logits, {.temperature = temperature});
    for (std::size_t v = 0; v < logits.size(); ++v)
      CHECK(std::abs(got[static_cast<token_id>(v)] - std::exp(logits[v] / temperature) / total) <
            2e-4);
  }
}

TEST_CASE("top-k keeps the k most likely tokens, of equals the lower ids", "[unit]") {
  auto three = shares(logits, {.top_k = 3});
  CHECK(three.size() == 3);
  const double total = 2 * std::exp(2.0) + std::exp(1.0);
  CHECK(std::abs(three[1] - std::exp(2.0) / total) < 2e-4);
  CHECK(std::abs(three[4] - std::exp(2.0) / total) < 2e-4);
  CHECK(std::abs(three[3] - std::exp(1.0) / total) < 2e-4);
  CHECK(shares(logits, {.top_k = 1}) ==
        std::map<token_id, double>{{1, shares(logits, {.top_k = 1})[1]}});
  CHECK(shares(logits, {.top_k = 100}).size() == 5);
}

TEST_CASE("top-p keeps the smallest set of most likely tokens that reaches it", "[unit]") {
  // Probabilities: tokens 1 and 4 about 0.4 each, 3 about 0.15, 0 about 0.05.
  CHECK(shares(logits, {.top_p = 0.3}).size() == 1);
  CHECK(shares(logits, {.top_p = 0.3}).begin()->first == 1);
  CHECK(shares(logits, {.top_p = 0.5}).size() == 2);
  CHECK(shares(logits, {.top_p = 0.9}).size() == 3);
  CHECK(shares(logits, {.top_p = 0.0}).size() == 1);
  auto two = shares(logits, {.top_p = 0.5});
  CHECK(std::abs(two[1] - 0.5) < 2e-4);
  CHECK(std::abs(two[4] - 0.5) < 2e-4);
}

TEST_CASE("top-p counts within what top-k kept", "[unit]") {
  // Of the two kept, each has one half: 0.45 is reached by the first.
  CHECK(shares(logits, {.top_p = 0.45, .top_k = 2}).size() == 1);
  CHECK(shares(logits, {.top_p = 0.55, .top_k = 2}).size() == 2);
}

TEST_CASE("sampling a vocabulary of 248,320 stays inside it and inside the cut", "[unit]") {
  const auto many = random_values<float>(248'320, 9, 2.0);
  std::vector<token_id> order;
  std::vector<float> sorted(many);
  std::nth_element(sorted.begin(), sorted.begin() + 49, sorted.end(), std::greater<>());
  for (double u : {0.0, 0.25, 0.5, 0.75, std::nextafter(1.0, 0.0)}) {
    const token_id all = sample_token(many, {}, u, order);
    CHECK((all >= 0 && all < 248'320));
    CHECK(many[static_cast<std::size_t>(sample_token(many, {.top_k = 50}, u, order))] >=
          sorted[49]);
    CHECK(sample_token(many, {.temperature = 1e-6}, u, order) ==
          sample_token(many, {.temperature = 0}, u, order));
  }
}

}  // namespace longstraw::testing
