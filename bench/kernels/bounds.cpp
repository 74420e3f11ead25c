#include "bounds.hpp"

#include "measure.hpp"
#include "tensor.hpp"

#include <longstraw/kernels/cpu/matmul.hpp>
#include <longstraw/kernels/cpu/simd_math.hpp>

#include <atomic>
#include <cmath>

namespace longstraw::bench {
namespace {

using namespace kernels;
namespace simd = kernels::simd;

measure_settings settings_of(place p) {
  measure_settings s;
  s.seconds = 0.15;
  s.warm_up = 0.02;
  s.thread_clock = p.on.threads() == 1;
  return s;
}

using product = void (*)(mat, left_factor, left_factor, index, into, scratch&);

// Each thread multiplies matrices of its own: the peak of all cores at once.
double flops_of(place p, product multiply, index n) {
  const index threads = p.on.threads();
  const tensor a(p, threads * n * n, 1), b(p, threads * n * n, 2), c(p, threads * n * n);
  const auto part = [&](const tensor& t, index i) { return mat(t.data() + i * n * n, n, n); };
  const timing t = measure(settings_of(p), [&] {
    p.on.parallel_for(threads, [&](index i, scratch& local) {
      multiply(part(c, i), as_left(part(a, i)), as_left(part(b, i)), n, into::write, local);
    });
  });
  return 2.0 * static_cast<double>(threads * n * n * n) / t.min;
}

// Eight running vectors hide the latency of the addition.
float read_all(const float* a, index count) {
  simd::vec sums[8] = {};
  for (index i = 0; i + 8 * simd::lanes <= count; i += 8 * simd::lanes)
    for (index u = 0; u < 8; ++u) sums[u] += simd::load(a + i + u * simd::lanes);
  for (index u = 1; u < 8; ++u) sums[0] += sums[u];
  return sums[0][0];
}
void copy(float* to, const float* a, index count) {
  for (index i = 0; i + simd::lanes <= count; i += simd::lanes)
    simd::store(to + i, simd::load(a + i));
}
void triad(float* to, const float* a, const float* b, index count) {
  for (index i = 0; i + simd::lanes <= count; i += simd::lanes)
    simd::store(to + i, simd::load(a + i) + 3.0f * simd::load(b + i));
}

void update(float* to, index count) {
  for (index i = 0; i + simd::lanes <= count; i += simd::lanes)
    simd::store(to + i, 0.999f * simd::load(to + i));
}

template <index Lines>
void update_quarter(float* to, index count) {
  constexpr index stretch = Lines * 16;
  for (index i = 0; i + 4 * stretch <= count; i += 4 * stretch) update(to + i, stretch);
}

bandwidth_point bandwidth_at(place p, const tensor& memory, double bytes) {
  const index threads = p.on.threads();
  const index floats = static_cast<index>(bytes / 4) / threads / 768 * 768;  // a thread
  const auto seconds = [&](auto&& body) {
    const timing t = measure(settings_of(p), [&] {
      p.on.parallel_for(threads, [&](index i, scratch&) { body(memory.data() + i * floats); });
    });
    return t.min;
  };
  const double whole = static_cast<double>(floats * threads) * 4;
  std::vector<float> kept(static_cast<std::size_t>(threads) * 16);
  bandwidth_point point{whole};
  point.read = whole / seconds([&](float* m) {
                 kept[static_cast<std::size_t>((m - memory.data()) / floats * 16)] =
                     read_all(m, floats);
               });
  point.copy = whole / seconds([&](float* m) { copy(m, m + floats / 2, floats / 2); });
  point.triad =
      whole / seconds([&](float* m) { triad(m, m + floats / 3, m + floats / 3 * 2, floats / 3); });
  point.update = 2 * whole / seconds([&](float* m) { update(m, floats); });
  point.fourth_line = whole / 2 / seconds([&](float* m) { update_quarter<1>(m, floats); });
  point.two_of_eight = whole / 2 / seconds([&](float* m) { update_quarter<2>(m, floats); });
  return point;
}

// Values a second that `function`, of a vector of floats in memory, takes in and gives out: each
// thread goes over numbers of its own, between 1 and 2, and writes the results apart from them.
template <class F>
double rate_of(place p, F function) {
  const index threads = p.on.threads(), count = 2048;
  const int repeats = 64;
  const tensor memory(p, threads * 2 * count);
  for (index i = 0; i < memory.count(); ++i)
    memory.data()[i] = 1.0f + static_cast<float>(i % 97) / 97.0f;
  const timing t = measure(settings_of(p), [&] {
    p.on.parallel_for(threads, [&](index i, scratch&) {
      const float* from = memory.data() + i * 2 * count;
      float* to = memory.data() + i * 2 * count + count;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        for (index j = 0; j < count; j += simd::lanes) simd::store(to + j, function(from + j));
        std::atomic_signal_fence(std::memory_order_seq_cst);  // or one pass would do for all
      }
    });
  });
  return static_cast<double>(threads * count * repeats) / t.min;
}

// Of half a vector of angles: its sines and cosines fill one.
constexpr auto sin_cos_of_half = [](const float* x) {
  const auto both = simd::sin_cos(simd::widen(x) * 1000.0);
  return std::bit_cast<simd::vec>(both.sin + both.cos);
};
constexpr auto widened_halves = [](const float* x) {
  return std::bit_cast<simd::vec>(simd::widen(x) + simd::widen(x + simd::wide_lanes));
};

double interpolated(const std::vector<bandwidth_point>& points, double bytes,
                    double bandwidth_point::*of) {
  if (bytes <= points.front().bytes) return points.front().*of;
  for (std::size_t i = 1; i < points.size(); ++i)
    if (bytes <= points[i].bytes) {
      const bandwidth_point &a = points[i - 1], &b = points[i];
      const double share = std::log(bytes / a.bytes) / std::log(b.bytes / a.bytes);
      return a.*of + share * (b.*of - a.*of);
    }
  return points.back().*of;
}

}  // namespace

