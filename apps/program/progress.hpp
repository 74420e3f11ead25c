#pragma once
// What a person sees on stderr while a job runs: one bar that is redrawn on a terminal, else a
// plain line every few seconds. Also the place where a wish to stop reaches the running job.

#include <longstraw/messages/job.hpp>

#include <chrono>
#include <string>

namespace longstraw::program {

class progress {
 public:
  void set_quiet(bool quiet) { quiet_ = quiet; }
  /// In front of the bar: "step 3/40".
  void set_title(std::string title) { title_ = std::move(title); }
  /// Behind the bar: figures of the last step.
  void set_note(std::string note) { note_ = std::move(note); }

  /// Called while a job runs. False: stop it.
  bool look(const messages::job& j);
  /// A line that stays.
  void line(const std::string& text);
  /// Takes the bar away, before anything else is printed.
  void clear();

 private:
  using clock = std::chrono::steady_clock;
  void draw(const messages::job& j, double share);

  bool quiet_ = false;
  bool drawn_ = false;
  std::string title_, note_;
  clock::time_point last_line_ = clock::now();
};

/// The process has one terminal, so it has one bar.
progress& progress_bar();

}  // namespace longstraw::program
