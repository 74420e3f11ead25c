#pragma once
// Keys and values in pages. A page of `capacity` tokens holds the keys of all its tokens, then the
// values, each as [kv_heads, capacity, head_dim]: the keys of one head are one matrix, which is
// what attention reads at a time.

#include <longstraw/kernels/attention.hpp>
#include <longstraw/models/layer_program.hpp>

#include <vector>

namespace longstraw::models {

struct kv_pages {
  index kv_heads = 0;
  index head_dim = 0;

  index floats_per_token() const { return 2 * kv_heads * head_dim; }

  /// Tokens [begin, end) of the run that `page` lists, counted from the run's first.
  heads keys(const state_page& page, index begin, index end) const;
  heads values(const state_page& page, index begin, index end) const;

  /// The valid tokens of that run as attention reads them.
  kernels::kv_piece piece(const state_page& page) const;
  /// Where the gradient of that piece goes, in a page of the same layout.
  kernels::kv_piece_gradient gradient(const state_page& page) const;

  /// Copies keys and values [tokens, kv_heads, head_dim] of `positions` into the pages that have
  /// room for them, or out of them.
  void write(std::span<const state_page> pages, token_range positions, cheads keys, cheads values,
             kernels::executor& on) const;
  void read(heads keys, heads values, std::span<const state_page> pages, token_range positions,
            kernels::executor& on) const;
};

}  // namespace longstraw::models
