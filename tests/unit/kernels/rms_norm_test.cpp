#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/reference/rms_norm.hpp>
#include <longstraw/kernels/rms_norm.hpp>

#include <catch2/generators/catch_generators.hpp>

#include <optional>

namespace longstraw::testing {

using namespace kernels;

namespace {

constexpr float eps = 1e-5f;

struct norm_case {
  index tokens, heads_count, width;
  std::vector<float> x, z, weight, d_out, d_x_before;

  norm_case(index t, index h, index w)
      : tokens(t),
        heads_count(h),
        width(w),
        x(random_values<float>(t * h * w, 1)),
        z(random_values<float>(t * h * w, 2)),
        weight(random_values<float>(w, 3, 0.5)),
        d_out(random_values<float>(t * h * w, 4)),
        d_x_before(random_values<float>(t * h * w, 5)) {}

  index values() const { return tokens * heads_count * width; }
  template <class T>
  heads_view<const T> view(const std::vector<T>& v) const {
    return split_heads(matrix_view<const T>(v.data(), tokens, heads_count * width), heads_count);
  }
  heads result(guarded& g) const {
    return split_heads(g.matrix(tokens, heads_count * width), heads_count);
  }
};

struct norm_results {
  guarded out, rstd, d_x, d_z, d_weight;

  /// Plain norm, or the gated one if `kind` is empty.
  norm_results(const norm_case& c, std::optional<norm_weight> kind, int threads)
      : out(c.values()),
        rstd(c.tokens * c.heads_count),
        d_x(c.values()),
        d_z(c.values()),
        d_weight(c.width, 0.25f) {
    runner on(threads);
    const mat r = rstd.matrix(c.tokens, c.heads_count);
    if (kind) {
      std::copy(c.d_x_before.begin(), c.d_x_before.end(), d_x.data());
      rms_norm_forward(c.result(out), r, c.view(c.x), c.weight, eps, *kind, on.exec);
      rms_norm_backward(c.result(d_x), d_weight.values(), c.view(c.d_out), c.view(c.x), r, c.weight,
                        *kind, on.exec);
    } else {
      gated_rms_norm_forward(c.result(out), r, c.view(c.x), c.view(c.z), c.weight, eps, on.exec);
      gated_rms_norm_backward(c.result(d_x), c.result(d_z), d_weight.values(), c.view(c.d_out),
                              c.view(c.x), c.view(c.z), r, c.weight, on.exec);
    }
  }
};

struct norm_truth {
  std::vector<double> out, rstd, d_x, d_z, d_weight;

