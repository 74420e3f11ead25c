// longstraw score: log-probabilities of given responses, each prompt captured once.

#include "commands.hpp"
#include "machine.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "tensors.hpp"
#include "text_output.hpp"

#include <nlohmann/json.hpp>

namespace longstraw::program {
namespace {

namespace fs = std::filesystem;

struct score_options {
  fs::path model, data, out;
  std::optional<index> group;
  double temperature = 1.0;
  machine_options machine;
};

class scorer {
 public:
  explicit scorer(const score_options& o)
      : o_(o),
        memory_(o.machine.memory),
        loaded_(o.model, models::parameter_use::forward, o.machine, *memory_.budget),
        groups_(o.data, rules(loaded_.files)),
        trace_(o.machine.trace) {
    actors::runtime_options options = o.machine.runtime();
    options.trace_file = trace_.partial();
    runtime_.emplace(std::move(options), loaded_.model, memory_.budget);
  }

  int run() {
    check_groups(groups_, begin(), end());
    if (o_.out.extension() == ".safetensors")
      write_tensors();
    else
      write_lines();
    runtime_->close_timeline();
    trace_.publish();
    return 0;
  }

 private:
  static models::data_rules rules(const models::checkpoint& files) {
    models::data_rules r = rules_of(files);
    r.needs_rewards = false;
    return r;
  }

  index begin() const { return o_.group.value_or(0); }
  index end() const { return o_.group ? *o_.group + 1 : groups_.size(); }

  actors::score_outcome score(const models::group& g, index number) {
    progress_bar().set_title(fmt::format("group {}/{}", number + 1, groups_.size()));
    auto outcome = runtime_->score(g, o_.temperature);
    progress_bar().clear();
    return outcome;
  }

  void write_lines() {
    text_output out(o_.out);
    for (index n = begin(); n < end(); ++n) {
      const models::group g = groups_.read(n);
      const auto outcome = score(g, n);
      nlohmann::ordered_json line = {{"group", n}, {"name", g.name}};
      for (const auto& r : outcome.responses) {
        line["logprobs"].push_back(r.logps);
        line["entropies"].push_back(r.entropies);
      }
      out.write(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
    }
    out.finish();
  }

  /// One group: logps, entropies. More: group.N.logps, group.N.entropies.
  void write_tensors() {
    check_output_file(o_.out, "--out");
    std::vector<padded_rows> kept;
    kept.reserve(static_cast<std::size_t>(2 * (end() - begin())));  // sources refer to its elements
    std::vector<models::tensor_source> tensors;
    for (index n = begin(); n < end(); ++n) {
      const auto outcome = score(groups_.read(n), n);
      const std::string prefix = end() - begin() == 1 ? "" : fmt::format("group.{}.", n);
      kept.emplace_back(outcome.responses, &messages::response_result::logps);
      tensors.push_back(kept.back().source(prefix + "logps"));
      kept.emplace_back(outcome.responses, &messages::response_result::entropies);
      tensors.push_back(kept.back().source(prefix + "entropies"));
    }
    const fs::path whole = fs::absolute(o_.out);
    fs::create_directories(whole.parent_path());
    models::write_safetensors(whole, tensors);
  }

  const score_options& o_;
  const process_memory memory_;
  const loaded_model loaded_;
  const models::group_file groups_;
  trace_file trace_;
  std::optional<actors::runtime> runtime_;
};

}  // namespace

void add_score(command_line& line) {
  const auto o = std::make_shared<score_options>();
  options opts =
      line.command("score", "Log-probabilities and entropies of the responses in a file.",
                   [o] { return scorer(*o).run(); });
  opts.section("Files");
  opts.path("--model", o->model, "checkpoint folder", need::required);
  opts.path("--data", o->data,
            "JSON lines of prompts and responses (rewards are not needed), or a batch.safetensors",
            need::required);
  opts.path("--out", o->out,
            "JSON lines, or tensors if the name ends in .safetensors; without it, lines to stdout");
  opts.section("Scoring");
  opts.whole("--group", o->group, 0, std::numeric_limits<index>::max() - 1, "all",
             "only this group of --data, from 0");
  opts.number("--temperature", o->temperature, positive, "divides the logits");
  o->machine.declare(opts);
}

}  // namespace longstraw::program
