#pragma once
// The smallest layer program with a state: each token adds a fading memory of all earlier ones.
//
//   u_t = W x_t      s_t = keep s_(t-1) + (1 - keep) u_t      out_t = x_t + s_t
//
// The state is s, so a prompt of any length leaves behind one row of `width` floats.

#include <longstraw/kernels/linear.hpp>
#include <longstraw/models/layer_program.hpp>
#include <longstraw/models/parameters.hpp>

#include <algorithm>
#include <vector>

class mixing_layer : public longstraw::models::layer_program {
 public:
  using index = longstraw::index;
  static constexpr float keep = 0.9f;

  explicit mixing_layer(longstraw::models::matrix_parameter weight)
      : weight_(weight), width_(weight.w.rows) {}

  std::string_view kind() const override { return "mixing"; }
  std::span<const longstraw::models::segment> segments() const override { return segments_; }
  bool gives_state_gradient() const override { return true; }
  longstraw::models::state_spec state(const longstraw::models::rank_share&) const override {
    return {0, width_};
  }
  index activation_floats(index tokens, const longstraw::models::rank_share&) const override {
    return 2 * tokens * width_;
  }

  void forward(std::size_t, longstraw::models::layer_pass& p) const override {
    const auto [x, u] = carve(p);
    std::copy_n(p.hidden.data, x.rows * width_, x.data);  // backward needs the input
    longstraw::kernels::linear_forward(u, x, weight_.w, {}, longstraw::kernels::into::write, *p.on);
    const float* before = p.recurrent_before.data();
    for (index t = 0; t < x.rows; ++t) {
      for (index i = 0; i < width_; ++i) {
        u(t, i) = keep * before[i] + (1 - keep) * u(t, i);  // u holds s from here on
        p.hidden(t, i) += u(t, i);
      }
      before = u.row(t);
    }
    if (!p.recurrent_after.empty()) std::copy_n(before, width_, p.recurrent_after.data());
  }

  void backward(std::size_t, longstraw::models::layer_pass& p) const override {
    const auto [x, d_u] = carve(p);
    // The gradient of s flows from later tokens to earlier ones: in from the state after, none if it
    // is frozen, and out to the state before.
    std::vector<float> memory(p.d_recurrent.begin(), p.d_recurrent.end());
    memory.resize(static_cast<std::size_t>(width_));
    float* d_s = memory.data();
    for (index t = x.rows - 1; t >= 0; --t)
      for (index i = 0; i < width_; ++i) {
        d_s[i] += p.d_hidden(t, i);
        d_u(t, i) = (1 - keep) * d_s[i];
        d_s[i] *= keep;
      }
    if (!p.d_recurrent.empty()) std::copy_n(d_s, width_, p.d_recurrent.data());
    longstraw::kernels::linear_backward_weight(weight_.d(p.gradients), {}, d_u, x, *p.on);
    longstraw::kernels::linear_backward_input(p.d_hidden, d_u, weight_.w,
                                              longstraw::kernels::into::add, *p.on);
  }

 private:
  struct views {
    longstraw::mat x, u;
  };
  views carve(const longstraw::models::layer_pass& p) const {
    float* at = p.activations.data();
    return {{at, p.tokens(), width_}, {at + p.tokens() * width_, p.tokens(), width_}};
  }

  const longstraw::models::matrix_parameter weight_;
  const index width_;
  const longstraw::models::segment segments_[1] = {{"mix"}};
};
