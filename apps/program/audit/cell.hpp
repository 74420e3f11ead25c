#pragma once
// One cell of the audit: what was measured here, and what that says about a claim.
//
// A cell begins as not run, and only measurements within their bounds can make it proved: there is
// no way to set the state, and a failure stays.

#include <string>
#include <string_view>
#include <vector>

namespace longstraw::audit {

enum class verdict { not_run, proved, failed };
std::string_view to_string(verdict v);

struct measurement {
  std::string what;   ///< "logps, largest difference"
  double figure = 0;  ///< within the bound if figure <= bound; NaN never is
  double bound = 0;
  std::string where;  ///< name of the parameter, arena or response that gave the figure
  enum class unit { none, bytes } in = unit::none;
  bool within() const { return figure <= bound; }
};

/// "3.1e-06", "2.3 MiB"
std::string figure_text(const measurement& m);
std::string bound_text(const measurement& m);

class cell {
 public:
  void measure(measurement m);
  /// Something threw, or could not be compared: `sentence` says what.
  void fail(std::string sentence);
  /// Why nothing was measured. A cell that has measured or failed stays as it is.
  void leave_out(std::string reason);
  void add_seconds(double s) { seconds_ += s; }

  verdict state() const;
  const std::vector<measurement>& measurements() const { return measurements_; }
  /// The measurement that is farthest out, or nearest to its bound; null if there is none.
  const measurement* worst() const;
  /// What stands for the cell where there is room for one figure: the worst of a failed cell, else
  /// the first, which is the claim's own. Null if there is none.
  const measurement* headline() const;
  /// Why it was not run, or what failed; empty for a proved cell.
  std::string reason() const;
  double seconds() const { return seconds_; }

 private:
  std::vector<measurement> measurements_;
  std::string failure_;
  std::string left_out_ = "nothing measured it";
  double seconds_ = 0;
};

}  // namespace longstraw::audit
