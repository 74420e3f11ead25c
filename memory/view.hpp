#pragma once
// Views on memory that somebody else owns: a matrix, and a matrix whose rows are split into heads.
// Copying a view copies a pointer. Every count, offset and stride is a 64-bit number of elements: a
// million tokens times 32 heads times 128 values is more than 32 bits hold.

#include <longstraw/memory/error.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace longstraw {

using index = std::int64_t;
using token_id = std::int32_t;

/// Positions in the whole sequence, half-open.
struct token_range {
  index begin = 0;
  index end = 0;
  index count() const { return end - begin; }
  bool operator==(const token_range&) const = default;
};

/// [rows, cols], rows `stride` elements apart, columns contiguous.
template <class T>
struct matrix_view {
  T* data = nullptr;
  index rows = 0;
  index cols = 0;
  index stride = 0;

  matrix_view() = default;
  matrix_view(T* d, index r, index c) : data(d), rows(r), cols(c), stride(c) {}
  matrix_view(T* d, index r, index c, index s) : data(d), rows(r), cols(c), stride(s) {}
  /// A view on const elements of the same memory.
  template <class U>
  requires(std::is_same_v<const U, T>) matrix_view(const matrix_view<U>& m)
      : data(m.data), rows(m.rows), cols(m.cols), stride(m.stride) {}

  T* row(index r) const { return data + r * stride; }
  T& operator()(index r, index c) const { return data[r * stride + c]; }
  bool empty() const { return rows == 0 || cols == 0; }
  matrix_view row_range(index begin, index end) const {
    return {data + begin * stride, end - begin, cols, stride};
  }
  matrix_view col_range(index begin, index end) const {
    return {data + begin, rows, end - begin, stride};
  }
};
using mat = matrix_view<float>;
using cmat = matrix_view<const float>;

/// [tokens, heads, width]: head h of token t starts at data + t * token_stride + h * head_stride.
/// One kernel then serves separate, stacked and interleaved projections (q | gate per head) without
/// copies.
template <class T>
struct heads_view {
  T* data = nullptr;
  index tokens = 0;
  index heads = 0;
  index width = 0;
  index token_stride = 0;
  index head_stride = 0;

  heads_view() = default;
  heads_view(T* d, index t, index h, index w, index ts, index hs)
      : data(d), tokens(t), heads(h), width(w), token_stride(ts), head_stride(hs) {}
  template <class U>
  requires(std::is_same_v<const U, T>) heads_view(const heads_view<U>& v)
      : data(v.data),
        tokens(v.tokens),
        heads(v.heads),
        width(v.width),
        token_stride(v.token_stride),
        head_stride(v.head_stride) {}

  T* at(index token, index head) const { return data + token * token_stride + head * head_stride; }
  heads_view token_range(index begin, index end) const {
    return {data + begin * token_stride, end - begin, heads, width, token_stride, head_stride};
  }
};
using heads = heads_view<float>;
using cheads = heads_view<const float>;

/// The columns of `m` as `count` heads of m.cols / count values each.
template <class T>
heads_view<T> split_heads(matrix_view<T> m, index count) {
  LS_ASSERT(count > 0 && m.cols % count == 0, "columns must split evenly into heads");
  return {m.data, m.rows, count, m.cols / count, m.stride, m.cols / count};
}

}  // namespace longstraw
