// longstraw_bench: kernels at the shapes of training steps, one JSON line each, beside what the
// machine could do at best. A case whose result is wrong is named on the error output and gives no
// line.

#include "bounds.hpp"
#include "commit.hpp"
#include "measure.hpp"

#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <sys/utsname.h>
#include <thread>

namespace longstraw::bench {
namespace {

// Both libraries' packed factors of the largest products fit.
constexpr std::size_t scratch_bytes = std::size_t{64} << 20;

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line, name = "unknown", family, model;
  while (std::getline(file, line)) {
    const auto value = [&] { return line.substr(std::min(line.size(), line.find(':') + 2)); };
    if (line.rfind("model name", 0) == 0) name = value();
    if (line.rfind("cpu family", 0) == 0) family = value();
    if (line.rfind("model\t", 0) == 0) model = value();
    if (line.empty()) break;
  }
  return name + " family " + family + " model " + model;
}

json origin() {
  return {{"commit", LONGSTRAW_COMMIT}, {"compiler", "gcc " __VERSION__}, {"cpu", cpu_model()}};
}

double rounded(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", x);
  return std::strtod(text, nullptr);
}

json round_all(json j) {
  if (j.is_number_float()) return rounded(j.get<double>());
  for (auto& x : j)
    if (x.is_structured() || x.is_number_float()) x = round_all(x);
  return j;
}

json row_of(const bench_case& c, const prepared& p, double error, const timing& t,
            const machine_bounds& b, bool cold) {
  std::string bound;
  const double least = b.least_seconds(p.cost, bound);
  json row = {{"case", c.name}, {"shape", p.shape}, {"threads", b.threads}};
  row["buffers"] = cold ? "cold" : "warm";
  row["clock"] = b.threads == 1 ? "thread" : "elapsed";
  row["median_s"] = t.median;
  row["mad_s"] = t.mad;
  row["min_s"] = t.min;
  row["warm_up"] = t.warm_up_calls;
  row["repeats"] = t.samples;
  row["calls"] = t.calls;
  if (p.cost.flops > 0) {
    row["gflop"] = p.cost.flops * 1e-9;
    row["gflop_s"] = p.cost.flops / t.median * 1e-9;
    row["share_of_peak"] = p.cost.flops / t.median / b.peak();
  }
  row["gb_s"] = (p.cost.bytes_read + p.cost.bytes_written) / t.median * 1e-9;
  row["bound"] = bound;
  row["bound_s"] = least;
  row["share"] = least / t.median;
  row["share_best"] = least / t.min;
  row["error"] = error;
  row["error_bound"] = p.error_bound;
  row.update(origin());
  return round_all(row);
}

bool wanted(const std::string& name, const std::vector<std::string>& filters) {
  return filters.empty() || std::any_of(filters.begin(), filters.end(), [&](const auto& f) {
           return name.find(f) != std::string::npos;
         });
}

int run(int argc, char** argv) {
  CLI::App app("Kernel benchmarks of LongStraw: JSON lines, checked results only.",
               "longstraw_bench");
  std::vector<std::string> filters;
  std::vector<int> threads;
  std::string out;
  bool list = false;
  measure_settings settings;
  app.add_option("filter", filters, "run only cases whose name contains one of these");
  app.add_flag("--list", list, "print the names and run nothing");
  app.add_option("--threads", threads, "thread counts (default: 1 and all of the machine)");
  app.add_option("--seconds", settings.seconds, "seconds of samples a case, about");
  app.add_flag("--cold", settings.cold, "drop buffers from the caches before each sample");
  app.add_option("--out", out, "append the lines to this file too");
  CLI11_PARSE(app, argc, argv);

  case_list cases;
  add_linear_cases(cases);
  add_attention_cases(cases);
  add_gated_delta_cases(cases);
  add_elementwise_cases(cases);
  add_head_cases(cases);
  add_parameter_cases(cases);
  if (list) {
    for (const bench_case& c : cases)
      if (wanted(c.name, filters)) std::puts(c.name.c_str());
    return 0;
  }
  if (threads.empty()) {
    threads.push_back(1);
    if (const auto all = static_cast<int>(std::thread::hardware_concurrency()); all > 1)
      threads.push_back(all);
  }
  std::ofstream file;
  if (!out.empty()) file.open(out, std::ios::app);
  const auto print = [&](const json& line) {
    std::cout << line.dump() << std::endl;
    if (file.is_open()) file << line.dump() << std::endl;
  };

  bool all_right = true;
  for (int count : threads) {
    auto budget = memory::budget::make(0);
    kernels::executor on(count, *budget->named("scratch"), scratch_bytes);
    settings.thread_clock = count == 1;
    const auto arena = budget->named("bench");
    const machine_bounds bounds = measure_bounds({on, *arena});
    json machine = {{"case", "machine"}};
    machine.update(as_json(bounds));
    machine.update(origin());
    print(round_all(machine));
    for (const bench_case& c : cases) {
      if (!wanted(c.name, filters)) continue;
      const prepared p = c.prepare({on, *arena});
      const double error = p.error();
      if (!(error <= p.error_bound)) {
        std::cerr << c.name << ": error " << error << " is above " << p.error_bound << "\n";
        all_right = false;
        continue;
      }
      print(row_of(c, p, error, measure(settings, p.run), bounds, settings.cold));
    }
  }
  return all_right ? 0 : 1;
}

}  // namespace
}  // namespace longstraw::bench

int main(int argc, char** argv) {
  try {
    return longstraw::bench::run(argc, argv);
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
