// A run that is stopped or killed at any moment goes on with the bits of a run that was not.

#include "process.hpp"
#include "support/files.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/journal.hpp>
#include <longstraw/models/manifest.hpp>
#include <longstraw/models/optimizer_parts.hpp>

#include <catch2/generators/catch_generators.hpp>

#include <chrono>
#include <csignal>
#include <random>
#include <sstream>
#include <sys/resource.h>
#include <thread>

namespace longstraw::testing {
namespace {

namespace fs = std::filesystem;

constexpr int steps = 6;

std::vector<std::string> train(const std::string& model, const std::string& data,
                               const fs::path& out, const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {
      "train", "--quiet",         "--model",   model,    "--data", data,
      "--out", out.string(),      "--shuffle", "--seed", "3",      "--steps",
      "6",     "--learning-rate", "0.001"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

std::vector<nlohmann::json> metrics(const fs::path& out) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(out / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// 0 if no step is saved.
index committed_step(const fs::path& out) {
  const auto last = models::read_journal(read_file(out / "journal.jsonl"), "journal.jsonl").last;
  return last ? last->step : 0;
}

void check_same_end(const fs::path& a, const fs::path& b) {
  CHECK(committed_step(a) == 6);
  CHECK(committed_step(b) == 6);
  for (const char* file : {"model/model.safetensors", "optimizer-00001-of-00001.safetensors"})
    CHECK(read_file(a / "checkpoint-6" / file) == read_file(b / "checkpoint-6" / file));
  const auto left = metrics(a), right = metrics(b);
  REQUIRE(left.size() == steps);
  REQUIRE(right.size() == steps);
  for (std::size_t i = 0; i < steps; ++i)
    for (const char* field : {"step", "group", "loss", "grad_norm", "optimizer_step"})
      CHECK(left[i].at(field) == right[i].at(field));
}

/// A checkpoint in bfloat16, whose float32 master weights only the saved state has.
std::string half_precision_model(const temporary_folder& folder) {
  auto config = json_file(fs::path(model_of("tiny")) / "config.json");
  config["dtype"] = "bfloat16";
  const auto file = write_file(folder / "config.json", config.dump());
  const std::string model = (folder / "half").string();
  succeeds({"new-model", "--quiet", "--model-config", file.string(), "--out", model});
  return model;
}

/// Makes the one part of a saved step those of `ranks` ranks, as they would have been saved.
void share_out(const fs::path& saved, index ranks) {
  const models::checkpoint files(saved / "model");
  const auto budget = memory::budget::make(0);
  const models::parameter_store store(files.layout(), models::parameter_use::train, *budget);
  const models::rank_share one;
  models::optimizer_parts(saved, files.layout(), 1)
      .read(models::shard_in(store, one.part(files.layout().total()), true));
  for (index r = 0; r < ranks; ++r) {
    const models::rank_share at{r, ranks};
    models::write_optimizer_part(
        saved, files.layout(), models::shard_in(store, at.part(files.layout().total()), true), at);
  }
  fs::remove(saved / models::optimizer_part_name(one));
  fs::remove(saved / models::manifest_name);
}

}  // namespace

TEST_CASE("a run killed at random moments ends with the same bits", "[program][slow]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4);
  const std::string model = half_precision_model(folder);
  const auto begin = std::chrono::steady_clock::now();
  succeeds(train(model, data, folder / "whole"));
  const auto whole_time = std::chrono::steady_clock::now() - begin;

  std::random_device device;
  const unsigned seed = device();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> share(0.05, 1.0);
  const fs::path out = folder / "killed";
  int kills = 0;
  for (; kills < 8; ++kills) {
    process run(train(model, data, out));
    std::this_thread::sleep_for(share(random) * whole_time);
    if (!run.running()) break;
    run.send(SIGKILL);
    run.wait();
  }
  succeeds(train(model, data, out));
  check_same_end(folder / "whole", out);
  for (const std::string& name : names_in(out))
    CHECK((!name.starts_with(".") || name == ".lock"));  // nothing half-written stays
}

TEST_CASE("a run cut into pieces by steps ends with the same bits", "[program]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4);
  const std::string model = model_of("tiny");
  succeeds(train(model, data, folder / "whole", {"--save-every", "4", "--threads", "1"}));
  auto pieces = train(model, data, folder / "pieces", {"--threads", "2"});
  for (const char* until : {"2", "3", "6", "6"}) {
    pieces[12] = until;
    succeeds(pieces);
  }
  check_same_end(folder / "whole", folder / "pieces");
  CHECK(names_in(folder / "pieces") == std::vector<std::string>{".lock", "checkpoint-5",
                                                                "checkpoint-6", "journal.jsonl",
                                                                "metrics.jsonl", "run.json"});
}

TEST_CASE("a stopped run saves, says so, and goes on", "[program]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4);
  const std::string model = model_of("tiny");
  const int signal = GENERATE(SIGINT, SIGTERM);
  const fs::path out = folder / "out";
  auto endless = train(model, data, out, {"--save-every", "1000000"});
  endless[12] = "1000000";
  process run(endless);
  for (int i = 0;
       i < 600 && (!fs::exists(out / "metrics.jsonl") || fs::file_size(out / "metrics.jsonl") == 0);
       ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  run.send(signal);
  const finished f = run.wait();
  INFO(f.err);
  CHECK(f.exit_code == 128 + signal);
  CHECK_THAT(f.err,
             ContainsSubstring(signal == SIGINT ? "stopped by SIGINT" : "stopped by SIGTERM"));
  CHECK_THAT(f.err, ContainsSubstring("goes on from there"));
  const auto done = metrics(out).size();
  CHECK(committed_step(out) == static_cast<index>(done));
  endless[12] = std::to_string(done + 2);
  succeeds(endless);
  CHECK(metrics(out).size() == done + 2);
}

TEST_CASE("a run is continued with the same settings only", "[program][negative]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4);
  const std::string model = model_of("tiny");
  const fs::path out = folder / "out";
  CHECK_THAT(fails(train(model, data, out, {"--resume", "required"})),
             ContainsSubstring("no checkpoint"));
  succeeds(train(model, data, out));
  CHECK_THAT(fails(train(model, data, out, {"--temperature", "0.5"})),
             ContainsSubstring("temperature"));
  CHECK_THAT(fails(train(model, data, out, {"--chunk-tokens", "8"})),
             ContainsSubstring("chunk_tokens"));
  CHECK_THAT(fails(train(model, data_of(folder.path(), 3), out)), ContainsSubstring("data"));
  CHECK_THAT(fails(train(model_of("llama-tiny"), data, out)), ContainsSubstring("model"));
}

TEST_CASE("a disk that fills up during a save loses nothing", "[program][negative]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4);
  const std::string model = model_of("tiny");
  const fs::path out = folder / "out";
  auto run = train(model, data, out);
  run[12] = std::to_string(2);
  succeeds(run);
  run[12] = std::to_string(6);
  fails(run, 1, [] {
    const rlimit limit{200'000, 200'000};
    setrlimit(RLIMIT_FSIZE, &limit);
  });
  CHECK(committed_step(out) == 2);
  succeeds(run);
  succeeds(train(model, data, folder / "whole"));
  check_same_end(folder / "whole", out);
}

TEST_CASE("a checkpoint saved by any number of ranks goes on with the same bits", "[program]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4), model = half_precision_model(folder);
  succeeds(train(model, data, folder / "whole"));
  const int ranks = GENERATE(2, 4, 8);
  const fs::path out = folder / "out", saved = out / "checkpoint-3";
  auto run = train(model, data, out);
  run[12] = std::to_string(3);
  succeeds(run);
  share_out(saved, ranks);
  write_file(out / "journal.jsonl", models::journal::opening());
  models::journal journal(out / "journal.jsonl");
  journal.begin(3, ranks);
  for (int part = 1; part <= ranks; ++part) journal.prepared(3, part, "");
  journal.commit(3, models::write_manifest(saved));
  succeeds(train(model, data, out));
  check_same_end(folder / "whole", out);
}

TEST_CASE("a damaged file of the committed step is named, with what was expected and found",
          "[program][negative]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4), model = half_precision_model(folder);
  const fs::path out = folder / "out", saved = out / "checkpoint-6";
  succeeds(train(model, data, out));
  const auto again = train(model, data, out);
  for (const char* name : {"optimizer-00001-of-00001.safetensors", "manifest.json", "state.json",
                           "model/config.json", "model/model.safetensors"}) {
    const std::string whole = read_file(saved / name);
    std::string damaged = whole;
    damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 4);
    write_file(saved / name, damaged);
    const std::string sentence = fails(again);
    CHECK_THAT(sentence, ContainsSubstring((saved / name).string() + " is damaged"));
    CHECK_THAT(sentence, ContainsSubstring("expects"));
    write_file(saved / name, whole.substr(0, whole.size() - 1));
    CHECK_THAT(fails(again), ContainsSubstring((saved / name).string()));
    fs::remove(saved / name);
    CHECK_THAT(fails(again), ContainsSubstring((saved / name).string() + " is missing"));
    write_file(saved / name, whole);
    succeeds(again);
  }
  const std::string journal = read_file(out / "journal.jsonl");
  std::string damaged = journal;
  damaged[damaged.find("commit")] = 'C';
  write_file(out / "journal.jsonl", damaged);
  CHECK_THAT(fails(again), ContainsSubstring("journal.jsonl line 4 is damaged"));
  // Lines lost at the end leave a journal that is whole in itself.
  for (const auto at : {journal.find("{\"line\":2"), journal.find("{\"line\":17")}) {
    write_file(out / "journal.jsonl", journal.substr(0, at));
    CHECK_THAT(fails(again), ContainsSubstring("journal.jsonl has lost lines"));
  }
  fs::remove(out / "journal.jsonl");
  CHECK_THAT(fails(again), ContainsSubstring("journal.jsonl is missing"));
  CHECK(fs::exists(saved));
}

TEST_CASE("moments can start anew if only they are damaged", "[program]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4);
  const bool half = GENERATE(false, true);
  const std::string model = half ? half_precision_model(folder) : model_of("tiny");
  const fs::path out = folder / "out";
  auto run = train(model, data, out, {"--keep", "10"});
  run[12] = std::to_string(3);
  succeeds(run);
  const fs::path part = out / "checkpoint-3/optimizer-00001-of-00001.safetensors",
                 weights = out / "checkpoint-3/model/model.safetensors";
  const std::string whole = read_file(weights);
  fs::remove(part);
  run[12] = std::to_string(6);
  CHECK_THAT(fails(run), ContainsSubstring("--restart-moments"));
  run.push_back("--restart-moments");
  write_file(weights, whole.substr(1));
  CHECK_THAT(fails(run), ContainsSubstring("model.safetensors"));
  write_file(weights, whole);
  const finished f = succeeds(run);
  CHECK_THAT(f.err, ContainsSubstring("moments start anew after step 3"));
  CHECK((f.err.find("rounded") != std::string::npos) == half);

  // The next step is the first one of an optimizer that knows nothing but the saved weights.
  const std::string group = std::to_string(metrics(out)[3].at("group").get<int>());
  succeeds({"step", "--quiet", "--model", weights.parent_path().string(), "--data", data, "--group",
            group, "--learning-rate", "0.001", "--out", (folder / "one").string()});
  CHECK(read_file(folder.path() / "one" / "model/model.safetensors") ==
        read_file(out / "checkpoint-4/model/model.safetensors"));
  const fs::path state = out / "checkpoint-6/state.json";
  CHECK(json_file(state).at("optimizer_steps") == 6);
  CHECK(json_file(state).at("moment_steps") == 3);
  CHECK(metrics(out).size() == 6);

  // Given once more, it is not needed and changes nothing.
  run[12] = std::to_string(7);
  CHECK_THAT(succeeds(run).err, ContainsSubstring("does nothing"));
  CHECK(json_file(out / "checkpoint-7/state.json").at("moment_steps") == 4);
}

TEST_CASE("a disk that fills up leaves whole lines of metrics, and the timeline until then",
          "[program][negative]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 4), model = model_of("tiny");
  const fs::path out = folder / "out", trace = folder / "t.json";
  auto run = train(model, data, out, {"--save-every", "100", "--trace", trace.string()});
  // Every line has a few hundred bytes: the limit cuts the second or third one.
  for (const rlim_t bytes : {rlim_t{900}, rlim_t{1000}, rlim_t{1100}}) {
    fails(train(model, data, out, {"--save-every", "100"}), 1, [&] {
      const rlimit limit{bytes, bytes};
      setrlimit(RLIMIT_FSIZE, &limit);
    });
    const std::string lines = read_file(out / "metrics.jsonl");
    CHECK_FALSE(lines.empty());
    CHECK(lines.back() == '\n');
    CHECK(metrics(out).size() >= 1);
    fs::remove_all(out);
  }
  // A step that fails in the middle of a run: weights that are not finite after the first update.
  run.insert(run.end(), {"--weight-decay", "1000", "--learning-rate", "1000"});
  run.erase(run.begin() + 13, run.begin() + 15);
  const std::string sentence = fails(run);
  CHECK_THAT(sentence, ContainsSubstring("nothing was committed"));
  CHECK_THAT(sentence, ContainsSubstring("is saved in"));
  CHECK_THAT(succeeds({"trace", "summary", trace.string()}).out, ContainsSubstring("step"));
}

TEST_CASE("groups without signal are counted, and epochs add up", "[program]") {
  const temporary_folder folder;
  const auto data =
      write_file(folder / "d.jsonl",
                 "{\"prompt\": \"a\", \"responses\": [\"b\", \"c\"], \"rewards\": [1, 1]}\n"
                 "{\"prompt\": \"a\", \"responses\": [\"b\", \"c\"], \"rewards\": [1, 0]}\n");
  const fs::path out = folder / "out";
  succeeds({"train", "--quiet", "--model", model_of("tiny"), "--data", data.string(), "--out",
            out.string(), "--epochs", "2"});
  const auto lines = metrics(out);
  REQUIRE(lines.size() == 4);
  CHECK(lines.back().at("skipped_total") == 2);
  CHECK(lines.back().at("optimizer_step") == 2);
  CHECK(lines.back().at("epoch") == 1);
}

}  // namespace longstraw::testing
