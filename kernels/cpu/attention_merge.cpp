#include <longstraw/kernels/attention.hpp>
#include <longstraw/kernels/cpu/simd.hpp>

#include <algorithm>
#include <limits>

namespace longstraw::kernels {
namespace {

constexpr index token_block = 16;

template <class F>
void for_tokens(index tokens, executor& on, F&& body) {
  on.parallel_for(blocks_of(tokens, token_block), [&](index block, scratch&) {
    const index end = std::min(tokens, (block + 1) * token_block);
    for (index t = block * token_block; t < end; ++t) body(t);
  });
}

}  // namespace

void attention_delta(mat delta, cmat d_out, cmat out, executor& on) {
  if (delta.empty()) return;
  LS_ASSERT(d_out.rows == delta.rows && out.rows == delta.rows && d_out.cols == out.cols &&
                out.cols % delta.cols == 0,
            "delta [tq, query_heads], d_out and out [tq, query_heads * head_dim] must agree");
  const index width = out.cols / delta.cols;
  for_tokens(delta.rows, on, [&](index t) {
    for (index h = 0; h < delta.cols; ++h) {
      const float* a = d_out.row(t) + h * width;
      const float* b = out.row(t) + h * width;
      simd::vec sum{};
      simd::for_each_vec(width, [&](index, auto load, auto) { sum += load(a) * load(b); });
      delta(t, h) = simd::sum(sum);
    }
  });
}

void attention_merge(mat out, mat lse, std::span<const attention_part> parts, executor& on) {
  if (lse.empty()) return;
  LS_ASSERT(out.rows == lse.rows && out.cols % lse.cols == 0,
            "out [tq, query_heads * head_dim] and lse [tq, query_heads] must agree");
  const index width = out.cols / lse.cols;
  for_tokens(lse.rows, on, [&](index t) {
    for (index h = 0; h < lse.cols; ++h) {
      constexpr float none = -std::numeric_limits<float>::infinity();
      float largest = none;
      for (const auto& part : parts) largest = std::max(largest, part.lse(t, h));
      double total = 0;
      if (largest != none)
        for (const auto& part : parts) total += std::exp(double{part.lse(t, h)} - largest);
      // Parts without a key are left out entirely, so that they change no bit.
      float* o = out.row(t) + h * width;
      bool first = true;
      for (const auto& part : parts) {
        if (part.lse(t, h) == none) continue;
        const auto weight = static_cast<float>(std::exp(double{part.lse(t, h)} - largest) / total);
        const float* from = part.out.row(t) + h * width;
        simd::for_each_vec(width, [&](index, auto load, auto store) {
          store(o, first ? load(from) * weight : load(o) + load(from) * weight);
        });
        first = false;
      }
      if (first) std::fill_n(o, width, 0.0f);
      lse(t, h) = largest == none ? none : static_cast<float>(largest + std::log(total));
    }
  });
}

void sigmoid_gate_forward(heads out, cheads x, cheads gate, executor& on) {
  for_tokens(out.tokens, on, [&](index t) {
    for (index h = 0; h < out.heads; ++h) {
      float* o = out.at(t, h);
      const float *a = x.at(t, h), *g = gate.at(t, h);
      simd::for_each_vec(out.width, [&](index, auto load, auto store) {
        store(o, load(a) * simd::sigmoid(load(g)));
      });
    }
  });
}

void sigmoid_gate_backward(heads d_x, heads d_gate, cheads d_out, cheads x, cheads gate,
                           executor& on) {
  for_tokens(d_x.tokens, on, [&](index t) {
    for (index h = 0; h < d_x.heads; ++h) {
      float *da = d_x.at(t, h), *dg = d_gate.at(t, h);
      const float *d = d_out.at(t, h), *a = x.at(t, h), *g = gate.at(t, h);
      simd::for_each_vec(d_x.width, [&](index, auto load, auto store) {
        const simd::vec s = simd::sigmoid(load(g)), up = load(d), value = load(a);
        store(da, up * s);
        store(dg, up * value * s * (1.0f - s));
      });
    }
  });
}

}  // namespace longstraw::kernels
