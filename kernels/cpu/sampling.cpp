#include <longstraw/kernels/sampling.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace longstraw::kernels {
namespace {

token_id most_likely(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t v = 1; v < logits.size(); ++v)
    if (logits[v] > logits[best]) best = v;
  return static_cast<token_id>(best);
}

}  // namespace

token_id sample_token(std::span<const float> logits, const sampling_settings& settings,
                      double uniform, std::vector<token_id>& order) {
  LS_ASSERT(!logits.empty(), "a token is chosen from at least one");
  const token_id best = most_likely(logits);
  if (settings.temperature == 0 || settings.top_k == 1) return best;

  const double largest = logits[static_cast<std::size_t>(best)];
  auto weight = [&](token_id v) {
    return std::exp((logits[static_cast<std::size_t>(v)] - largest) / settings.temperature);
  };
  const auto vocabulary = static_cast<index>(logits.size());
  const bool cut_k = settings.top_k > 0 && settings.top_k < vocabulary;
  const bool cut_p = settings.top_p < 1.0;

  order.resize(logits.size());
  std::iota(order.begin(), order.end(), token_id{0});
  auto likelier = [&](token_id a, token_id b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  if (cut_k) {
    const auto kept = order.begin() + settings.top_k;
    std::nth_element(order.begin(), kept, order.end(), likelier);
    order.erase(kept, order.end());
  }
  // Without a cut the order of summation is free, and ids in order need no sorting.
  if (cut_k && !cut_p) std::sort(order.begin(), order.end(), likelier);

  double total = 0;
  for (token_id v : order) total += weight(v);
  if (cut_p) {
    // Few tokens carry most of the mass: take them off a heap instead of sorting the vocabulary.
    auto less_likely = [&](token_id a, token_id b) { return likelier(b, a); };
    std::make_heap(order.begin(), order.end(), less_likely);
    double mass = 0;
    auto end = order.end();
    do {
      std::pop_heap(order.begin(), end, less_likely);
      mass += weight(*--end);
    } while (end != order.begin() && mass < settings.top_p * total);
    order.erase(order.begin(), end);
    std::reverse(order.begin(), order.end());
    total = mass;
  }

  double left = uniform * total;
  for (token_id v : order)
    if ((left -= weight(v)) < 0) return v;
  return order.back();  // rounding may leave a crumb of the total
}

}  // namespace longstraw::kernels