  norm_truth(const norm_case& c, std::optional<norm_weight> kind)
      : out(c.x.size()),
        rstd(static_cast<std::size_t>(c.tokens * c.heads_count)),
        d_x(c.x.size()),
        d_z(c.x.size()),
        d_weight(c.weight.size(), 0.25) {
    const auto x = as<double>(c.x), z = as<double>(c.z), w = as<double>(c.weight),
               d = as<double>(c.d_out);
    auto result = [&](std::vector<double>& v) {
      return split_heads(matrix_view<double>(v.data(), c.tokens, c.heads_count * c.width),
                         c.heads_count);
    };
    const matrix_view<double> r(rstd.data(), c.tokens, c.heads_count);
    const double e = static_cast<double>(eps);
    if (kind) {
      d_x = as<double>(c.d_x_before);
      reference::rms_norm_forward<double>(result(out), r, c.view(x), w, e, *kind);
      reference::rms_norm_backward<double>(result(d_x), d_weight, c.view(d), c.view(x), r, w,
                                           *kind);
    } else {
      reference::gated_rms_norm_forward<double>(result(out), r, c.view(x), c.view(z), w, e);
      reference::gated_rms_norm_backward<double>(result(d_x), result(d_z), d_weight, c.view(d),
                                                 c.view(x), c.view(z), r, w);
    }
  }
};

void check_parity(const norm_case& c, std::optional<norm_weight> kind) {
  const norm_truth want(c, kind);
  norm_results got(c, kind, 1);
  const double bound = float32_bound(c.width);
  CHECK(relative_error(got.out.values(), want.out) < bound);
  CHECK(relative_error(got.rstd.values(), want.rstd) < bound);
  CHECK(relative_error(got.d_x.values(), want.d_x) < bound);
  if (!kind) CHECK(relative_error(got.d_z.values(), want.d_z) < bound);
  CHECK(relative_error(got.d_weight.values(), want.d_weight) <
        float32_bound(c.width + c.tokens * c.heads_count));
}

const std::optional<norm_weight> kinds[] = {norm_weight::plain, norm_weight::one_plus,
                                            std::nullopt};

}  // namespace

TEST_CASE("the norm and the gated norm equal their reference for any length", "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 63, 65, 1000);
  const auto kind = kinds[GENERATE(0, 1, 2)];
  CAPTURE(tokens, kind.has_value());
  check_parity(norm_case(tokens, 1, 96), kind);
  check_parity(norm_case(tokens, 3, 20), kind);
}

TEST_CASE("the norm and the gated norm equal their reference for any width", "[unit][parity]") {
  const index width = GENERATE(3, 10, 15, 16, 17, 128, 2000);
  const auto kind = kinds[GENERATE(0, 1, 2)];
  CAPTURE(width, kind.has_value());
  check_parity(norm_case(9, 2, width), kind);
}

TEST_CASE("the norm reads and writes heads that lie apart, and may work in place", "[unit]") {
  const norm_case c(7, 2, 24);
  norm_results want(c, norm_weight::one_plus, 1);
  // Head h of token t at 100 t + 50 h + 3, in place.
  std::vector<float> memory(7 * 100, -5.0f), rstd(14);
  for (index t = 0; t < 7; ++t)
    for (index h = 0; h < 2; ++h)
      std::copy_n(c.view(c.x).at(t, h), 24, memory.data() + t * 100 + h * 50 + 3);
  const heads apart(memory.data() + 3, 7, 2, 24, 100, 50);
  runner on(1);
  rms_norm_forward(apart, {rstd.data(), 7, 2}, apart, c.weight, eps, norm_weight::one_plus,
                   on.exec);
  for (index t = 0; t < 7; ++t)
    for (index h = 0; h < 2; ++h) {
      CHECK(std::equal(apart.at(t, h), apart.at(t, h) + 24, c.result(want.out).at(t, h)));
      CHECK(apart.at(t, h)[-1] == -5.0f);
      CHECK(apart.at(t, h)[24] == -5.0f);
    }
}

TEST_CASE("a row of zeros has a finite norm and gradient", "[unit]") {
  norm_case c(2, 1, 32);
  std::fill(c.x.begin(), c.x.end(), 0.0f);
  for (const auto kind : kinds) check_parity(c, kind);
}

TEST_CASE("the references of the norms agree with finite differences", "[unit]") {
  const auto kind = kinds[GENERATE(0, 1, 2)];
  const norm_case c(3, 2, 6);
  auto x = as<double>(c.x), z = as<double>(c.z), w = as<double>(c.weight);
  const auto d = as<double>(c.d_out);
  auto loss = [&] {
    std::vector<double> out(x.size()), rstd(6);
    const auto result = split_heads(matrix_view<double>(out.data(), 3, 12), 2);
    const double e = static_cast<double>(eps);
    if (kind)
      reference::rms_norm_forward<double>(result, {rstd.data(), 3, 2}, c.view(x), w, e, *kind);
    else
      reference::gated_rms_norm_forward<double>(result, {rstd.data(), 3, 2}, c.view(x), c.view(z),
                                                w, e);
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i) sum += out[i] * d[i];
    return sum;
  };
  norm_truth gradients(c, kind);
  for (auto& v : gradients.d_weight) v -= 0.25;
  if (kind)
    for (std::size_t i = 0; i < x.size(); ++i)
      gradients.d_x[i] -= static_cast<double>(c.d_x_before[i]);
  CHECK(finite_difference_error(x, gradients.d_x, loss) < 1e-8);
  CHECK(finite_difference_error(w, gradients.d_weight, loss) < 1e-8);
  if (!kind) CHECK(finite_difference_error(z, gradients.d_z, loss) < 1e-8);
}

TEST_CASE("the norms' bits do not depend on the thread count", "[unit]") {
  const norm_case c(900, 3, 100);
  for (const auto kind : kinds) {
    norm_results one(c, kind, 1), two(c, kind, 2), three(c, kind, 3);
    for (auto* other : {&two, &three}) {
      CHECK(same_bits(one.out.values(), other->out.values()));
      CHECK(same_bits(one.d_x.values(), other->d_x.values()));
      CHECK(same_bits(one.d_weight.values(), other->d_weight.values()));
    }
  }
}

TEST_CASE("the widest rows fit the scratch memory", "[unit]") {
  const index width = index{1} << 20, tokens = 3;
  const std::vector<float> ones(static_cast<std::size_t>(width), 1.0f);
  std::vector<float> x(static_cast<std::size_t>(tokens * width), 2.0f), out(x.size()),
      d_x(x.size()), d_w(ones.size()), rstd(3);
  const auto rows = [&](std::vector<float>& v) { return split_heads(mat(v.data(), 3, width), 1); };
  runner on(1);
  rms_norm_forward(rows(out), mat(rstd.data(), 3, 1), rows(x), ones, 1e-6f, norm_weight::plain,
                   on.exec);
  rms_norm_backward(rows(d_x), d_w, rows(out), rows(x), mat(rstd.data(), 3, 1), ones,
                    norm_weight::plain, on.exec);
  CHECK(std::abs(out.back() - 1.0f) < 1e-6f);
  CHECK(std::abs(d_w.back() - 3.0f) < 1e-5f);
  CHECK(std::abs(d_x.back()) < 1e-6f);
}

TEST_CASE("a row's bits do not depend on how many rows follow it", "[unit]") {
  const index width = GENERATE(24, 100, 1500);
  const auto kind = kinds[GENERATE(0, 1, 2)];
  const norm_case all(9, 1, width);
  norm_results whole(all, kind, 1);
  for (index tokens = 1; tokens < 9; ++tokens) {
    const norm_case first(tokens, 1, width);  // the same numbers, fewer of them
    REQUIRE(std::equal(first.x.begin(), first.x.end(), all.x.begin()));
    norm_results part(first, kind, 1);
    const auto n = static_cast<std::size_t>(first.values());
    CHECK(same_bits(part.out.values(), whole.out.values().first(n)));
    CHECK(same_bits(part.d_x.values(), whole.d_x.values().first(n)));
  }
}

}  // namespace longstraw::testing
