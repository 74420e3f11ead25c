#pragma once
// What exchanges are made of. A rank gives matrices one behind the other; every rank takes its part
// of each, in the same order. Tokens and heads are split as rank_share says.

#include <longstraw/models/layer_program.hpp>
#include <longstraw/models/workspace.hpp>

#include <vector>

namespace longstraw::models {

/// Writes what this rank gives.
class given_parts {
 public:
  given_parts(std::span<float> to, kernels::executor& on) : to_(to), on_(on) {}
  void add(cmat m);
  void add(cheads h);
  /// Floats written so far.
  index floats() const { return used_; }

 private:
  mat room(index rows, index cols);

  std::span<float> to_;
  index used_ = 0;
  kernels::executor& on_;
};

/// Reads what all ranks gave in a pass of `tokens` tokens over all ranks. Each call takes the next matrix.
class taken_parts {
 public:
  taken_parts(std::span<const std::span<const float>> given, const rank_share& at, index tokens,
              kernels::executor& on);

  /// Every rank gave its tokens' rows: all [tokens, cols] gets them below each other.
  void rows(mat all);
  void rows(heads all);

  /// Every rank gave a partial sum for all tokens: own [own tokens, heads, width] = their sum, in order of rank.
  void sum_of_rows(heads own);
  /// Every rank gave something for all tokens [tokens, cols]: what each gave for this rank's tokens. Views of `given`.
  std::vector<cmat> own_rows(index cols);

  /// Every rank gave its tokens' rows of all `heads` heads, `head_floats` columns each:
  /// own [tokens, own heads * head_floats] gets this rank's heads for all tokens.
  void own_heads(mat own, index heads, index head_floats);
  /// The transpose. Every rank gave its heads' columns for all tokens: own [own tokens, heads * head_floats] gets all
  /// heads for this rank's tokens.
  void all_heads(mat own, index heads, index head_floats);

 private:
  index ranks() const { return at_.ranks; }
  cmat next(index rank, index rows, index cols);

  std::span<const std::span<const float>> given_;
  rank_share at_;
  index tokens_;
  std::vector<index> used_;  ///< by rank
  kernels::executor& on_;
};

}  // namespace longstraw::models
