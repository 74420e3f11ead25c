#pragma once
// What each row of the matrix measures. Every function fills cells of one column; whatever throws
// makes its cell failed, except a wish to stop, which ends the audit.

#include "matrix.hpp"
#include "run.hpp"

#include <longstraw/models/reference/step.hpp>

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace longstraw::audit {

struct column {
  group* of;
  std::size_t number;
  const subject* model;
  setup how;

  cell& at(claim c) const { return of->at(c, number); }
};

/// The sentence of what `work` threw; none if it did not. error of errc::cancelled passes through.
std::optional<std::string> failure_of(const std::function<void()>& work);
/// Runs `work` for that cell. error of errc::cancelled passes through.
void attempt(cell& c, const std::function<void()>& work);

/// A result that several cells look at, or the sentence that each of them fails with.
class shared_step {
 public:
  explicit shared_step(const std::function<step_record()>& work);
  const step_record& get() const;
  double seconds() const { return seconds_; }

 private:
  std::optional<step_record> record_;
  std::string failure_;
  double seconds_ = 0;
};

/// A step in double.
struct truth {
  std::vector<models::reference::token_scores> scores;  ///< whole sequences
  std::vector<double> gradients, weights;
  double grad_norm = 0;
  double loss = 0, kl = 0;  ///< kl: mean over loss tokens
  index clipped = 0, loss_tokens = 0;
};
truth truth_of(const subject& s, const models::group& g, const actors::step_settings& settings);

void measure_fidelity(const column& c, const shared_step& step, const truth& t);
void measure_gradient(const column& c, const shared_step& step, const truth& t);
void measure_update(const column& c, const shared_step& step, const truth& t);
/// `one`: the same step on one rank.
void measure_ranks(const column& c, const shared_step& step, const shared_step& one);

/// Elements of the gradient and what central differences of the loss give for them.
struct difference_samples {
  struct sample {
    std::string kind;  ///< name of the parameter without its layer
    std::size_t at;    ///< in the layout
    double difference;
  };
  models::group data;
  std::vector<sample> samples;
  std::vector<double> gradients;  ///< the reference's
};
/// On a short group. With the frozen gradient the prompt's state stays that of the unchanged
/// weights.
difference_samples sample_differences(const subject& s, messages::gradient_mode mode);
void measure_differences(const column& c, const difference_samples& d);

/// `memory_bytes`: the budget that the longer prompt must fit in.
void measure_capacity(const column& c, std::size_t memory_bytes);
void measure_group_memory(const column& c);
/// `between`, if given, is called with the folder of the run after it was saved.
void measure_restart(const column& c, const models::group& g,
                     const std::function<void(const std::filesystem::path&)>& between = {});

}  // namespace longstraw::audit
