#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/reference/embedding.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;
namespace ref = kernels::reference;

TEST_CASE("embedding rows and their gradients equal the reference, with repeated ids",
          "[unit][parity]") {
  const index tokens = GENERATE(0, 1, 63, 65, 1000);
  const index width = GENERATE(1, 33, 200);
  const index vocabulary = 17;
  std::vector<token_id> ids;
  std::mt19937 engine(1);
  for (index t = 0; t < tokens; ++t) ids.push_back(static_cast<token_id>(engine() % 17));
  const auto table = random_values<float>(vocabulary * width, 2),
             d_out = random_values<float>(tokens * width, 3);
  const auto table_d = as<double>(table), d_out_d = as<double>(d_out);
  std::vector<double> want(d_out.size()), want_d(table.size(), 0.5);
  ref::embedding_forward(matrix_view(want.data(), tokens, width), ids,
                         matrix_view(table_d.data(), vocabulary, width));
  ref::embedding_backward(matrix_view(want_d.data(), vocabulary, width),
                          matrix_view(d_out_d.data(), tokens, width), ids);
  std::vector<float> one_thread;
  for (int threads : {1, 2, 3}) {
    runner on(threads);
    guarded out(tokens * width), d_table(vocabulary * width, 0.5f);
    embedding_forward(out.matrix(tokens, width), ids, {table.data(), vocabulary, width}, on.exec);
    embedding_backward(d_table.matrix(vocabulary, width), {d_out.data(), tokens, width}, ids,
                       on.exec);
    CHECK(relative_error(out.values(), want) == 0);
    CHECK(relative_error(d_table.values(), want_d) < float32_bound(tokens));
    if (one_thread.empty()) one_thread.assign(d_table.values().begin(), d_table.values().end());
    CHECK(same_bits(one_thread, d_table.values()));
  }
}

TEST_CASE("the embedding reaches rows beyond 31 bits", "[unit]") {
  const index stride = 700'000'000;
  sparse_floats table(stride * 6 + 64);
  for (index v = 0; v < 6; ++v) table.data()[v * stride] = static_cast<float>(v + 1);
  const std::vector<token_id> ids{5, 0, 3};
  runner on(1);
  guarded out(3 * 16);
  embedding_forward(out.matrix(3, 16), ids, {table.data(), 6, 16, stride}, on.exec);
  CHECK(out.values()[0] == 6);
  CHECK(out.values()[16] == 1);
  CHECK(out.values()[32] == 4);
  embedding_backward({table.data(), 6, 16, stride}, out.matrix(3, 16), ids, on.exec);
  CHECK(table.data()[5 * stride] == 12);
}

}  // namespace longstraw::testing
