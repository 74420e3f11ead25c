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

  /// Which part of the whole bar the next jobs fill.
  void set_range(double begin, double width) { begin_ = begin, width_ = width; }

  /// Called while a job runs. False: stop it.
  bool look(const messages::job& j);
  /// Draws the bar at that share of the whole, unless it was drawn a moment ago.
  void show(double share, const std::string& doing);
  /// A line that stays.
  void line(const std::string& text);
  /// Takes the bar away, before anything else is printed.
  void clear();

 private:
  using clock = std::chrono::steady_clock;
  bool quiet_ = false;
  bool drawn_ = false;
  std::string title_, note_;
  double begin_ = 0, width_ = 1;
  clock::time_point last_line_ = clock::now();
  clock::time_point last_bar_;
};

/// The process has one terminal, so it has one bar.
progress& progress_bar();

}  // namespace longstraw::program
