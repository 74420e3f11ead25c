// A training run is ended, or a call of the file system fails, at every single call by which it
// changes files. What is on disk then is the old step or the new one, whole, and the run goes on to
// the bits of a run that nothing disturbed.

#include "process.hpp"
#include "support/files.hpp"

#include <longstraw/models/journal.hpp>
#include <longstraw/models/manifest.hpp>

#include <catch2/generators/catch_generators.hpp>
#include <catch2/generators/catch_generators_adapters.hpp>

#include <csignal>
#include <cstdlib>
#include <map>
#include <set>
#include <sstream>

#ifdef LONGSTRAW_FILE_FAULTS

namespace longstraw::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* last_step = "2";
constexpr int at_once = 8;  // processes

/// In memory if there is such a place: a sync costs nothing there, and a killed process loses none
/// of what it wrote.
fs::path fast_folder() {
  return ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm") : fs::temp_directory_path();
}

struct fault {
  std::string kind;
  long at = 0;
};

/// The smallest model there is, in bfloat16: the optimizer's parts hold float32 weights too.
std::string smallest_model(const temporary_folder& folder) {
  auto config = json_file(fs::path(model_of("llama-tiny")) / "config.json");
  config["dtype"] = "bfloat16";
  config["num_hidden_layers"] = 1;
  config["hidden_size"] = config["intermediate_size"] = 16;
  config["num_attention_heads"] = config["num_key_value_heads"] = 1;
  config["head_dim"] = 8;
  const auto file = write_file(folder / "config.json", config.dump());
  const std::string model = (folder / "model").string();
  succeeds({"new-model", "--quiet", "--model-config", file.string(), "--out", model});
  return model;
}

class training {
 public:
  explicit training(int ranks) : ranks_(ranks), model_(smallest_model(folder_)) {
    whole_ = start("whole", {})->wait();
    REQUIRE(whole_.exit_code == 0);
  }

  fs::path out(const std::string& name) const { return folder_ / name / "out"; }
  fs::path log(const std::string& name) const { return folder_ / (name + ".log"); }

  std::unique_ptr<process> start(const std::string& name, const fault& f) const {
    fs::create_directory(folder_ / name);
    const std::string ranks = std::to_string(ranks_);
    return std::make_unique<process>(
        std::vector<std::string>{"train", "--quiet", "--model", model_, "--data", data_, "--out",
                                 out(name).string(), "--steps", last_step, "--learning-rate", "0.1",
                                 "--keep", "1", "--threads", "1", "--ranks", ranks},
        [&, under = (folder_ / name).string(), log_file = log(name).string()] {
          if (f.kind.empty()) return;
          ::setenv("LD_PRELOAD", LONGSTRAW_FILE_FAULTS, 1);
          ::setenv("FILE_FAULTS_UNDER", under.c_str(), 1);
          ::setenv("FILE_FAULTS_LOG", log_file.c_str(), 1);
          ::setenv("FILE_FAULTS_KIND", f.kind.c_str(), 1);
          ::setenv("FILE_FAULTS_AT", std::to_string(f.at).c_str(), 1);
        });
  }

  /// The last committed step, 0 if there is none; what it consists of is whole.
  index committed_step(const std::string& name) const {
    const fs::path file = out(name) / "journal.jsonl";
    if (!fs::exists(out(name))) return 0;
    const auto last = models::read_journal(read_file(file), file.string()).last;
    if (!last) return 0;
    const fs::path checkpoint = out(name) / ("checkpoint-" + std::to_string(last->step));
    const auto entries = models::read_manifest(checkpoint, last->manifest, "the journal");
    CHECK(entries.size() == static_cast<std::size_t>(3 + ranks_));
    for (const auto& e : entries) models::check_file(checkpoint, e);
    return last->step;
  }

  void check_same_end(const std::string& name) const {
    const fs::path a = out("whole"), b = out(name);
    CHECK(names_in(a) == names_in(b));
    const std::string last = std::string("checkpoint-") + last_step;
    const auto names = names_in(a / last);
    CHECK(names == names_in(b / last));
    for (const std::string& part : names)
      if (part.starts_with("optimizer"))
        CHECK(read_file(a / last / part) == read_file(b / last / part));
    CHECK(read_file(a / last / "model/model.safetensors") ==
          read_file(b / last / "model/model.safetensors"));
    CHECK(metrics("whole") == metrics(name));
  }

