#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/cpu/matmul.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

// A factor [rows, cols], stored by rows or by columns, with unused values between its lines.
struct stored_factor {
  std::vector<float> values;
  left_factor view;
  stored_factor(index rows, index cols, bool by_columns, unsigned seed) {
    const index lines = by_columns ? cols : rows, stride = (by_columns ? rows : cols) + 5;
    values = random_values<float>(lines * stride, seed);
    view =
        by_columns ? left_factor{values.data(), 1, stride} : left_factor{values.data(), stride, 1};
  }
  double at(index r, index c) const { return view.data[r * view.row_stride + c * view.col_stride]; }
};

}  // namespace

TEST_CASE("both products equal plain sums for every storage of the factors", "[unit][parity]") {
  const auto [m, n, depth] = GENERATE(
      std::tuple<index, index, index>{64, 192, 256}, std::tuple<index, index, index>{7, 65, 300},
      std::tuple<index, index, index>{130, 17, 9}, std::tuple<index, index, index>{9, 300, 513},
      std::tuple<index, index, index>{300, 9, 70}, std::tuple<index, index, index>{3, 3, 0},
      std::tuple<index, index, index>{66, 70, 5000});
  const bool a_by_columns = GENERATE(false, true), b_by_columns = GENERATE(false, true);
  const into mode = GENERATE(into::write, into::add);
  CAPTURE(m, n, depth, a_by_columns, b_by_columns);
  const stored_factor a(m, depth, a_by_columns, 1), b(depth, n, b_by_columns, 2);
  const float before = mode == into::add ? 0.5f : std::nanf("");
  std::vector<double> want;
  for (index r = 0; r < m; ++r)
    for (index c = 0; c < n; ++c) {
      double sum = mode == into::add ? 0.5 : 0.0;
      for (index k = 0; k < depth; ++k) sum += a.at(r, k) * b.at(k, c);
      want.push_back(sum);
    }
  runner on(1);
  for (auto* product : {matmul, matmul_library}) {
    guarded got(m * n, before);
    product(got.matrix(m, n), a.view, b.view, depth, mode, on.exec.local());
    CHECK(relative_error(got.values(), want) < float32_bound(depth));
  }
}

TEST_CASE("a row of a product has the same bits whatever rows are computed with it", "[unit]") {
  if (simd::lanes < 16) SKIP("matmul runs on oneDNN here, which does not promise it");
  const auto [depth, n] =
      GENERATE(std::pair<index, index>{700, 130}, std::pair<index, index>{5000, 40});
  const into mode = GENERATE(into::write, into::add);
  const stored_factor a(200, depth, false, 1), b(depth, n, GENERATE(false, true), 2);
  CAPTURE(depth, n, b.view.col_stride);
  runner on(1);
  std::vector<float> all(static_cast<std::size_t>(200 * n), 0.3f), part = all;
  matmul({all.data(), 200, n}, a.view, b.view, depth, mode, on.exec.local());
  for (index r = 0, rows = 1; r < 200; r += rows, rows = std::min<index>(200 - r, rows + 7))
    matmul({part.data() + r * n, rows, n},
           {a.view.data + r * a.view.row_stride, a.view.row_stride, 1}, b.view, depth, mode,
           on.exec.local());
  CHECK(same_bits(all, part));
}

}  // namespace longstraw::testing
