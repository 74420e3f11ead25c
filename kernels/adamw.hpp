#pragma once
// AdamW (Loshchilov and Hutter 2019, in the arithmetic of torch.optim.AdamW) and the gradient norm.
//
//   w <- w (1 - lr wd)       m <- b1 m + (1 - b1) g       v <- b2 v + (1 - b2) g^2
//   w <- w - lr / (1 - b1^t) m / (sqrt(v) / sqrt(1 - b2^t) + eps)

#include <longstraw/kernels/executor.hpp>

namespace longstraw::kernels {

struct adamw_settings {
  double learning_rate = 1e-6;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

///  weights, m, v [n] updated in place with gradients * gradient_scale;  step counts from 1
/// Empty m and v, at step 1 only: both are zero before, and what they become is not kept; the weights get the same bits.
void adamw_update(std::span<float> weights, std::span<float> m, std::span<float> v,
                  std::span<const float> gradients, double gradient_scale, const adamw_settings& s,
                  index step, executor& on);

/// Sum of squares in double, by blocks of fixed size added in order. NaN or infinity if any value is not finite or the
/// sum overflows.
double sum_of_squares(std::span<const float> values, executor& on);

}  // namespace longstraw::kernels
