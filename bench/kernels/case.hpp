#pragma once
// One kernel at one shape: what it computes, how it is checked, and what bounds its speed. A case
// is a name and a function that prepares it; buffers exist only while it runs.

#include <longstraw/kernels/executor.hpp>

#include <nlohmann/json.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace longstraw::bench {

using json = nlohmann::ordered_json;

/// The work of one call, counted from the shapes: what no implementation can avoid.
struct work {
  double flops = 0;          ///< of matrix products
  double bytes_read = 0;     ///< each input once
  double bytes_written = 0;  ///< each result once
  double exps = 0;           ///< exponentials
  bool in_place = false;     ///< results are updated: their lines are in the caches when written
  index quarter_lines = 0;   ///< of an update of every fourth stretch of memory: lines of a stretch
  // Of formulas that are evaluated value by value, what the way of writing them with the fewest
  // operations has.
  double products = 0;  ///< multiplications; an addition each goes along with them
  double logs = 0;      ///< logarithms
  double sin_cos = 0;   ///< pairs of a sine and a cosine in double
  double widened = 0;   ///< floats made doubles
  double quotients = 0;
  double roots = 0;
};

/// Where a case lives while it runs: an executor and the arena of its buffers.
struct place {
  kernels::executor& on;
  memory::arena& arena;
};

struct prepared {
  json shape;
  work cost;
  std::function<void()> run;
  /// Runs the kernel once on fresh results and compares; returns its largest relative error.
  std::function<double()> error;
  double error_bound = 0;
};

struct bench_case {
  std::string name;
  std::function<prepared(place)> prepare;
};

using case_list = std::vector<bench_case>;
void add_linear_cases(case_list& to);
void add_attention_cases(case_list& to);
void add_gated_delta_cases(case_list& to);
void add_elementwise_cases(case_list& to);
void add_head_cases(case_list& to);
void add_parameter_cases(case_list& to);

}  // namespace longstraw::bench
