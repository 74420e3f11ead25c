// The language-model head over one response of 64 tokens.

#include "tensor.hpp"

#include <longstraw/kernels/head.hpp>
#include <longstraw/kernels/reference/head.hpp>

namespace longstraw::bench {
namespace {

using namespace kernels;

struct problem {
  problem(place p, index tokens, index width, index vocabulary)
      : hidden(p, tokens * width, 1),
        weight(p, vocabulary * width, 2, 0.02f),
        d_logps(p, tokens, 3),
        logps(p, tokens),
        entropies(p, tokens),
        lse(p, tokens),
        workspace(p, head_workspace_floats(tokens, vocabulary)) {
    for (index t = 0; t < tokens; ++t)
      targets.push_back(static_cast<token_id>((t * 7919 + 13) % vocabulary));
  }
  index tokens() const { return static_cast<index>(targets.size()); }
  cmat hidden_rows() const { return hidden.matrix(tokens()); }
  cmat weights() const { return weight.matrix(weight.count() / hidden_rows().cols); }

  tensor hidden, weight, d_logps, logps, entropies, lse, workspace, d_hidden, d_weight;
  std::vector<token_id> targets;
};

void forward(const problem& a, executor& on) {
  head_forward(a.logps.span(), a.entropies.span(), a.lse.span(), a.hidden_rows(), a.weights(),
               a.targets, 1.0f, a.workspace.span(), on);
}
void backward(const problem& a, bool kept, executor& on) {
  head_backward(a.d_hidden.matrix(a.tokens()), a.d_weight.matrix(a.weights().rows),
                a.d_logps.span(), a.lse.span(), a.hidden_rows(), a.weights(), a.targets, 1.0f,
                a.workspace.span(), kept, on);
}

// logit of token t for word v, in double
double logit(const problem& a, index t, index v) {
  double sum = 0;
  for (index i = 0; i < a.weights().cols; ++i)
    sum += double(a.hidden_rows()(t, i)) * a.weights()(v, i);
  return sum;
}

double forward_error(const problem& a) {
  difference logp, entropy, lse;
  const index vocabulary = a.weights().rows;
  for (index t : spread_over(a.tokens(), 3)) {
    std::vector<double> z;
    for (index v = 0; v < vocabulary; ++v) z.push_back(logit(a, t, v));
    const double largest = *std::max_element(z.begin(), z.end());
    double sum = 0, weighted = 0;
    for (double x : z)
      sum += std::exp(x - largest), weighted += std::exp(x - largest) * (x - largest);
    lse.add(a.lse.data()[t], largest + std::log(sum));
    logp.add(a.logps.data()[t],
             z[static_cast<std::size_t>(a.targets[static_cast<std::size_t>(t)])] - largest -
                 std::log(sum));
    entropy.add(a.entropies.data()[t], std::log(sum) - weighted / sum);
  }
  return worst({logp.value(), entropy.value(), lse.value()});
}

double backward_error(const problem& a) {
  const index width = a.weights().cols, vocabulary = a.weights().rows;
  const auto d_z = [&](index t, index v) {
    const double hit = v == a.targets[static_cast<std::size_t>(t)] ? 1 : 0;
    return a.d_logps.data()[t] * (hit - std::exp(logit(a, t, v) - a.lse.data()[t]));
  };
  difference d_hidden, d_weight;
  for (index t : spread_over(a.tokens(), 2)) {
    std::vector<double> want(static_cast<std::size_t>(width));
    for (index v = 0; v < vocabulary; ++v) {
      const double d = d_z(t, v);
      for (index i = 0; i < width; ++i) want[static_cast<std::size_t>(i)] += d * a.weights()(v, i);
    }
    for (index i = 0; i < width; ++i)
      d_hidden.add(a.d_hidden.data()[t * width + i], want[static_cast<std::size_t>(i)]);
  }
  for (index v : {index{a.targets[0]}, index{a.targets.back()}, vocabulary - 1}) {
    std::vector<double> want(static_cast<std::size_t>(width));
    for (index t = 0; t < a.tokens(); ++t) {
      const double d = d_z(t, v);
      for (index i = 0; i < width; ++i)
        want[static_cast<std::size_t>(i)] += d * a.hidden_rows()(t, i);
    }
    for (index i = 0; i < width; ++i)
      d_weight.add(a.d_weight.data()[v * width + i], want[static_cast<std::size_t>(i)]);
  }
  return worst({d_hidden.value(), d_weight.value()});
}

prepared prepare(place p, index width, index vocabulary, bool gradient) {
  constexpr index tokens = 64;
  const auto a = std::make_shared<problem>(p, tokens, width, vocabulary);
  executor& on = p.on;
  const bool kept = tokens <= head_block_tokens(vocabulary);
  const double product =
      2.0 * static_cast<double>(tokens * width) * static_cast<double>(vocabulary);
  prepared c;
  c.shape = {{"tokens", tokens}, {"hidden", width}, {"vocabulary", vocabulary}};
  c.cost.bytes_read = bytes_of({a->hidden.count(), a->weight.count()});
  c.cost.exps = static_cast<double>(tokens) * static_cast<double>(vocabulary);
  if (!gradient) {
    c.cost.flops = product;
    c.run = [a, &on] { forward(*a, on); };
    c.error = [a, run = c.run] {
      run();
      return forward_error(*a);
    };
  } else {
    c.shape["logits"] = kept ? "kept" : "rebuilt";
    a->d_hidden = tensor(p, a->hidden.count());
    a->d_weight = tensor(p, a->weight.count());
    c.cost.flops = product * (kept ? 2 : 3);
    c.cost.bytes_read += bytes_of({a->d_weight.count()});
    c.cost.bytes_written = bytes_of({a->d_hidden.count(), a->d_weight.count()});
    // Backward overwrites kept logits with their gradients. Repeats then work on other numbers, at
    // the same speed: they stay finite since a softmax of anything finite is.
    c.run = [a, kept, &on] { backward(*a, kept, on); };
    c.error = [a, &on, run = c.run] {
      forward(*a, on);
      run();
      return backward_error(*a);
    };
  }
  c.error_bound = float32_bound(gradient ? vocabulary : width) + 1e-6;
  return c;
}

}  // namespace

void add_head_cases(case_list& to) {
  const std::pair<index, index> sizes[] = {{256, 1024}, {768, 8192}, {1024, 248320}};
  for (const auto& [width, vocabulary] : sizes)
    for (bool gradient : {false, true})
      to.push_back(
          {std::string(gradient ? "head_backward/" : "head_forward/") + std::to_string(vocabulary) +
               "x" + std::to_string(width),
           [=, w = width, v = vocabulary](place p) { return prepare(p, w, v, gradient); }});
}

}  // namespace longstraw::bench
