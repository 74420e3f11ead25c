// Kernels over all parameters: the optimizer and the gradient norm, at sizes that caches hold and
// at one that they do not.

#include "tensor.hpp"

#include <longstraw/kernels/adamw.hpp>
#include <longstraw/kernels/reference/adamw.hpp>

namespace longstraw::bench {
namespace {

using namespace kernels;
namespace ref = kernels::reference;

prepared adamw(place p, index count) {
  const tensor w(p, count, 1), m(p, count, 2, 0.01f), v(p, count, 3, 0.01f), g(p, count, 4, 0.01f);
  for (float& x : v.span()) x *= x;
  executor& on = p.on;
  adamw_settings s;
  s.weight_decay = 0.01;
  prepared c;
  c.shape = {{"parameters", count}};
  c.cost.bytes_read = bytes_of({4 * count});
  c.cost.bytes_written = bytes_of({3 * count});
  c.cost.in_place = true;
  c.cost.products = 7.0 * static_cast<double>(count);
  c.cost.quotients = 2.0 * static_cast<double>(count);
  c.cost.roots = static_cast<double>(count);
  c.run = [=, &on] { adamw_update(w.span(), m.span(), v.span(), g.span(), 0.5, s, 3, on); };
  c.error = [=, run = c.run] {
    auto dw = w.in_double(), dm = m.in_double(), dv = v.in_double();
    const auto dg = g.in_double();
    ref::adamw_update<double>(dw, dm, dv, dg, 0.5, s, 3);
    run();
    difference a, b, d;
    a.add(w, dw), b.add(m, dm), d.add(v, dv);
    return worst({a.value(), b.value(), d.value()});
  };
  c.error_bound = float32_bound(4);
  return c;
}

prepared squares(place p, index count) {
  const tensor g(p, count, 1);
  executor& on = p.on;
  const auto sum = std::make_shared<double>();
  prepared c;
  c.shape = {{"parameters", count}};
  c.cost.bytes_read = bytes_of({count});
  c.cost.widened = static_cast<double>(count);
  c.run = [=, &on] { *sum = sum_of_squares(g.span(), on); };
  c.error = [=, run = c.run] {
    run();
    difference d;
    d.add(*sum, ref::sum_of_squares<float>(g.span()));
    return d.value();
  };
  // The plain sum of so many positive terms may lose half a unit of its last place a term.
  c.error_bound = static_cast<double>(count) * 0x1p-53;
  return c;
}

}  // namespace

void add_parameter_cases(case_list& to) {
  for (index count : {index{1} << 16, index{1} << 20, index{1} << 24}) {
    to.push_back({"adamw/" + std::to_string(count), [=](place p) { return adamw(p, count); }});
    to.push_back(
        {"sum_of_squares/" + std::to_string(count), [=](place p) { return squares(p, count); }});
  }
}

}  // namespace longstraw::bench
