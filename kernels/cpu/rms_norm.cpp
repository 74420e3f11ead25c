#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/rms_norm.hpp>

#include <algorithm>
#include <array>

namespace longstraw::kernels {
namespace {

using simd::for_each_vec;
using simd::lanes;
using simd::vec;

// Values of one item of a loop: enough to pay for handing it out, few enough to stay in the
// second-level cache between the two passes over a row.
constexpr index item_values = 16384;

index tokens_of_item(cheads x) {
  return std::max<index>(1, item_values / std::max<index>(1, x.heads * x.width));
}

/// Rows that pass through a kernel together. What a row needs of its sum is formed for all of them at
/// once, a lane a row, so that short rows share the horizontal sums, the root and the quotient.
struct row_group {
  struct place {
    index token, head;
  };
  std::array<place, lanes> rows;
  index count = 0;

  template <class T>
  T* at(heads_view<T> x, index i) const {
    const place row = rows[static_cast<std::size_t>(i)];
    return x.at(row.token, row.head);
  }
  template <class T>
  T& at(matrix_view<T> m, index i) const {
    const place row = rows[static_cast<std::size_t>(i)];
    return m(row.token, row.head);
  }

  /// sum(terms of row i) in lane i; terms(i) gives a vector of sums.
  template <class F>
  vec sums(F&& terms) const {
    std::array<vec, lanes> of_rows;
    for (index i = 0; i < count; ++i) of_rows[static_cast<std::size_t>(i)] = terms(i);
    for (index i = count; i < lanes; ++i) of_rows[static_cast<std::size_t>(i)] = vec{};
    return simd::sums(of_rows);
  }

  /// Calls body(first, integral constant n) for rows [first, first + n): four at a time, so that
  /// they share what is read of the weight and written of its gradient, then one by one.
  template <class F>
  void in_steps(F&& body) const {
    index i = 0;
    for (; i + 4 <= count; i += 4) body(i, std::integral_constant<int, 4>{});
    for (; i < count; ++i) body(i, std::integral_constant<int, 1>{});
  }

