#pragma once
// What forward and backward of the gated delta rule share inside one chunk. Symbols as in
// docs/numerics.md.
//
// All matrices of a chunk live in scratch memory with rows (tokens) and columns padded to whole
// vectors. Padding tokens have k = q = v = 0, beta = 0 and g = 0: they write nothing and change
// nothing, so no loop needs a tail.

#include <longstraw/kernels/cpu/pack.hpp>
#include <longstraw/kernels/cpu/simd_math.hpp>
#include <longstraw/kernels/gated_delta.hpp>

#include <algorithm>

namespace longstraw::kernels::gated_delta {

/// Rows of a diagonal block of the triangular solve, and of every block that skips the empty
/// triangle.
inline constexpr index block_rows = 16;

constexpr index padded(index n) { return (n + 15) / 16 * 16; }

/// Sizes of one chunk.
struct chunk_sizes {
  index tokens = 0;  ///< of this chunk, <= chunk_tokens()
  index rows = 0;    ///< tokens, padded
  index key = 0;     ///< key_dim, padded
  index value = 0;   ///< value_dim, padded
  index blocks() const { return rows / block_rows; }
};

/// Products over scratch tiles; one copy of the code for all of them.
void product(mat c, cmat a, cmat b);                      ///< c = a b
void product(mat c, const tile_terms& terms);             ///< c = scale (a b) + a2 b2
void product_add(mat c, cmat a, cmat b, float kept = 1);  ///< c = kept c + a b
void product_add(mat c, const tile_terms& terms);         ///< c += scale (a b) + a2 b2
void transposed_product_add(mat c, cmat a, cmat b);       ///< c += a^T b

/// Rows [block b] of a matrix of the chunk.
template <class T>
matrix_view<T> block(matrix_view<T> m, index b) {
  return m.row_range(b * block_rows, (b + 1) * block_rows);
}

/// to [rows, padded] = from [count, width], zero beyond.
void load_rows(mat to, const float* from, index stride, index count, index width);
void store_rows(float* to, index stride, cmat from, index count, index width);

/// Asks for rows of a later chunk. Tokens lie far apart, so the hardware does not foresee them.
inline void prefetch_rows(const float* from, index stride, index count, index width) {
  for (index r = 0; r < count; ++r)
    for (index c = 0; c < width; c += 16) __builtin_prefetch(from + r * stride + c, 0, 2);
}

/// dots [rows] = row sums of a * b;  a, b [rows, cols], columns padded
void row_dots(float* dots, cmat a, cmat b);

/// to [rows, key] = l2norm(x_t) scale of the chunk's tokens;  inverse_norm [rows] = 1 / sqrt(sum
/// x_t^2 + 1e-6).
void load_normalized(mat to, float* inverse_norm, const float* x, index stride, index count,
                     index width, float scale);

/// products [rows, rows]: a b^T on and below the diagonal blocks;  b_transposed [key, rows]
void lower_products(mat products, cmat a, cmat b_transposed);

/// Decays of one chunk and head: running sums of g are formed in double, since their differences
/// count.
struct decays {
  mat between;  ///< [rows, rows] exp(G_i - G_j), j <= i; 0 above the diagonal in diagonal blocks
  float* from_start;        ///< [rows] exp(G_i)
  float* minus_from_start;  ///< [rows] -exp(G_i)
  float* to_end;            ///< [rows] exp(G_last - G_j)
  float whole = 0;          ///< exp(G_last)

  static decays in(scratch& local, index rows_max);
  /// g of token t at g[t * stride]
  void set(const float* g, index stride, const chunk_sizes& n);
};

///  to [rows, rows] = sign exp(G_i - G_j) products_ij, on and below the diagonal blocks
void weigh_pairs(mat to, const decays& d, cmat products, float sign, const chunk_sizes& n);

/// What a chunk wrote, solved from the triangular system
///   w_i = v_i - exp(G_i) S^T k_i - sum_{j < i} exp(G_i - G_j) (k_i . k_j) u_j
///   u_i = beta_i w_i
/// lower [rows, rows] = -exp(G_i - G_j) k_i . k_j: negative, so that products add.
///  u [rows, value] written;  w [rows, value]: in v, out w, or exp(G_last - G_j) u_j for `leaving`:
///  what the state after the chunk is made of, where no gradient needs w
enum class solved { writes, leaving };
void solve_writes(mat w, mat u, solved as, cmat state, cmat k, cmat lower, const decays& d,
                  const float* beta, const chunk_sizes& n);

/// The transposed system:  x in: gradient of u from outside the chunk's own writes; out: the whole
/// gradient of u
///   x_i = x_i - sum_{j > i} exp(G_j - G_i) (k_j . k_i) y_j        y_i = beta_i x_i
void solve_writes_transposed(mat y, mat x, cmat lower, const float* beta, const chunk_sizes& n);

/// Key heads whose chunks one item walks side by side. Neighbouring heads share the pages and lines
/// of a token's row, so each is brought in once; their states stay in the second-level cache, and
/// every thread gets as many items as any other.
inline index key_heads_of_item(gated_delta_dims n, index threads) {
  constexpr index state_floats_max = index{1} << 16;
  index count = std::min(n.key_heads, state_floats_max / n.key_head_state_floats());
  while (count > 1 && n.key_heads % (count * threads) != 0) --count;
  return std::max<index>(count, 1);
}

}  // namespace longstraw::kernels::gated_delta
