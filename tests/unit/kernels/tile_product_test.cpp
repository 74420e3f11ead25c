#include "support/compare.hpp"

#include <longstraw/kernels/cpu/tile_product.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

void check_product(index m, index n, index k, bool transposed, bool add) {
  CAPTURE(m, n, k, transposed, add);
  const auto a = random_values<float>(m * k, 1), b = random_values<float>(k * n, 2),
             before = random_values<float>(m * n, 3);
  guarded c(m * n);
  if (add) std::copy(before.begin(), before.end(), c.data());
  const cmat left = transposed ? cmat(a.data(), k, m) : cmat(a.data(), m, k);
  const left_factor factor = transposed ? as_left_transposed(left) : as_left(left);
  std::vector<double> want(static_cast<std::size_t>(m * n));
  for (index i = 0; i < m; ++i)
    for (index j = 0; j < n; ++j) {
      double sum = add ? static_cast<double>(before[i * n + j]) : 0.0;
      for (index l = 0; l < k; ++l)
        sum += static_cast<double>(transposed ? left(l, i) : left(i, l)) *
               static_cast<double>(b[l * n + j]);
      want[i * n + j] = sum;
    }
  if (add)
    tile_product_add(c.matrix(m, n), factor, {b.data(), k, n});
  else
    tile_product(c.matrix(m, n), factor, {b.data(), k, n});
  CHECK(relative_error(c.values(), want) < float32_bound(k));
}

}  // namespace

TEST_CASE("a tile product is right for every number of rows and columns", "[unit][parity]") {
  const bool transposed = GENERATE(false, true), add = GENERATE(false, true);
  for (index m = 0; m <= 17; ++m)
    for (const index n : {0, 1, 7, 8, 15, 16, 17, 31, 33, 48, 63, 64, 65, 100})
      check_product(m, n, 5, transposed, add);
}

TEST_CASE("a tile product is right for every depth", "[unit][parity]") {
  const index k = GENERATE(0, 1, 2, 3, 63, 64, 65, 1000);
  check_product(13, 70, k, false, false);
  check_product(13, 70, k, true, true);
}

TEST_CASE("a tile product of two terms scales the rows of the first", "[unit][parity]") {
  const index m = GENERATE(1, 6, 16, 17), n = GENERATE(1, 16, 32, 70), k2 = GENERATE(0, 1, 16);
  const bool add = GENERATE(false, true);
  CAPTURE(m, n, k2, add);
  const index k = 20;
  const auto a = random_values<float>(m * k, 1), b = random_values<float>(k * n, 2),
             a2 = random_values<float>(m * k2, 3), b2 = random_values<float>(k2 * n, 4),
             scale = random_values<float>(m, 5), before = random_values<float>(m * n, 6);
  guarded c(m * n);
  if (add) std::copy(before.begin(), before.end(), c.data());
  std::vector<double> want(static_cast<std::size_t>(m * n));
  for (index i = 0; i < m; ++i)
    for (index j = 0; j < n; ++j) {
      double first = 0, second = add ? static_cast<double>(before[i * n + j]) : 0.0;
      for (index l = 0; l < k; ++l)
        first += static_cast<double>(a[i * k + l]) * static_cast<double>(b[l * n + j]);
      for (index l = 0; l < k2; ++l)  // a2 lies transposed
        second += static_cast<double>(a2[l * m + i]) * static_cast<double>(b2[l * n + j]);
      want[i * n + j] = static_cast<double>(scale[i]) * first + second;
    }
  const tile_terms terms{as_left({a.data(), m, k}),
                         {b.data(), k, n},
                         scale.data(),
                         as_left_transposed({a2.data(), k2, m}),
                         {b2.data(), k2, n}};
  if (add)
    tile_product_add(c.matrix(m, n), terms);
  else
    tile_product(c.matrix(m, n), terms);
  CHECK(relative_error(c.values(), want) < float32_bound(k + k2));
}

TEST_CASE("a tile product keeps a share of what was there", "[unit]") {
  const index m = 9, n = 40;
  const auto a = random_values<float>(m * 3, 1), b = random_values<float>(3 * n, 2);
  guarded c(m * n);
  std::fill_n(c.data(), m * n, 8.0f);
  tile_product_add(c.matrix(m, n), as_left({a.data(), m, 3}), {b.data(), 3, n}, 0.25f);
  std::vector<double> want(static_cast<std::size_t>(m * n), 2.0);
  for (index i = 0; i < m; ++i)
    for (index j = 0; j < n; ++j)
      for (index l = 0; l < 3; ++l)
        want[i * n + j] += static_cast<double>(a[i * 3 + l]) * static_cast<double>(b[l * n + j]);
  CHECK(relative_error(c.values(), want) < float32_bound(3));
}

TEST_CASE("a tile product works inside larger matrices", "[unit]") {
  const auto a = random_values<float>(40 * 50, 1), b = random_values<float>(40 * 50, 2);
  std::vector<float> c(40 * 50, -7.0f), dense(9 * 20);
  const cmat left(a.data() + 3, 9, 11, 50), right(b.data() + 5, 11, 20, 50);
  tile_product({c.data() + 51, 9, 20, 50}, as_left(left), right);
  for (index i = 0; i < 9; ++i)
    for (index j = 0; j < 20; ++j) {
      double sum = 0;
      for (index l = 0; l < 11; ++l)
        sum += static_cast<double>(left(i, l)) * static_cast<double>(right(l, j));
      CHECK(std::abs(static_cast<double>(c[51 + i * 50 + j]) - sum) < 1e-5);
    }
  CHECK(std::count(c.begin(), c.end(), -7.0f) == 40 * 50 - 9 * 20);
}

}  // namespace longstraw::testing
