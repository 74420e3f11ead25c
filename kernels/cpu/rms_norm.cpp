#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/rms_norm.hpp>

#include <algorithm>

namespace longstraw::kernels {
namespace {

using simd::for_each_vec;
using simd::vec;

// Values of one item of a loop: enough to pay for handing it out, few enough to stay in the
// second-level cache between the two passes over a row.
constexpr index item_values = 16384;

index tokens_of_item(cheads x) {
  return std::max<index>(1, item_values / std::max<index>(1, x.heads * x.width));
}

/// Calls row(token, head) for all rows of [begin, end).
template <class F>
void for_each_row(cheads x, index begin, index end, F&& row) {
  for (index t = begin; t < end; ++t)
    for (index h = 0; h < x.heads; ++h) row(t, h);
}

template <class F>
void forward_rows(cheads x, executor& on, F&& row) {
  const index step = tokens_of_item(x);
  on.parallel_for(blocks_of(x.tokens, step), [&](index item, scratch&) {
    for_each_row(x, item * step, std::min(x.tokens, (item + 1) * step), row);
  });
}

float reciprocal_rms(const float* x, index width, float eps) {
  const float squares = simd::dot(x, x, width);
  return 1.0f / std::sqrt(squares / static_cast<float>(width) + eps);
}

// Token blocks of the weight gradient. Each block sums its rows into a partial of its own; the
// partials are then added in order. How many there are depends on the shape alone, and all of them
// fit the scratch memory.
struct weight_blocks {
  index tokens = 0;
  index count = 0;

  explicit weight_blocks(cheads x) {
    constexpr index most = 64, scratch_floats = index{1} << 20;
    const index fit = std::clamp<index>(scratch_floats / std::max<index>(1, x.width), 1, most);
    tokens = std::max(tokens_of_item(x), blocks_of(x.tokens, fit));
    count = blocks_of(x.tokens, tokens);
  }
};

/// Runs row(token, head, partial of d_weight) over all rows, then adds the partials to d_weight.
template <class F>
void backward_rows(cheads x, std::span<float> d_weight, executor& on, F&& row) {
  const weight_blocks blocks(x);
  scratch& local = on.local();
  const index mark = local.mark();
  const mat partials = local.matrix(blocks.count, x.width);
  on.parallel_for(blocks.count, [&](index block, scratch&) {
    float* partial = partials.row(block);
    std::fill_n(partial, x.width, 0.0f);
    for_each_row(x, block * blocks.tokens, std::min(x.tokens, (block + 1) * blocks.tokens),
                 [&](index t, index h) { row(t, h, partial); });
  });
  for_each_vec(x.width, [&](index, auto get, auto put) {
    vec sum{};
    for (index block = 0; block < blocks.count; ++block) sum += get(partials.row(block));
    put(d_weight.data(), get(d_weight.data()) + sum);
  });
  local.rewind(mark);
}

template <norm_weight Kind>
vec factor(vec w) {
  return Kind == norm_weight::plain ? w : 1.0f + w;
}

template <norm_weight Kind>
void forward(heads out, mat rstd, cheads x, const float* w, float eps, executor& on) {
  forward_rows(x, on, [&](index t, index h) {
    const float* in = x.at(t, h);
    float* result = out.at(t, h);
    const float r = reciprocal_rms(in, x.width, eps);
    rstd(t, h) = r;
    for_each_vec(x.width, [&](index, auto get, auto put) {
      put(result, get(in) * r * factor<Kind>(get(w)));
    });
  });
}

template <norm_weight Kind>
void backward(heads d_x, std::span<float> d_weight, cheads d_out, cheads x, cmat rstd,
              const float* w, executor& on) {
  backward_rows(x, d_weight, on, [&](index t, index h, float* partial) {
    const float* in = x.at(t, h);
    const float* d = d_out.at(t, h);
    float* result = d_x.at(t, h);
    const float r = rstd(t, h);
    const float dot =
        simd::sum_terms(x.width, [&](auto get) { return get(d) * factor<Kind>(get(w)) * get(in); });
    const float along = r * r * r * dot / static_cast<float>(x.width);
    for_each_vec(x.width, [&](index, auto get, auto put) {
      const vec scaled = get(d) * r;
      put(result, get(result) + (scaled * factor<Kind>(get(w)) - get(in) * along));
      put(partial, get(partial) + scaled * get(in));
    });
  });
}

}  // namespace

void rms_norm_forward(heads out, mat rstd, cheads x, std::span<const float> weight, float eps,
                      norm_weight kind, executor& on) {
  if (kind == norm_weight::plain)
    forward<norm_weight::plain>(out, rstd, x, weight.data(), eps, on);
  else
    forward<norm_weight::one_plus>(out, rstd, x, weight.data(), eps, on);
}

void rms_norm_backward(heads d_x, std::span<float> d_weight, cheads d_out, cheads x, cmat rstd,
                       std::span<const float> weight, norm_weight kind, executor& on) {
  if (kind == norm_weight::plain)
    backward<norm_weight::plain>(d_x, d_weight, d_out, x, rstd, weight.data(), on);
  else
    backward<norm_weight::one_plus>(d_x, d_weight, d_out, x, rstd, weight.data(), on);
}

void gated_rms_norm_forward(heads out, mat rstd, cheads x, cheads z, std::span<const float> weight,
                            float eps, executor& on) {
  const float* w = weight.data();
  forward_rows(x, on, [&](index t, index h) {
    const float* in = x.at(t, h);
    const float* gate = z.at(t, h);
    float* result = out.at(t, h);
    const float r = reciprocal_rms(in, x.width, eps);
    rstd(t, h) = r;
    for_each_vec(x.width, [&](index, auto get, auto put) {
      put(result, get(in) * r * get(w) * simd::silu(get(gate)));
    });
  });
}

void gated_rms_norm_backward(heads d_x, heads d_z, std::span<float> d_weight, cheads d_out,
                             cheads x, cheads z, cmat rstd, std::span<const float> weight,
                             executor& on) {
  const float* w = weight.data();
  backward_rows(x, d_weight, on, [&](index t, index h, float* partial) {
    const float* in = x.at(t, h);
    const float* gate = z.at(t, h);
    const float* d = d_out.at(t, h);
    float* result = d_x.at(t, h);
    float* result_z = d_z.at(t, h);
    const float r = rstd(t, h);
    // The first pass leaves the gradient of x rstd in d_x: the gate's exponential is taken once.
    vec dots{};
    for_each_vec(x.width, [&](index, auto get, auto put) {
      const vec normalized = get(in) * r, gate_in = get(gate), s = simd::sigmoid(gate_in);
      const vec d_here = get(d), d_gated = d_here * gate_in * s;
      const vec d_normalized = d_gated * get(w);
      put(partial, get(partial) + d_gated * normalized);
      put(result_z, d_here * normalized * get(w) * simd::silu_slope(gate_in, s));
      put(result, d_normalized);
      dots += d_normalized * normalized;
    });
    const float along = simd::sum(dots) / static_cast<float>(x.width) * r;
    for_each_vec(x.width, [&](index, auto get, auto put) {
      put(result, r * (get(result) - get(in) * along));
    });
  });
}

}  // namespace longstraw::kernels
