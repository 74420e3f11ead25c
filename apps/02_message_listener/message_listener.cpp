// Listens to one step: every message between the actors, as the runtime's timeline sees it.

#include <longstraw/actors/runtime.hpp>
#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/data.hpp>

#include <cstdio>
#include <map>
#include <random>

using namespace longstraw;

namespace {

/// Prints messages as they come and counts them. Called on the tracer's thread only.
class listener {
 public:
  void hear(const messages::timeline_record& r, const std::vector<std::string>& tracks) {
    if (r.what != messages::timeline_record::kind::message) return;
    if (zero_ns_ == 0) zero_ns_ = r.sent_ns;
    ++counts_[r.name];
    if (++heard_ <= shown)
      std::printf("%8.3f ms  %-16s -> %-16s %s\n", static_cast<double>(r.begin_ns - zero_ns_) / 1e6,
                  tracks[r.from].c_str(), tracks[r.track].c_str(), r.name);
  }
  void report() const {
    std::printf("... %d messages in all\n", heard_);
    for (const auto& [name, count] : counts_) std::printf("%6d  %s\n", count, name.c_str());
  }

 private:
  static constexpr int shown = 24;
  std::map<std::string, int> counts_;
  std::int64_t zero_ns_ = 0;
  int heard_ = 0;
};

}  // namespace

int main() try {
  const auto config = models::parse_config(models::preset_config("tiny"), "tiny");
  auto budget = memory::budget::make(0);
  auto parameters = std::make_shared<models::parameter_store>(
      models::layout_of(config), models::parameter_use::train, *budget);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (float& w : parameters->weights()) w = normal(random);

  models::data_rules rules;
  rules.vocabulary = config.vocabulary;
  const auto group = models::parse_group(
      R"({"prompt": "Count to three: ", "responses": ["1 2 3", "3 2 1"], "rewards": [1, 0]})",
      "group", rules);

  listener heard;
  actors::runtime_options options;
  options.on_record = [&heard](const auto& record, const auto& tracks) {
    heard.hear(record, tracks);
  };
  actors::runtime runtime(options, std::make_shared<models::language_model>(config, parameters),
                          budget);
  const auto outcome = runtime.step(group, {});
  runtime.close_timeline();  // all records have been heard now
  heard.report();
  std::printf("loss %.6f  grad norm %.6f\n", outcome.loss, outcome.grad_norm);
} catch (const error& e) {
  std::fprintf(stderr, "message_listener: %s\n", e.what());
  return 1;
}
