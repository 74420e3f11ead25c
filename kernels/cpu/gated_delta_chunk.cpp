#include <longstraw/kernels/cpu/gated_delta_chunk.hpp>

#include <utility>

namespace longstraw::kernels::gated_delta {

using simd::lanes;
using simd::load;
using simd::store;
using simd::vec;

static_assert(block_rows % lanes == 0);

void product(mat c, cmat a, cmat b) { tile_product(c, as_left(a), b); }
void product(mat c, const tile_terms& terms) { tile_product(c, terms); }
void product_add(mat c, cmat a, cmat b, float kept) { tile_product_add(c, as_left(a), b, kept); }
void product_add(mat c, const tile_terms& terms) { tile_product_add(c, terms); }
void transposed_product_add(mat c, cmat a, cmat b) {
  tile_product_add(c, as_left_transposed(a), b);
}

void load_rows(mat to, const float* from, index stride, index count, index width) {
  for (index r = 0; r < count; ++r) {
    const float* source = from + r * stride;
    float* row = to.row(r);
    index c = 0;
    for (; c + lanes <= width; c += lanes) store(row + c, load(source + c));
    if (c < width) store(row + c, simd::load_part(source + c, width - c)), c += lanes;
    for (; c < to.cols; c += lanes) store(row + c, vec{});
  }
  for (index r = count; r < to.rows; ++r) std::fill_n(to.row(r), to.cols, 0.0f);
}

void store_rows(float* to, index stride, cmat from, index count, index width) {
  for (index r = 0; r < count; ++r)
    simd::for_each_vec(width,
                       [&](index, auto get, auto put) { put(to + r * stride, get(from.row(r))); });
}

void row_dots(float* dots, cmat a, cmat b) {
  for (index first = 0; first < a.rows; first += lanes) {
    vec sums[lanes] = {};
    for (index i = 0; i < std::min(lanes, a.rows - first); ++i)
      for (index c = 0; c < a.cols; c += lanes)
        sums[i] += load(a.row(first + i) + c) * load(b.row(first + i) + c);
    store(dots + first, sums_of_rows(sums));
  }
}

void load_normalized(mat to, float* inverse_norm, const float* x, index stride, index count,
                     index width, float scale) {
  load_rows(to, x, stride, count, width);
  row_dots(inverse_norm, to, to);
  for (index r = 0; r < to.rows; r += lanes)  // a vector of roots and quotients at once
    store(inverse_norm + r, 1.0f / simd::sqrt(load(inverse_norm + r) + 1e-6f));
  for (index r = 0; r < to.rows; ++r) {
    float* row = to.row(r);
    const float factor = inverse_norm[r] * scale;
    for (index c = 0; c < to.cols; c += lanes) store(row + c, load(row + c) * factor);
  }
}

void lower_products(mat products, cmat a, cmat b_transposed) {
  for (index b = 0; b * block_rows < products.rows; ++b) {
    const index cols = (b + 1) * block_rows;
    product(block(products, b).col_range(0, cols), block(a, b), b_transposed.col_range(0, cols));
  }
}

decays decays::in(scratch& local, index rows_max) {
  decays d;
  d.between = local.matrix(rows_max, rows_max);
  d.from_start = local.floats(rows_max).data();
  d.minus_from_start = local.floats(rows_max).data();
  d.to_end = local.floats(rows_max).data();
  return d;
}

namespace {

using simd::half_vec;
using simd::wide;

template <int... Lane>
vec joined(half_vec low, half_vec high, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(low, high, Lane...);
}

/// Rows of a diagonal block of decays that need an exponential for every pair.
constexpr index half_block = block_rows / 2;

/// out[j] = exp(min(sign (from - to[j]), 0)) over one block, with a `from` for each of its halves;
/// the difference is taken in double
void exp_differences(float* out, double from_low, double from_high, const double* to,
                     double sign = 1.0) {
  for (index j = 0; j < block_rows; j += lanes) {
    wide low, high;
    std::memcpy(&low, to + j, sizeof low);
    std::memcpy(&high, to + j + lanes / 2, sizeof high);
    low = sign * ((j < half_block ? from_low : from_high) - low);
    high = sign * ((j + lanes / 2 < half_block ? from_low : from_high) - high);
    const vec difference =
        joined(__builtin_convertvector(low, half_vec), __builtin_convertvector(high, half_vec),
               std::make_integer_sequence<int, static_cast<int>(lanes)>{});
    store(out + j, simd::exp(simd::min(vec{}, difference)));  // in this order NaN stays NaN
  }
}
void exp_differences(float* out, double from, const double* to, double sign = 1.0) {
  exp_differences(out, from, from, to, sign);
}

/// Decays within a block. Its two triangles take one exponential a pair, row i of the lower one
/// beside row i of the upper; what lies between them is the product of two.
void set_diagonal_block(mat decays, const double* sums) {
  static_assert(half_block == 8);
  alignas(64) constexpr std::int32_t column_in_half[] = {0, 1, 2, 3, 4, 5, 6, 7,
                                                         0, 1, 2, 3, 4, 5, 6, 7};
  alignas(64) constexpr std::int32_t is_left[] = {1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0};
  const double border = sums[half_block - 1];
  float to_border[block_rows], from_border[block_rows];  // of columns, of rows
  exp_differences(to_border, border, sums);
  exp_differences(from_border, border, sums, -1.0);
  for (index i = 0; i < half_block; ++i) {
    float pairs[block_rows];
    exp_differences(pairs, sums[i], sums[half_block + i], sums);
    for (index j = 0; j < block_rows; j += lanes) {
      simd::ivec column, left;
      std::memcpy(&column, column_in_half + j, sizeof column);
      std::memcpy(&left, is_left + j, sizeof left);
      const vec seen = column <= static_cast<std::int32_t>(i) ? load(pairs + j) : vec{};
      const vec between = from_border[half_block + i] * load(to_border + j);
      store(decays.row(i) + j, left != 0 ? seen : vec{});
      store(decays.row(half_block + i) + j, left != 0 ? between : seen);
    }
  }
}

}  // namespace

void decays::set(const float* g, index stride, const chunk_sizes& n) {
  double sums[gated_delta_chunk_max];
  double sum = 0;
  for (index t = 0; t < n.rows; ++t) {
    if (t < n.tokens) sum += static_cast<double>(g[t * stride]);
    sums[t] = sum;
  }
  for (index b = 0; b < n.blocks(); ++b) {
    const double* block_sums = sums + b * block_rows;
    exp_differences(from_start + b * block_rows, 0.0, block_sums, -1.0);
    exp_differences(to_end + b * block_rows, sum, block_sums);
    const mat rows = block(between, b);
    set_diagonal_block(rows.col_range(b * block_rows, (b + 1) * block_rows), block_sums);
    // Left of the diagonal block a decay is the product of two, over the last token of the earlier
    // block: one exponential a row and one a column.
    for (index earlier = 0; earlier < b; ++earlier) {
      const double* earlier_sums = sums + earlier * block_rows;
      const double border = earlier_sums[block_rows - 1];
      float row_part[block_rows], col_part[block_rows];
      exp_differences(row_part, border, block_sums, -1.0);
      exp_differences(col_part, border, earlier_sums);
      for (index i = 0; i < block_rows; ++i)
        for (index j = 0; j < block_rows; j += lanes)
          store(rows.row(i) + earlier * block_rows + j, row_part[i] * load(col_part + j));
    }
  }
  for (index i = 0; i < n.rows; i += lanes) store(minus_from_start + i, -load(from_start + i));
  whole = from_start[n.rows - 1];
}

void weigh_pairs(mat to, const decays& d, cmat products, float sign, const chunk_sizes& n) {
  for (index i = 0; i < n.rows; ++i)
    for (index j = 0; j < (i / block_rows + 1) * block_rows; j += lanes)
      store(to.row(i) + j, load(products.row(i) + j) * load(d.between.row(i) + j) * sign);
}

namespace {

// A diagonal block is solved in registers, a vector of columns at a time: 16 rows, each final row
// taken out of those that still need it. Vectors of columns do not depend on each other, so their
// chains of operations overlap. The coefficients lie close together, so that every offset is a
// constant of the code, and have taken in beta: from one row to the next leads one multiplication.
struct coefficients {
  float at[block_rows][block_rows];

