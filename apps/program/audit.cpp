// longstraw audit: measures each claim of the project on this machine and prints the matrix.

#include "audit/audit.hpp"

#include "audit/outputs.hpp"
#include "commands.hpp"
#include "output.hpp"
#include "progress.hpp"
#include "stop.hpp"
#include "text_output.hpp"
#include "versions.hpp"

#include <longstraw/actors/runtime.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/replace.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <fstream>
#include <sys/utsname.h>
#include <thread>

namespace longstraw::program {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 3> result_names{"audit.json", "audit.html", "audit.txt"};

struct audit_options {
  std::vector<std::string> architectures = audit::architecture_names();
  std::vector<std::string> gradients{"frozen", "full"};
  std::vector<fs::path> models;
  fs::path golden, out;
  audit::settings how;
};

/// Models and golden cases that are audited, each with the groups that it fills.
struct work {
  std::function<void(audit::group&)> measure;
  std::vector<std::size_t> groups;
};

std::string utc_now() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

std::string machine_text() {
  std::string processor = "unknown processor";
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      processor = line.substr(line.find(": ") + 2);
      break;
    }
  utsname system{};
  ::uname(&system);
  return fmt::format("{}, {} cores, {} {}", processor, std::thread::hardware_concurrency(),
                     system.sysname, system.release);
}

std::vector<std::pair<std::string, std::string>> settings_text(const audit_options& o) {
  std::vector<std::string> subjects = o.architectures;
  if (!o.models.empty()) subjects.clear();
  for (const fs::path& m : o.models) subjects.push_back(m.string());
  return {
      {"audited", fmt::format("{}", fmt::join(subjects, ", "))},
      {"golden", o.golden.empty() ? "not given" : o.golden.string()},
      {"gradient", fmt::format("{}", fmt::join(o.gradients, " "))},
      {"ranks", fmt::format("{}", fmt::join(o.how.ranks, " "))},
      {"threads of a rank", o.how.threads ? fmt::format("{}", *o.how.threads) : "cores / ranks"},
      {"memory", fmt::format("{}", o.how.memory)}};
}

/// An older audit is replaced as a whole, and nothing else is.
void check_replaced(const fs::path& out) {
  if (out.empty()) return;
  check_output_folder(out, "audit.json");
  std::error_code absent;
  for (const auto& entry : fs::directory_iterator(out, absent)) {
    const std::string name = entry.path().filename().string();
    if (std::find(result_names.begin(), result_names.end(), name) == result_names.end())
      fail(errc::bad_input, "--out {} holds {}, which no audit wrote there, and is not replaced",
           out.string(), name);
  }
}

void write_results(const fs::path& out, const audit::matrix& m, const audit::circumstances& about,
                   const std::string& text) {
  const std::string json = audit::as_json(m, about).dump(
                               2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                           "\n";
  models::replace_folder(out, [&](const fs::path& fresh) {
    const std::array<std::string, 3> texts{json, audit::as_html(m, about), text};
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const fs::path file = fresh / result_names[i];
      models::write_all(models::open_for_writing(file).get(), file, texts[i]);
    }
  });
}

/// Everything that is audited, in order, with its groups in the matrix: not run so far.
std::vector<work> plan(audit::matrix& m, const audit_options& o, const audit::settings& how) {
  std::vector<work> all;
  const auto add = [&](std::vector<audit::group> groups,
                       std::function<void(audit::group&)> measure) {
    work w{std::move(measure), {}};
    for (audit::group& g : groups) {
      w.groups.push_back(m.groups.size());
      m.groups.push_back(std::move(g));
    }
    all.push_back(std::move(w));
  };
  const auto add_subject = [&](audit::subject s) {
    auto groups = audit::groups_of(s, how);
    add(std::move(groups),
        [s = std::move(s), &how](audit::group& g) { audit::audit_subject(g, s, how); });
  };
  for (const fs::path& model : o.models) add_subject(audit::checkpoint_subject(model));
  if (o.models.empty())
    for (const std::string& name : o.architectures)
      for (audit::subject& s : audit::built_in_subjects(name)) add_subject(std::move(s));
  if (!o.golden.empty())
    for (const audit::golden_case_folder& c : audit::golden_cases(o.golden))
      add(audit::groups_of(c, how), [c, &how](audit::group& g) { audit::audit_golden(g, c, how); });
  return all;
}

int run_audit(const audit_options& o) {
  const auto begin = std::chrono::steady_clock::now();
  check_replaced(o.out);
  audit::settings how = o.how;
  how.gradients.clear();
  for (const std::string& g : o.gradients)
    how.gradients.push_back(g == "full" ? messages::gradient_mode::full
                                        : messages::gradient_mode::frozen);
  std::size_t columns = 0, done = 0;
  const auto share = [&] { return static_cast<double>(done) / static_cast<double>(columns); };
  progress_bar().set_title("audit");
  how.tell = [&](const std::string& what) { progress_bar().show(share(), what); };
  how.column_done = [&] { ++done; };
  how.go_on = [] { return stop_signal() == 0; };

  audit::matrix m;
  const std::vector<work> all = plan(m, o, how);
  for (const audit::group& g : m.groups) columns += g.ranks.size();
  for (const work& w : all)
    for (const std::size_t g : w.groups) w.measure(m.groups[g]);
  progress_bar().clear();

  audit::circumstances about;
  about.date = utc_now();
  about.machine = machine_text();
  about.versions = versions();
  about.settings = settings_text(o);
  about.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::string text = audit::as_text(m, about);
  text_output({}).write(text);
  if (!o.out.empty()) write_results(o.out, m, about, text);
  const audit::tally t = m.count();
  if (t.failed > 0)
    fail(errc::internal, "{} of the audit's {} cells failed", t.failed,
         t.proved + t.failed + t.not_run);
  return 0;
}

}  // namespace

void add_audit(command_line& line) {
  const auto o = std::make_shared<audit_options>();
  options opts = line.command(
      "audit",
      "Measure each claim of the project on this machine: a matrix of proved, failed and not run.",
      [o] { return run_audit(*o); });
  opts.section("What is audited");
  opts.choices("--architecture", o->architectures, audit::architecture_names(),
               "small random models of these architectures, built in");
  opts.paths("--model", o->models,
             "audit these checkpoint folders instead; small ones, since everything is computed in "
             "plain double precision as well");
  opts.path("--golden", o->golden,
            "also compare with the golden cases in this folder, within their own tolerances");
  opts.choices("--gradient", o->gradients, {"frozen", "full"}, "gradient modes");
  opts.wholes("--ranks", o->how.ranks, 1, actors::runtime_options::ranks_max, "numbers of ranks");
  opts.section("Machine");
  opts.whole("--threads", o->how.threads, 1, 256, "cores / ranks", "compute threads of a rank");
  opts.bytes("--memory", o->how.memory, "budget that the step on the longer prompt must fit in");
  opts.section("Results");
  opts.path("--out", o->out,
            "folder for audit.json, audit.html and audit.txt; replaced as a whole");
}

}  // namespace longstraw::program
