#pragma once
// Plain AdamW, in float or double; in double it is the truth that the float kernel is measured
// against.

#include <longstraw/kernels/adamw.hpp>
#include <longstraw/kernels/reference/views.hpp>

#include <cmath>
#include <span>

namespace longstraw::kernels::reference {

///  weights, m, v [n] updated in place
template <class T>
void adamw_update(std::span<T> weights, std::span<std::type_identity_t<T>> m,
                  std::span<std::type_identity_t<T>> v, in_span<T> gradients, double gradient_scale,
                  const adamw_settings& s, index step) {
  const double correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(step));
  const double correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(step));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const T g = gradients[i] * T(gradient_scale);
    weights[i] *= T(1.0 - s.learning_rate * s.weight_decay);
    m[i] += T(1.0 - s.beta1) * (g - m[i]);
    v[i] = T(s.beta2) * v[i] + T(1.0 - s.beta2) * g * g;
    const T denominator = std::sqrt(v[i]) / T(std::sqrt(correction2)) + T(s.eps);
    weights[i] -= T(s.learning_rate / correction1) * m[i] / denominator;
  }
}

template <class T>
double sum_of_squares(std::span<const T> values) {
  double sum = 0;
  for (const T x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

}  // namespace longstraw::kernels::reference