  /// Of row i and unknown j: lower_ij beta_j
  static coefficients downwards(cmat lower, const float* beta) {
    coefficients c;
    for (index i = 0; i < block_rows; ++i)
      for (index j = 0; j < block_rows; j += lanes)
        store(c.at[i] + j, load(lower.row(i) + j) * load(beta + j));
    return c;
  }
  /// Of unknown i and row j: lower_ij beta_i
  static coefficients upwards(cmat lower, const float* beta) {
    coefficients c;
    for (index i = 0; i < block_rows; ++i)
      for (index j = 0; j < block_rows; j += lanes)
        store(c.at[i] + j, load(lower.row(i) + j) * beta[i]);
    return c;
  }
};

template <int Row>
inline __attribute__((always_inline)) void eliminate(vec (&w)[block_rows],
                                                     const coefficients& lower) {
  for (int i = Row + 1; i < block_rows; ++i) w[i] += lower.at[i][Row] * w[Row];
}

template <int Row>
inline __attribute__((always_inline)) void eliminate_upwards(vec (&x)[block_rows],
                                                             const coefficients& lower) {
  for (int i = 0; i < Row; ++i) x[i] += lower.at[Row][i] * x[Row];
}

/// Calls step(integral_constant<int, J>) for J = 0 .. block_rows - 1.
template <class Step>
inline __attribute__((always_inline)) void for_each_row(Step&& step) {
  [&]<int... J>(std::integer_sequence<int, J...>) __attribute__((always_inline)) {
    (step(std::integral_constant<int, J>{}), ...);
  }
  (std::make_integer_sequence<int, static_cast<int>(block_rows)>{});
}

/// One vector of columns. Not inlined, so that coefficients are read where they lie, as operands:
/// spread over registers ahead of a loop over columns, they would be spilled to the stack.
///  w: in the right-hand side, out w, or to_end u if to_end is given;  u = beta w
template <bool Leaving>
__attribute__((noinline)) void solve_columns(float* u, index u_stride, float* w, index w_stride,
                                             const coefficients& c, const float* beta,
                                             const float* to_end) {
  vec rows[block_rows];
  for (int i = 0; i < block_rows; ++i) rows[i] = load(w + i * w_stride);
  for_each_row([&]<int J>(std::integral_constant<int, J>) __attribute__((always_inline)) {
    const vec final_u = rows[J] * beta[J];
    store(u + J * u_stride, final_u);
    store(w + J * w_stride, Leaving ? final_u * to_end[J] : rows[J]);
    eliminate<J>(rows, c);
  });
}

__attribute__((noinline)) void solve_columns_transposed(float* y, index y_stride, float* x,
                                                        index x_stride, const coefficients& c,
                                                        const float* beta) {
  vec rows[block_rows];
  for (int i = 0; i < block_rows; ++i) rows[i] = load(x + i * x_stride);
  for_each_row([&]<int J>(std::integral_constant<int, J>) __attribute__((always_inline)) {
    constexpr int row = static_cast<int>(block_rows) - 1 - J;
    store(x + row * x_stride, rows[row]);
    store(y + row * y_stride, rows[row] * beta[row]);
    eliminate_upwards<row>(rows, c);
  });
}

}  // namespace

void solve_writes(mat w, mat u, solved as, cmat state, cmat k, cmat lower, const decays& d,
                  const float* beta, const chunk_sizes& n) {
  for (index b = 0; b < n.blocks(); ++b) {
    const index begin = b * block_rows;
    product_add(block(w, b), {as_left(block(k, b)), state, d.minus_from_start + begin,
                              as_left(block(lower, b)), u.row_range(0, begin)});
    const auto c =
        coefficients::downwards(block(lower, b).col_range(begin, begin + block_rows), beta + begin);
    const auto solve = as == solved::leaving ? solve_columns<true> : solve_columns<false>;
    for (index column = 0; column < w.cols; column += lanes)
      solve(u.row(begin) + column, u.stride, w.row(begin) + column, w.stride, c, beta + begin,
            d.to_end + begin);
  }
}

void solve_writes_transposed(mat y, mat x, cmat lower, const float* beta, const chunk_sizes& n) {
  for (index b = n.blocks() - 1; b >= 0; --b) {
    const index begin = b * block_rows, end = begin + block_rows;
    transposed_product_add(block(x, b), lower.row_range(end, n.rows).col_range(begin, end),
                           y.row_range(end, n.rows));
    const auto c = coefficients::upwards(block(lower, b).col_range(begin, end), beta + begin);
    for (index column = 0; column < x.cols; column += lanes)
      solve_columns_transposed(y.row(begin) + column, y.stride, x.row(begin) + column, x.stride, c,
                               beta + begin);
  }
}

}  // namespace longstraw::kernels::gated_delta
