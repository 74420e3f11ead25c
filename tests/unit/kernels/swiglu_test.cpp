#include "support/compare.hpp"
#include "support/runner.hpp"

#include <longstraw/kernels/reference/swiglu.hpp>
#include <longstraw/kernels/swiglu.hpp>

#include <catch2/generators/catch_generators.hpp>

namespace longstraw::testing {

using namespace kernels;

namespace {

struct swiglu_truth {
  std::vector<double> out, d_gate, d_up;

  swiglu_truth(const std::vector<double>& gate, const std::vector<double>& up,
               const std::vector<double>& d_out, index rows, index cols)
      : out(gate.size()), d_gate(gate.size()), d_up(gate.size()) {
    auto in = [&](const std::vector<double>& v) {
      return matrix_view<const double>(v.data(), rows, cols);
    };
    reference::swiglu_forward<double>({out.data(), rows, cols}, in(gate), in(up));
    reference::swiglu_backward<double>({d_gate.data(), rows, cols}, {d_up.data(), rows, cols},
                                       in(d_out), in(gate), in(up));
  }
};

}  // namespace

TEST_CASE("SwiGLU equals its reference for any shape and thread count", "[unit][parity]") {
  const index rows = GENERATE(0, 1, 63, 65, 1000), cols = GENERATE(1, 15, 16, 100);
  const int threads = GENERATE(1, 2);
  CAPTURE(rows, cols, threads);
  const auto gate = random_values<float>(rows * cols, 1, 3.0),
             up = random_values<float>(rows * cols, 2),
             d_out = random_values<float>(rows * cols, 3);
  const swiglu_truth want(as<double>(gate), as<double>(up), as<double>(d_out), rows, cols);
  guarded out(rows * cols), d_gate(rows * cols), d_up(rows * cols);
  runner on(threads);
  const cmat g(gate.data(), rows, cols), u(up.data(), rows, cols), d(d_out.data(), rows, cols);
  swiglu_forward(out.matrix(rows, cols), g, u, on.exec);
  swiglu_backward(d_gate.matrix(rows, cols), d_up.matrix(rows, cols), d, g, u, on.exec);
  CHECK(relative_error(out.values(), want.out) < float32_bound(1));
  CHECK(relative_error(d_gate.values(), want.d_gate) < float32_bound(1));
  CHECK(relative_error(d_up.values(), want.d_up) < float32_bound(1));
}

TEST_CASE("SwiGLU's gradients may replace its inputs", "[unit]") {
  const auto gate = random_values<float>(70, 1), up = random_values<float>(70, 2),
             d_out = random_values<float>(70, 3);
  const swiglu_truth want(as<double>(gate), as<double>(up), as<double>(d_out), 2, 35);
  auto g = gate, u = up;
  runner on(1);
  swiglu_backward({g.data(), 2, 35}, {u.data(), 2, 35}, {d_out.data(), 2, 35}, {g.data(), 2, 35},
                  {u.data(), 2, 35}, on.exec);
  CHECK(relative_error(g, want.d_gate) < float32_bound(1));
  CHECK(relative_error(u, want.d_up) < float32_bound(1));
}

TEST_CASE("SwiGLU saturates instead of overflowing", "[unit]") {
  const std::vector<float> gate = {-1e30f, -200.0f, -90.0f, 0.0f, 90.0f, 200.0f, 1e30f};
  const std::vector<float> up(7, 1.0f);
  guarded out(7), d_gate(7), d_up(7);
  runner on(1);
  const cmat g(gate.data(), 1, 7), u(up.data(), 1, 7);
  swiglu_forward(out.matrix(1, 7), g, u, on.exec);
  swiglu_backward(d_gate.matrix(1, 7), d_up.matrix(1, 7), u, g, u, on.exec);
  for (std::size_t i = 0; i < 7; ++i) {
    CAPTURE(gate[i]);
    CHECK(out.values()[i] == (gate[i] > 0 ? gate[i] : 0.0f));
    CHECK(d_gate.values()[i] == (gate[i] > 0 ? 1.0f : gate[i] == 0 ? 0.5f : 0.0f));
    CHECK(d_up.values()[i] == out.values()[i]);
  }
}

TEST_CASE("SwiGLU's reference agrees with finite differences", "[unit]") {
  auto gate = random_values(12, 1), up = random_values(12, 2);
  const auto d_out = random_values(12, 3);
  auto loss = [&] {
    const swiglu_truth t(gate, up, d_out, 3, 4);
    double sum = 0;
    for (std::size_t i = 0; i < 12; ++i) sum += t.out[i] * d_out[i];
    return sum;
  };
  const swiglu_truth gradients(gate, up, d_out, 3, 4);
  CHECK(finite_difference_error(gate, gradients.d_gate, loss) < 1e-8);
  CHECK(finite_difference_error(up, gradients.d_up, loss) < 1e-8);
}

}  // namespace longstraw::testing
