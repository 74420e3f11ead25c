#include <longstraw/models/exchange_parts.hpp>

#include <algorithm>

namespace longstraw::models {

mat given_parts::room(index rows, index cols) {
  LS_ASSERT(used_ + rows * cols <= static_cast<index>(to_.size()),
            "a rank gives no more than it said");
  const mat m(to_.data() + used_, rows, cols);
  used_ += rows * cols;
  return m;
}

void given_parts::add(cmat m) { copy(room(m.rows, m.cols), m, on_); }

void given_parts::add(cheads h) {
  const mat to = room(h.tokens, h.heads * h.width);
  copy(split_heads(to, h.heads), h, on_);
}

taken_parts::taken_parts(std::span<const std::span<const float>> given, const rank_share& at,
                         index tokens, kernels::executor& on)
    : given_(given), at_(at), tokens_(tokens), used_(given.size()), on_(on) {
  LS_ASSERT(static_cast<index>(given.size()) == at.ranks, "every rank gives, if nothing");
}

cmat taken_parts::next(index rank, index rows, index cols) {
  const auto r = static_cast<std::size_t>(rank);
  LS_ASSERT(used_[r] + rows * cols <= static_cast<index>(given_[r].size()),
            "a rank gave what its part of the exchange needs");
  const cmat m(given_[r].data() + used_[r], rows, cols);
  used_[r] += rows * cols;
  return m;
}

void taken_parts::rows(mat all) {
  for (index r = 0; r < ranks(); ++r) {
    const token_range t = at_.part(tokens_, r);
    copy(all.row_range(t.begin, t.end), next(r, t.count(), all.cols), on_);
  }
}

void taken_parts::rows(heads all) {
  for (index r = 0; r < ranks(); ++r) {
    const token_range t = at_.part(tokens_, r);
    const cmat from = next(r, t.count(), all.heads * all.width);
    copy(all.token_range(t.begin, t.end), split_heads(from, all.heads), on_);
  }
}

std::vector<cmat> taken_parts::own_rows(index cols) {
  const token_range own = at_.part(tokens_);
  std::vector<cmat> parts;
  for (index r = 0; r < ranks(); ++r)
    parts.push_back(next(r, tokens_, cols).row_range(own.begin, own.end));
  return parts;
}

void taken_parts::sum_of_rows(heads own) {
  const std::vector<cmat> parts = own_rows(own.heads * own.width);
  constexpr index block_rows = 32;
  on_.parallel_for(kernels::blocks_of(own.tokens, block_rows), [&](index block, kernels::scratch&) {
    const index end = std::min(own.tokens, (block + 1) * block_rows);
    for (index t = block * block_rows; t < end; ++t)
      for (index h = 0; h < own.heads; ++h) {
        float* to = own.at(t, h);
        std::copy_n(parts[0].row(t) + h * own.width, own.width, to);
        for (std::size_t r = 1; r < parts.size(); ++r) {
          const float* from = parts[r].row(t) + h * own.width;
          for (index c = 0; c < own.width; ++c) to[c] += from[c];
        }
      }
  });
}

void taken_parts::own_heads(mat own, index heads, index head_floats) {
  const token_range part = at_.part(heads);
  for (index r = 0; r < ranks(); ++r) {
    const token_range t = at_.part(tokens_, r);
    const cmat from = next(r, t.count(), heads * head_floats);
    copy(own.row_range(t.begin, t.end),
         from.col_range(part.begin * head_floats, part.end * head_floats), on_);
  }
}

void taken_parts::all_heads(mat own, index heads, index head_floats) {
  const token_range t = at_.part(tokens_);
  for (index r = 0; r < ranks(); ++r) {
    const token_range part = at_.part(heads, r);
    const cmat from = next(r, tokens_, part.count() * head_floats);
    copy(own.col_range(part.begin * head_floats, part.end * head_floats),
         from.row_range(t.begin, t.end), on_);
  }
}

}  // namespace longstraw::models