machine_bounds measure_bounds(place p) {
  machine_bounds b;
  b.threads = p.on.threads();
  for (index n : {256, 384, 512, 768, 1024, 1536, 2048}) {
    const double library = flops_of(p, matmul_library, n), own = flops_of(p, matmul, n);
    if (library > b.peak_library) b.peak_library = library, b.size_library = n;
    if (own > b.peak_own) b.peak_own = own, b.size_own = n;
  }
  const tensor memory(p, index{64} << 20, 4);
  for (double kib = 32; kib <= 262144; kib *= 2)
    b.bandwidth.push_back(bandwidth_at(p, memory, kib * 1024));
  b.exps = rate_of(p, [](const float* x) { return simd::exp(-simd::load(x)); });
  b.logs = rate_of(p, [](const float* x) { return simd::log1p_unit(simd::load(x)); });
  b.sin_cos = rate_of(p, sin_cos_of_half) / 2;
  b.widened = rate_of(p, widened_halves);
  b.quotients = rate_of(p, [](const float* x) { return 1.0f / simd::load(x); });
  b.roots = rate_of(p, [](const float* x) { return simd::sqrt(simd::load(x)); });
  return b;
}

double machine_bounds::least_seconds(const work& w, std::string& bound) const {
  const double bytes = w.bytes_read + w.bytes_written;
  // Reading alone is the faster the more of the traffic it is; copy and triad are the mixed cases.
  const auto at = [&](double touched, double bandwidth_point::*of) {
    return interpolated(bandwidth, touched, of);
  };
  double traffic = 0;
  if (w.in_place) {
    // An update writes all it reads; what is read beyond that comes in by itself.
    const double update =
        w.quarter_lines == 0
            ? bytes / at(w.bytes_read, &bandwidth_point::update)
            : 2 * w.bytes_written /
                  at(4 * w.bytes_written, w.quarter_lines == 1 ? &bandwidth_point::fourth_line
                                                               : &bandwidth_point::two_of_eight);
    traffic = std::max(update, w.bytes_read / at(w.bytes_read, &bandwidth_point::read));
  } else if (w.bytes_written > 0.05 * bytes) {
    traffic =
        bytes / std::max(at(bytes, &bandwidth_point::copy), at(bytes, &bandwidth_point::triad));
  } else {
    traffic = bytes / at(bytes, &bandwidth_point::read);
  }
  // One kind of unit does products and the polynomials of functions; sums without a product may go
  // elsewhere and are not counted. What else a function waits for, and the divider's work, may
  // overlap with that. Multiplications as in simd::exp, log1p_unit and sin_cos (doubles count twice).
  constexpr double of_exp = 9, of_log = 8, of_sin_cos = 32;
  const double multiplications =
      w.products + of_exp * w.exps + of_log * w.logs + of_sin_cos * w.sin_cos;
  const double compute = w.flops / peak(), products = 2 * multiplications / peak(),
               functions = w.exps / exps + w.logs / logs + w.sin_cos / sin_cos,
               divider = w.quotients / quotients + w.roots / roots, widening = w.widened / widened;
  bound = "bandwidth";
  double least = traffic;
  const auto at_least = [&](double seconds, const char* name) {
    if (seconds > least) least = seconds, bound = name;
  };
  at_least(compute + products, compute >= products ? "peak" : "products");
  at_least(functions, w.logs + w.sin_cos > 0 ? "functions" : "exp");
  at_least(divider, "divider");
  at_least(widening, "widening");
  return least;
}

json as_json(const machine_bounds& b) {
  json points = json::array();
  for (const bandwidth_point& p : b.bandwidth)
    points.push_back({{"bytes", p.bytes},
                      {"read_gb_s", p.read * 1e-9},
                      {"copy_gb_s", p.copy * 1e-9},
                      {"triad_gb_s", p.triad * 1e-9},
                      {"update_gb_s", p.update * 1e-9},
                      {"fourth_line_gb_s", p.fourth_line * 1e-9},
                      {"two_of_eight_gb_s", p.two_of_eight * 1e-9}});
  return {{"threads", b.threads},
          {"peak_gflop_s", b.peak() * 1e-9},
          {"onednn_gflop_s", b.peak_library * 1e-9},
          {"onednn_size", b.size_library},
          {"own_gflop_s", b.peak_own * 1e-9},
          {"own_size", b.size_own},
          {"exp_g_s", b.exps * 1e-9},
          {"log_g_s", b.logs * 1e-9},
          {"sin_cos_g_s", b.sin_cos * 1e-9},
          {"widened_g_s", b.widened * 1e-9},
          {"quotient_g_s", b.quotients * 1e-9},
          {"root_g_s", b.roots * 1e-9},
          {"bandwidth", points}};
}

}  // namespace longstraw::bench
