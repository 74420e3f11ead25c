#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/rms_norm.hpp>

#include <algorithm>
#include <array>

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

/// Runs body(first token, end token, partial of d_weight) over blocks that make up all tokens, then
/// adds the partials to d_weight.
template <class F>
void backward_blocks(cheads x, std::span<float> d_weight, executor& on, F&& body) {
  const weight_blocks blocks(x);
  scratch& local = on.local();
  const index mark = local.mark();
  const mat partials = local.matrix(blocks.count, x.width);
  on.parallel_for(blocks.count, [&](index block, scratch&) {
    float* partial = partials.row(block);
    std::fill_n(partial, x.width, 0.0f);
    body(block * blocks.tokens, std::min(x.tokens, (block + 1) * blocks.tokens), partial);
  });
  for_each_vec(x.width, [&](index, auto get, auto put) {
    vec sum{};
    for (index block = 0; block < blocks.count; ++block) sum += get(partials.row(block));
    put(d_weight.data(), get(d_weight.data()) + sum);
  });
  local.rewind(mark);
}

/// Rows that pass through a kernel together, so that they share what is read of the weight and
/// written of its gradient.
template <int n>
struct rows_at_once {
  std::array<index, n> token, head;

  template <class T>
  std::array<T*, n> of(heads_view<T> x) const {
    std::array<T*, n> all;
    for (int i = 0; i < n; ++i) all[i] = x.at(token[i], head[i]);
    return all;
  }
};

/// Calls body(rows_at_once) for all rows of tokens [begin, end): four at a time, then one by one.
template <class F>
void for_rows_at_once(cheads x, index begin, index end, F&& body) {
  rows_at_once<4> four;
  int count = 0;
  for_each_row(x, begin, end, [&](index t, index h) {
    four.token[count] = t, four.head[count] = h;
    if (++count < 4) return;
    body(four);
    count = 0;
  });
  for (int i = 0; i < count; ++i) body(rows_at_once<1>{{four.token[i]}, {four.head[i]}});
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
  // Rows longer than a block go one at a time, so that a block's weight and gradient stay in the
  // first-level cache: four such rows would evict each other.
  constexpr index block_width = 1024;
  backward_blocks(x, d_weight, on, [=](index begin, index end, float* partial) {
    for_rows_at_once(x, begin, end, [=]<int n>(const rows_at_once<n>& rows) {
      const auto in = rows.of(x);
      const auto d = rows.of(d_out);
      const auto result = rows.of(d_x);
      std::array<float, n> r, dots{};
      for (index c = 0; c < x.width; c += block_width)
        for (int i = 0; i < n; ++i)
          dots[i] += simd::sum(
              simd::lane_sums(std::min(block_width, x.width - c),
                              [d_row = d[i] + c, in_row = in[i] + c, u = w + c](auto get) {
                                return get(d_row) * factor<Kind>(get(u)) * get(in_row);
                              }));
      std::array<float, n> along;
      for (int i = 0; i < n; ++i) {
        r[i] = rstd(rows.token[i], rows.head[i]);
        along[i] = r[i] * r[i] * r[i] * dots[i] / static_cast<float>(x.width);
      }
      const auto block = [&](index c, auto first, auto last) {
        for_each_vec(std::min(block_width, x.width - c), [&](index, auto get, auto put) {
          const vec u = factor<Kind>(get(w + c));
          vec d_u = get(partial + c);
          for (int i = first; i < last; ++i) {
            const vec scaled = get(d[i] + c) * r[i], value = get(in[i] + c);
            put(result[i] + c, get(result[i] + c) + (scaled * u - value * along[i]));
            d_u += scaled * value;
          }
          put(partial + c, d_u);
        });
      };
      if (x.width <= block_width)
        block(0, std::integral_constant<int, 0>{}, std::integral_constant<int, n>{});
      else
        for (index c = 0; c < x.width; c += block_width)
          for (int i = 0; i < n; ++i) block(c, i, i + 1);
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
  constexpr index heads_at_once = 8;
  backward_blocks(x, d_weight, on, [=, w = weight.data()](index begin, index end, float* partial) {
    for (index t = begin; t < end; ++t)
      for (index head = 0; head < x.heads; head += heads_at_once) {
        const index head_end = std::min(x.heads, head + heads_at_once);
        // The gate's sigmoid goes by way of d_z: one long chain of operations a value in a loop of its
        // own, for the processor has many values under way in it.
        for (index h = head; h < head_end; ++h)
          for_each_vec(x.width, [gate = z.at(t, h), s = d_z.at(t, h)](index, auto get, auto put) {
            put(s, simd::sigmoid(get(gate)));
          });
        for (index h = head; h < head_end; ++h) {
          const float *in = x.at(t, h), *gate = z.at(t, h), *d = d_out.at(t, h);
          float *result = d_x.at(t, h), *result_z = d_z.at(t, h);
          const float r = rstd(t, h);
          // The first pass leaves the gradient of x rstd in d_x.
          vec dots{};
          for_each_vec(x.width, [&](index, auto get, auto put) {
            // silu(z) = z s and silu'(z) = s (1 + z (1 - s)): every gradient has the factor d_out s.
            const vec gate_in = get(gate), s = get(result_z), d_s = get(d) * s, u = get(w);
            const vec d_u = d_s * (get(in) * r), d_gate = d_u * u;
            put(partial, get(partial) + d_u * gate_in);
            put(result_z, d_gate * (1.0f + gate_in * (1.0f - s)));
            put(result, d_s * gate_in * u);
            dots += d_gate * gate_in;
          });
          const float along = simd::sum(dots) / static_cast<float>(x.width) * r;
          for_each_vec(x.width, [&](index, auto get, auto put) {
            put(result, r * (get(result) - get(in) * along));
          });
        }
      }
  });
}

}  // namespace longstraw::kernels