  /// Pointers to rows [first, first + n).
  template <int n, class T>
  std::array<T*, n> pointers(heads_view<T> x, index first) const {
    std::array<T*, n> all;
    for (int i = 0; i < n; ++i) all[i] = at(x, first + i);
    return all;
  }
};

/// Calls body(group) for all rows of tokens [begin, end). A group's inputs stay in the first-level
/// cache from their sums to their results, but where rows are so long that few fit.
template <class F>
void for_each_group(cheads x, index begin, index end, F&& body) {
  constexpr index cached_values = 1024;
  const index most = std::clamp<index>(cached_values / std::max<index>(1, x.width), 1, lanes);
  row_group group;
  for (index t = begin; t < end; ++t)
    for (index h = 0; h < x.heads; ++h) {
      group.rows[static_cast<std::size_t>(group.count++)] = {t, h};
      if (group.count < most) continue;
      body(group);
      group.count = 0;
    }
  if (group.count > 0) body(group);
}

template <class F>
void forward_rows(cheads x, executor& on, F&& body) {
  const index step = tokens_of_item(x);
  on.parallel_for(blocks_of(x.tokens, step), [&](index item, scratch&) {
    for_each_group(x, item * step, std::min(x.tokens, (item + 1) * step), body);
  });
}

/// rstd of the group's rows.
vec reciprocal_rms(const row_group& rows, cheads x, float eps) {
  const vec squares = rows.sums([&](index i) {
    const float* in = rows.at(x, i);
    return simd::lane_sums(x.width, [&](auto get) { return get(in) * get(in); });
  });
  return 1.0f / simd::sqrt(squares / static_cast<float>(x.width) + eps);
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

/// Runs body(group, partial of d_weight) over all rows, then adds the partials to d_weight.
template <class F>
void backward_rows(cheads x, std::span<float> d_weight, executor& on, F&& body) {
  const weight_blocks blocks(x);
  scratch& local = on.local();
  const index mark = local.mark();
  const mat partials = local.matrix(blocks.count, x.width);
  on.parallel_for(blocks.count, [&](index block, scratch&) {
    float* partial = partials.row(block);
    std::fill_n(partial, x.width, 0.0f);
    for_each_group(x, block * blocks.tokens, std::min(x.tokens, (block + 1) * blocks.tokens),
                   [&](const row_group& rows) { body(rows, partial); });
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
  forward_rows(x, on, [&](const row_group& rows) {
    const vec r = reciprocal_rms(rows, x, eps);
    for (index i = 0; i < rows.count; ++i) rows.at(rstd, i) = r[i];
    rows.in_steps([&](index first, auto n) {
      const auto in = rows.pointers<n>(x, first);
      const auto result = rows.pointers<n>(out, first);
      for_each_vec(x.width, [&](index, auto get, auto put) {
        const vec u = factor<Kind>(get(w));
        for (int i = 0; i < n; ++i) put(result[i], get(in[i]) * r[first + i] * u);
      });
    });
  });
}

template <norm_weight Kind>
void backward(heads d_x, std::span<float> d_weight, cheads d_out, cheads x, cmat rstd,
              const float* w, executor& on) {
  backward_rows(x, d_weight, on, [&](const row_group& rows, float* partial) {
    vec r{};
    for (index i = 0; i < rows.count; ++i) r[i] = rows.at(rstd, i);
    const vec dots = rows.sums([&](index i) {
      const float *in = rows.at(x, i), *d = rows.at(d_out, i);
      return simd::lane_sums(x.width,
                             [&](auto get) { return get(d) * factor<Kind>(get(w)) * get(in); });
    });
    const vec along = r * r * r * dots / static_cast<float>(x.width);
    rows.in_steps([&](index first, auto n) {
      const auto in = rows.pointers<n>(x, first);
      const auto d = rows.pointers<n>(d_out, first);
      const auto result = rows.pointers<n>(d_x, first);
      for_each_vec(x.width, [&](index, auto get, auto put) {
        const vec u = factor<Kind>(get(w));
        vec d_u = get(partial);
        for (int i = 0; i < n; ++i) {
          const vec scaled = get(d[i]) * r[first + i], value = get(in[i]);
          put(result[i], get(result[i]) + (scaled * u - value * along[first + i]));
          d_u += scaled * value;
        }
        put(partial, d_u);
      });
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
  forward_rows(x, on, [&](const row_group& rows) {
    const vec r = reciprocal_rms(rows, x, eps);
    for (index i = 0; i < rows.count; ++i) {
      rows.at(rstd, i) = r[i];
      const float *in = rows.at(x, i), *gate = rows.at(z, i);
      float* result = rows.at(out, i);
      for_each_vec(x.width, [&](index, auto get, auto put) {
        put(result, get(in) * r[i] * get(w) * simd::silu(get(gate)));
      });
    }
  });
}

void gated_rms_norm_backward(heads d_x, heads d_z, std::span<float> d_weight, cheads d_out,
                             cheads x, cheads z, cmat rstd, std::span<const float> weight,
                             executor& on) {
  const float* w = weight.data();
  backward_rows(x, d_weight, on, [&](const row_group& rows, float* partial) {
    // The first pass leaves the gradient of x rstd in d_x: the gate's exponential is taken once.
    vec r{};
    const vec dots = rows.sums([&](index i) {
      const float *in = rows.at(x, i), *gate = rows.at(z, i), *d = rows.at(d_out, i);
      float *result = rows.at(d_x, i), *result_z = rows.at(d_z, i);
      r[i] = rows.at(rstd, i);
      vec row_dots{};
      for_each_vec(x.width, [&](index, auto get, auto put) {
        const vec normalized = get(in) * r[i], gate_in = get(gate), s = simd::sigmoid(gate_in);
        const vec d_here = get(d), d_gated = d_here * gate_in * s;
        const vec d_normalized = d_gated * get(w);
        put(partial, get(partial) + d_gated * normalized);
        put(result_z, d_here * normalized * get(w) * simd::silu_slope(gate_in, s));
        put(result, d_normalized);
        row_dots += d_normalized * normalized;
      });
      return row_dots;
    });
    const vec along = dots / static_cast<float>(x.width) * r;
    for (index i = 0; i < rows.count; ++i) {
      const float* in = rows.at(x, i);
      float* result = rows.at(d_x, i);
      for_each_vec(x.width, [&](index, auto get, auto put) {
        put(result, r[i] * (get(result) - get(in) * along[i]));
      });
    }
  });
}

}  // namespace longstraw::kernels
