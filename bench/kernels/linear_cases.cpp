// Linear layers at the shapes of the models, through the project's own product and through oneDNN:
// the rows side by side show which one a processor should use.

#include "tensor.hpp"

#include <longstraw/kernels/cpu/matmul.hpp>
#include <longstraw/kernels/linear.hpp>

namespace longstraw::bench {
namespace {

using namespace kernels;

struct layer {
  const char* name;
  index out, in;
};
constexpr layer layers[] = {{"s-up", 768, 256},
                            {"s-down", 256, 768},
                            {"m-up", 2048, 768},
                            {"m-down", 768, 2048},
                            {"4096", 4096, 4096}};

enum class pass { forward, backward_input, backward_weight };
enum class library { own, onednn };

prepared prepare(place p, layer l, index rows, pass which, library by) {
  const tensor x(p, rows * l.in, 1), weight(p, l.out * l.in, 2, 0.05f), y(p, rows * l.out, 3),
      result(p, which == pass::forward          ? rows * l.out
                : which == pass::backward_input ? rows * l.in
                                                : l.out * l.in);
  const cmat xs = x.matrix(rows), ys = y.matrix(rows), w = weight.matrix(l.out);
  const mat to = which == pass::backward_weight ? result.matrix(l.out) : result.matrix(rows);
  executor& on = p.on;

  prepared c;
  c.shape = {{"tokens", rows}, {"in", l.in}, {"out", l.out}};
  c.cost.flops = 2.0 * static_cast<double>(rows) * static_cast<double>(l.in * l.out);
  const index touched_weight = l.in * l.out;
  switch (which) {
    case pass::forward:
      c.cost.bytes_read = bytes_of({rows * l.in, touched_weight});
      c.cost.bytes_written = bytes_of({rows * l.out});
      break;
    case pass::backward_input:
      c.cost.bytes_read = bytes_of({rows * l.out, touched_weight});
      c.cost.bytes_written = bytes_of({rows * l.in});
      break;
    case pass::backward_weight:
      c.cost.bytes_read = bytes_of({rows * l.in, rows * l.out, touched_weight});
      c.cost.bytes_written = bytes_of({touched_weight});
      break;
  }
  if (by == library::own)
    c.run = [=, &on, keep = std::vector{x, weight, y, result}] {
      if (which == pass::forward) linear_forward(to, xs, w, {}, into::write, on);
      if (which == pass::backward_input) linear_backward_input(to, ys, w, into::write, on);
      if (which == pass::backward_weight) linear_backward_weight(to, {}, ys, xs, on);
    };
  else
    c.run = [=, &on, keep = std::vector{x, weight, y, result}] {
      // Rows are cut once a thread: the library then sees the largest products there are.
      const index cut = on.threads(), part = blocks_of(to.rows, cut);
      on.parallel_for(cut, [&](index i, scratch& local) {
        const index a = std::min(to.rows, i * part), b = std::min(to.rows, a + part);
        const mat rows_of = to.row_range(a, b);
        if (which == pass::forward)
          matmul_library(rows_of, as_left(xs.row_range(a, b)), as_left_transposed(w), xs.cols,
                         into::write, local);
        if (which == pass::backward_input)
          matmul_library(rows_of, as_left(ys.row_range(a, b)), as_left(w), ys.cols, into::write,
                         local);
        if (which == pass::backward_weight)
          matmul_library(rows_of, as_left_transposed(ys.col_range(a, b)), as_left(xs), xs.rows,
                         into::add, local);
      });
    };
  const index depth = which == pass::forward ? l.in : which == pass::backward_input ? l.out : rows;
  c.error = [=, run = c.run] {
    result.zero();
    run();
    difference d;
    for (index r : spread_over(to.rows, 24))
      for (index k : spread_over(to.cols, 24)) {
        double sum = 0;
        for (index i = 0; i < depth; ++i)
          sum += which == pass::forward          ? double(xs(r, i)) * w(k, i)
                 : which == pass::backward_input ? double(ys(r, i)) * w(i, k)
                                                 : double(ys(i, r)) * xs(i, k);
        d.add(to(r, k), sum);
      }
    return d.value();
  };
  c.error_bound = float32_bound(depth);
  return c;
}

}  // namespace

void add_linear_cases(case_list& to) {
  const std::pair<pass, const char*> passes[] = {{pass::forward, "forward"},
                                                 {pass::backward_input, "backward_input"},
                                                 {pass::backward_weight, "backward_weight"}};
  for (const layer& l : layers)
    for (const auto& [which, name] : passes)
      for (index rows : {1, 64, 1024})
        for (library by : {library::own, library::onednn}) {
          const auto by_name = by == library::own ? "linear_" : "onednn_linear_";
          to.push_back({by_name + std::string(name) + "/" + l.name + "/" + std::to_string(rows),
                        [=, w = which](place p) { return prepare(p, l, rows, w, by); }});
        }
}

}  // namespace longstraw::bench