  /// Without times.
  std::vector<nlohmann::json> metrics(const std::string& name) const {
    std::vector<nlohmann::json> lines;
    std::istringstream text(read_file(out(name) / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) {
      lines.push_back(nlohmann::json::parse(line));
      lines.back().erase("seconds");
      lines.back().erase("tokens_per_second");
    }
    return lines;
  }

  std::vector<std::string> calls(const std::string& name) const {
    std::vector<std::string> lines;
    std::istringstream text(read_file(log(name)));
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  void forget(const std::string& name) const {
    fs::remove_all(folder_ / name);
    fs::remove(log(name));
  }

 private:
  temporary_folder folder_{fast_folder()};
  const int ranks_;
  const std::string model_;
  const std::string data_ =
      write_file(folder_ / "data.jsonl",
                 "{\"prompt\": \"ab\", \"responses\": [\"c\", \"de\"], \"rewards\": [1, 0]}\n"
                 "{\"prompt\": \"c\", \"responses\": [\"b\", \"ac\"], \"rewards\": [1, 0]}\n")
          .string();
  finished whole_;
};

/// Runs with the fault at call 1, 2, ... until no fault happens, a few at once; `check` looks at
/// each one that had its fault, then the run is taken up again, where `again` may disturb it once
/// more, and must come to the same end.
template <class Check, class Again>
void disturb_every_call(const training& t, const std::string& kind, Check&& check, Again&& again) {
  bool more = true;
  long faults = 0;
  for (long first = 1; more; first += at_once) {
    std::map<std::string, std::unique_ptr<process>> running;
    const auto name_of = [&](long at) { return kind + std::to_string(at); };
    for (long at = first; at < first + at_once; ++at)
      running[name_of(at)] = t.start(name_of(at), {kind, at});
    std::map<std::string, std::unique_ptr<process>> resumed;
    for (long at = first; at < first + at_once; ++at) {
      const std::string name = name_of(at);
      INFO(kind << " at call " << at);
      const finished f = running[name]->wait();
      INFO(f.err);
      const auto calls = t.calls(name);
      INFO("last calls: " << calls.at(calls.size() - std::min<std::size_t>(calls.size(), 2)) << ", "
                          << calls.back());
      if (std::ranges::find(calls, "fault") == calls.end()) {
        CHECK(f.exit_code == 0);
        more = false;
        continue;
      }
      ++faults;
      check(name, f, calls);
      again(name, at);
      resumed[name] = t.start(name, {});
    }
    for (auto& [name, run] : resumed) {
      INFO(name);
      const finished f = run->wait();
      INFO(f.err);
      CHECK(f.exit_code == 0);
      t.check_same_end(name);
    }
    for (const auto& [name, run] : running) t.forget(name);
  }
  CHECK(faults > 80);  // calls of two saves and the removal of one
}

bool is_commit(const std::string& call) {
  return call.find("\"record\":\"commit\"") != std::string::npos;
}

/// What a log of calls leaves on disk when the machine, not the process, ends: files and names that
/// no sync covers.
class disk {
 public:
  void add(const std::string& call) {
    std::istringstream text(call);
    std::string what, path, other;
    text >> what >> path >> other;
    if (what == "write") files_.insert(path);
    if (what == "fsync") files_.erase(path), folders_.erase(path);
    if (what == "create" || what == "unlink" || what == "rename") folders_.insert(parent(path));
    if (what == "unlink") files_.erase(path);
    if (what != "rename") return;
    folders_.insert(parent(other));
    for (auto* set : {&files_, &folders_}) {
      std::set<std::string> moved;
      for (const std::string& p : *set)
        moved.insert(p == path || p.starts_with(path + "/") ? other + p.substr(path.size()) : p);
      *set = moved;
    }
  }
  /// Paths not on disk yet, below that place.
  std::vector<std::string> unsynced(const std::string& below) const {
    std::vector<std::string> all;
    for (const auto* set : {&files_, &folders_})
      for (const std::string& p : *set)
        if (p.starts_with(below)) all.push_back(p);
    return all;
  }

 private:
  static std::string parent(const std::string& path) { return fs::path(path).parent_path(); }
  std::set<std::string> files_, folders_;
};

}  // namespace

TEST_CASE("a save is on disk before the journal commits it, and older ones go after that",
          "[program]") {
  const int ranks = GENERATE(filter([](int r) { return r <= ranks_that_run; }, values({1, 2, 4})));
  const training t(ranks);
  t.start("logged", {"none", 0})->wait();
  const std::string out = t.out("logged").string(), journal = out + "/journal.jsonl";
  disk d;
  int commits = 0, lines = 0, removals = 0, renames = 0;
  for (const std::string& call : t.calls("logged")) {
    INFO(call);
    const bool into_journal = call.starts_with("write " + journal);
    if (into_journal && call.ends_with(" .")) {  // the newline that makes a record count
      ++lines;
      CHECK(d.unsynced(journal).empty());
    } else if (into_journal) {  // the record before
      CHECK(d.unsynced(journal).empty());
    }
    if (is_commit(call)) {
      ++commits;
      CHECK(d.unsynced(out) == std::vector<std::string>{});
    }
    if (call.starts_with("rename " + out + "/.checkpoint-")) {
      std::istringstream text(call.substr(7));
      std::string from, to;
      text >> from >> to;
      if (to.find(".safetensors") == std::string::npos) {
        ++renames;
        CHECK(d.unsynced(from) == std::vector<std::string>{});
      }
    }
    if (call.starts_with("rename " + out + "/checkpoint-")) {
      ++removals;
      CHECK(commits == 2);
      CHECK(d.unsynced(journal).empty());
    }
    d.add(call);
  }
  CHECK(commits == 2);
  CHECK(renames == 2);
  CHECK(removals == 1);
  CHECK(lines == 2 * (2 + ranks));
}

TEST_CASE("a run killed at any call goes on from the old step or the new one", "[program][slow]") {
  const int ranks = GENERATE(filter([](int r) { return r <= ranks_that_run; }, values({1, 2, 4})));
  const training t(ranks);
  for (const std::string kind : {"kill-before", "kill-within"})
    disturb_every_call(
        t, kind,
        [&](const std::string& name, const finished& f, const std::vector<std::string>& calls) {
          CHECK(f.signal == SIGKILL);
          const index commits = std::ranges::count_if(calls, is_commit);
          const index step = t.committed_step(name);
          CHECK((step == commits || step == commits - 1));
        },
        [&](const std::string& name, long at) {
          if (kind == "kill-before") return;
          // The way back is disturbed too, at another call each time.
          t.start(name, {kind, 1 + at * 7 % 40})->wait();
          t.committed_step(name);
        });
}

TEST_CASE("a call that fails ends the run with one sentence and nothing half-written",
          "[program][slow][negative]") {
  const int ranks = GENERATE(filter([](int r) { return r <= ranks_that_run; }, values({1, 2, 4})));
  const training t(ranks);
  for (const std::string kind : {"EIO", "ENOSPC"})
    disturb_every_call(
        t, kind,
        [&](const std::string& name, const finished& f, const std::vector<std::string>&) {
          CHECK(f.signal == 0);
          // A full disk may leave the last calls of a run undisturbed: they only remove.
          CHECK((f.exit_code == 1 || (kind == "ENOSPC" && f.exit_code == 0)));
          if (f.exit_code == 1) {
            CHECK_THAT(f.err, ContainsSubstring("longstraw: "));
            CHECK_THAT(f.err, ContainsSubstring(kind == "EIO" ? "Input/output error"
                                                              : "No space left on device"));
            CHECK(f.err.find("longstraw: ") == f.err.rfind("longstraw: "));
          }
          t.committed_step(name);
          for (const std::string& left : names_in(t.out(name).parent_path()))
            CHECK((left == "out" || kind == "EIO"));
          if (!fs::exists(t.out(name))) return;
          for (const std::string& left : names_in(t.out(name))) {
            INFO(left);
            CHECK((!left.starts_with(".") || left == ".lock" || kind == "EIO"));
          }
          if (const fs::path lines = t.out(name) / "metrics.jsonl"; fs::exists(lines)) {
            const std::string text = read_file(lines);
            CHECK((text.empty() || text.back() == '\n'));
          }
        },
        [](const std::string&, long) {});
}

}  // namespace longstraw::testing

#endif  // LONGSTRAW_FILE_FAULTS
