// Whatever is wrong ends in one sentence and a code, and leaves nothing behind.

#include "process.hpp"
#include "support/files.hpp"

#include <longstraw/models/safetensors.hpp>

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>

namespace longstraw::testing {
namespace {

struct place {
  temporary_folder folder;
  std::string model = model_of("tiny");
  std::string data = data_of(folder.path(), 2);
  std::string out = (folder / "out").string();

  std::vector<std::string> step(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"step",   "--quiet", "--model", model,
                                    "--data", data,      "--out",   out};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::string with_data(const std::string& text) const {
    return write_file(folder / "bad.jsonl", text).string();
  }
  /// Only the data file and whatever the test made: nothing half-written.
  void check_clean() const {
    CHECK_FALSE(std::filesystem::exists(out));
    for (const std::string& name : names_in(folder.path())) CHECK_FALSE(name.starts_with("."));
  }
};

}  // namespace

TEST_CASE("a wrong command line is named and ends with code 2", "[program][negative]") {
  const place p;
  CHECK_THAT(fails(p.step({"--no-such-option"}), 2), ContainsSubstring("--no-such-option"));
  CHECK_THAT(fails({"no-such-command"}, 2), ContainsSubstring("no-such-command"));
  CHECK_THAT(fails({}, 2), ContainsSubstring("subcommand"));
  CHECK_THAT(fails({"step", "--data", p.data, "--out", p.out}, 2), ContainsSubstring("--model"));
  CHECK_THAT(fails({"new-model", "--out", p.out}, 2), ContainsSubstring("--size"));
  p.check_clean();
}

TEST_CASE("numbers outside their range name flag, value and range", "[program][negative]") {
  const place p;
  const auto rejects = [&](const std::string& flag, const std::string& value,
                           const std::string& expected) {
    const std::string sentence = fails(p.step({flag, value}), 2);
    CHECK_THAT(sentence, ContainsSubstring(flag));
    CHECK_THAT(sentence, ContainsSubstring("\"" + value + "\""));
    CHECK_THAT(sentence, ContainsSubstring(expected));
  };
  rejects("--temperature", "0", "above 0");
  rejects("--temperature", "nan", "above 0");
  rejects("--temperature", "warm", "number");
  rejects("--adam-beta1", "1", "to below 1");
  rejects("--learning-rate", "-1", "from 0 to 1000");
  rejects("--learning-rate", "1e38", "from 0 to 1000");
  rejects("--adam-eps", "0", "above 0");
  rejects("--threads", "0", "from 1 to 256");
  rejects("--threads", "1.5", "whole number");
  rejects("--threads", "257", "from 1 to 256");
  rejects("--chunk-tokens", "0", "whole number");
  rejects("--page-tokens", "99999999999999999999", "whole number");
  rejects("--memory", "lots", "512MiB");
  rejects("--memory", "-5", "512MiB");
  rejects("--loss", "ppo", "bnpo");
  rejects("--gradient", "half", "frozen");
  rejects("--checkpoint", "some", "layer");
  rejects("--ranks", "0", "from 1 to 16");
  rejects("--ranks", "17", "from 1 to 16");
  rejects("--collective-timeout", "0", "from 0.001");
  p.check_clean();
}

TEST_CASE("a KL term without reference log-probabilities is refused", "[program][negative]") {
  const place p;
  CHECK_THAT(fails(p.step({"--beta", "0.1"})), ContainsSubstring("reference"));
  p.check_clean();
}

TEST_CASE("files that are not what they should be are named", "[program][negative]") {
  place p;
  const auto with = [&](const std::string& flag, const std::string& value) {
    std::vector<std::string> all = p.step();
    for (std::size_t i = 0; i + 1 < all.size(); ++i)
      if (all[i] == flag) all[i + 1] = value;
    return all;
  };
  const std::string absent = (p.folder / "absent").string();
  CHECK_THAT(fails(with("--model", absent)), ContainsSubstring(absent));
  CHECK_THAT(fails(with("--model", p.data)), ContainsSubstring(p.data));
  CHECK_THAT(fails(with("--data", absent)), ContainsSubstring(absent));
  CHECK_THAT(fails(with("--data", p.folder.path().string())), ContainsSubstring("folder"));
  CHECK_THAT(fails(p.step({"--group", "2"})), ContainsSubstring("no group 2"));
  CHECK_THAT(fails(p.step({"--case", absent})), ContainsSubstring(absent));
  CHECK_THAT(fails(p.step({"--reference", absent, "--beta", "0.1"})), ContainsSubstring(absent));
  CHECK_THAT(fails({"--config", absent, "step"}, 2), ContainsSubstring("absent"));
  CHECK_THAT(fails(with("--data", p.with_data(""))), ContainsSubstring("no line"));
  CHECK_THAT(
      fails(with("--data",
                 p.with_data("{\"prompt\": \"a\", \"responses\": [\"b\"], \"rewards\": [NaN]}\n"))),
      ContainsSubstring("line 1"));
  CHECK_THAT(
      fails(
          with("--data",
               p.with_data("{\"prompt\": \"a\", \"responses\": [\"b\"], \"rewards\": [1e999]}\n"))),
      ContainsSubstring("line 1"));
  CHECK_THAT(
      fails(with(
          "--data",
          p.with_data("{\"prompt\": \"a\", \"responses\": [\"b\", \"c\"], \"rewards\": [1]}\n"))),
      ContainsSubstring("rewards"));
  CHECK_THAT(
      fails(
          with("--data",
               p.with_data("{\"prompt_ids\": [258], \"responses\": [\"b\"], \"rewards\": [1]}\n"))),
      ContainsSubstring("258"));
  p.check_clean();
}

TEST_CASE("an output that cannot be written is refused before the step", "[program][negative]") {
  place p;
  const std::string foreign = (p.folder / "foreign").string();
  write_file(p.folder / "foreign" / "thesis.txt", "precious");
  p.out = foreign;
  CHECK_THAT(fails(p.step()), ContainsSubstring("not replaced"));
  CHECK(read_file(p.folder / "foreign" / "thesis.txt") == "precious");
  CHECK_THAT(fails({"train", "--quiet", "--model", p.model, "--data", p.data, "--out", foreign}),
             ContainsSubstring("not replaced"));
  CHECK_THAT(fails({"new-model", "--quiet", "--size", "tiny", "--out", foreign}),
             ContainsSubstring("not replaced"));
  p.out = p.data;
  CHECK_THAT(fails(p.step()), ContainsSubstring("is the same as --data"));
  p.out = write_file(p.folder / "file", "precious").string();
  CHECK_THAT(fails(p.step()), ContainsSubstring("is a file"));
  p.out = p.data + "/below";
  CHECK_THAT(fails(p.step()), ContainsSubstring("not a folder"));
  p.out = "/proc/longstraw";
  CHECK_THAT(fails(p.step()), ContainsSubstring("/proc"));
}

TEST_CASE("a result never takes the place of an input", "[program][negative]") {
  const place p;
  const std::string config = p.model + "/config.json";
  const std::string before = read_file(config), data = read_file(p.data);
  for (const std::string flag : {"--trace", "--report"})
    for (const std::string& input : {config, p.data})
      CHECK_THAT(fails(p.step({flag, input})), ContainsSubstring("must not replace"));
  CHECK_THAT(fails({"score", "--model", p.model, "--data", p.data, "--out", p.data}),
             ContainsSubstring("must not replace"));
  CHECK_THAT(fails(p.step({"--trace", write_file(p.folder / "mine.txt", "precious").string()})),
             ContainsSubstring("no timeline"));
  CHECK(read_file(config) == before);
  CHECK(read_file(p.data) == data);
}

TEST_CASE("a timeline or a report takes the place of no other result", "[program][negative]") {
  const place p;
  for (const std::string name : {"model/model.safetensors", "gradients.safetensors", "report.json"})
    CHECK_THAT(fails(p.step({"--trace", p.out + "/" + name})),
               ContainsSubstring("would take the place of"));
  CHECK_THAT(fails(p.step({"--report", p.out + "/model/config.json"})),
             ContainsSubstring("would take the place of model"));
  for (const std::string name :
       {"journal.jsonl", "metrics.jsonl", "checkpoint-1/state.json", ".lock"})
    CHECK_THAT(fails({"train", "--quiet", "--model", p.model, "--data", p.data, "--out", p.out,
                      "--trace", p.out + "/" + name}),
               ContainsSubstring("would take the place of"));
  const auto other = write_file(p.folder / "other.json", "{\"step\": 1}");
  CHECK_THAT(fails(p.step({"--report", other.string()})), ContainsSubstring("is no report"));
  CHECK(read_file(other) == "{\"step\": 1}");
  p.check_clean();
}

TEST_CASE("a run that must go on makes nothing where none is", "[program][negative]") {
  const place p;
  CHECK_THAT(fails({"train", "--quiet", "--model", p.model, "--data", p.data, "--out", p.out,
                    "--resume", "required"}),
             ContainsSubstring("holds no checkpoint"));
  p.check_clean();
}

TEST_CASE("replacing a result deletes nothing that is no result", "[program][negative]") {
  place p;
  succeeds(p.step());
  const std::filesystem::path out = p.out;
  const std::string data = write_file(out / "mine.jsonl", read_file(p.data)).string();
  CHECK_THAT(fails(p.step()), ContainsSubstring("mine.jsonl"));
  p.data = data;
  CHECK_THAT(fails(p.step()), ContainsSubstring("lies in --out"));
  CHECK(std::filesystem::exists(data));

  const std::string trained = (out / "model").string();
  CHECK_THAT(fails({"new-model", "--quiet", "--size", "tiny", "--out", trained}),
             ContainsSubstring("not replaced"));
}

TEST_CASE("a budget that is too small is refused before the step starts", "[program][negative]") {
  const place p;
  CHECK_THAT(fails(p.step({"--memory", "1MiB"})), ContainsSubstring("but --memory is 1.0 MiB"));
  // Before the weights are read, and with all that must fit.
  for (const auto& what : {"before its first token", "parameters", "gradients", "scratch 8.0 MiB",
                           "but --memory is 16.0 MiB"})
    CHECK_THAT(fails(p.step({"--memory", "16MiB", "--threads", "1"})), ContainsSubstring(what));
  const std::string long_prompt = p.with_data(nlohmann::json{{"prompt", std::string(200000, 'x')},
                                                             {"responses", {"a", "b"}},
                                                             {"rewards", {1, 0}}}
                                                  .dump() +
                                              "\n");
  std::vector<std::string> all = p.step({"--memory", "64MiB"});
  all[5] = long_prompt;
  CHECK_THAT(fails(all), ContainsSubstring("would fit"));
  p.check_clean();
}

TEST_CASE("a full disk leaves the older result as it was", "[program][negative]") {
  const place p;
  succeeds(p.step());
  const std::string before = read_file(std::filesystem::path(p.out) / "report.json");
  const auto small_files = [] {
    const rlimit limit{100'000, 100'000};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  CHECK_THAT(fails(p.step(), 1, small_files), ContainsSubstring("cannot be written"));
  CHECK(read_file(std::filesystem::path(p.out) / "report.json") == before);
  CHECK(names_in(p.folder.path()).size() == 2);  // data and the older result
  CHECK_THAT(fails({"new-model", "--quiet", "--size", "tiny", "--out", (p.folder / "m").string()},
                   1, small_files),
             ContainsSubstring("cannot be written"));
  CHECK_FALSE(std::filesystem::exists(p.folder / "m"));
}

TEST_CASE("weights that are not finite end every command, and nothing is committed or printed",
          "[program][negative]") {
  const place p;
  const auto damaged = [&](const char* name, const std::string& value) {
    const auto model = p.folder / name;
    std::filesystem::copy(p.model, model);
    std::string bytes = read_file(model / "model.safetensors");
    std::string values;
    while (values.size() < 4096) values += value;
    bytes.replace(bytes.size() - values.size(), values.size(), values);
    write_file(model / "model.safetensors", bytes);
    return model.string();
  };
  const std::string scores = (p.folder / "scores.jsonl").string();
  for (const std::string& model :
       {damaged("nan", "\xff\xff\xff\xff"), damaged("infinite", std::string("\0\0\x80\x7f", 4))}) {
    const std::string sentence = fails({"step", "--quiet", "--model", model, "--data", p.data,
                                        "--out", p.out, "--trace", (p.folder / "t.json").string()});
    CHECK_THAT(sentence, ContainsSubstring("nothing was committed"));
    CHECK_THAT(sentence, ContainsSubstring("of response 2 of data2.jsonl line 1"));
    CHECK(read_file(p.folder / "t.json").ends_with("]\n"));  // the timeline until then, whole

    for (const bool into_file : {false, true}) {
      std::vector<std::string> score = {"score", "--quiet", "--model", model, "--data", p.data};
      if (into_file) score.insert(score.end(), {"--out", scores});
      const finished f = longstraw_program(score);
      CHECK(f.exit_code == 1);
      CHECK(f.out.empty());
      CHECK_THAT(f.err, ContainsSubstring("response 0 of data2.jsonl line 1"));
    }
    CHECK_FALSE(std::filesystem::exists(scores));
    const finished f = longstraw_program({"generate", "--quiet", "--model", model, "--prompt", "a",
                                          "--num", "2", "--temperature", "0"});
    CHECK(f.exit_code == 1);
    CHECK(f.out.empty());
    CHECK_THAT(f.err, ContainsSubstring("sample 0 of --prompt"));
  }
  p.check_clean();
}

TEST_CASE("a fault in the last line is told before the first group is run", "[program][negative]") {
  const place p;
  std::string lines;
  for (int i = 0; i < 1000; ++i)
    lines += "{\"prompt\": \"a\", \"responses\": [\"b\", \"c\"], \"rewards\": [1, 0]}\n";
  const auto train = [&](const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = {"train", "--quiet", "--model",
                                    p.model, "--data",  (p.folder / "bad.jsonl").string(),
                                    "--out", p.out};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  for (const char* last : {R"({"prompt": "a", "responses": ["b"], "rewards": [1, 2]})",
                           R"({"prompt": "a", "responses": ["b"], "rewards": [Infinity]})",
                           R"({"prompt_ids": [1, 999], "response_ids": [[2]], "rewards": [1]})",
                           R"({"prompt_ids": [1], "response_ids": [[]], "rewards": [1]})", "{"}) {
    p.with_data(lines + last + "\n");
    CHECK_THAT(fails(train()), ContainsSubstring("bad.jsonl line 1001"));
    const finished f = longstraw_program(
        {"score", "--quiet", "--model", p.model, "--data", (p.folder / "bad.jsonl").string()});
    CHECK(f.exit_code == 1);
    CHECK(f.out.empty());
    CHECK_THAT(f.err, ContainsSubstring("bad.jsonl line 1001"));
  }
  // Only the last line lacks what --beta needs.
  const std::string with_reference =
      R"({"prompt": "a", "responses": ["b", "c"], "rewards": [1, 0], "ref_logprobs": [[-1], [-1]]})";
  p.with_data(with_reference + "\n" + lines.substr(0, lines.find('\n') + 1));
  CHECK_THAT(fails(train({"--beta", "0.1"})), ContainsSubstring("bad.jsonl line 2"));
  // Only the last line does not fit.
  p.with_data(lines + nlohmann::json{{"prompt", std::string(200000, 'x')},
                                     {"responses", {"a", "b"}},
                                     {"rewards", {1, 0}}}
                          .dump());
  CHECK_THAT(fails(train({"--memory", "64MiB"})), ContainsSubstring("would fit"));
  p.check_clean();
}

TEST_CASE("a reference that cannot score every id is refused at once", "[program][negative]") {
  const place p;
  auto config = json_file(std::filesystem::path(p.model) / "config.json");
  config["vocab_size"] = 257;
  config["eos_token_id"] = nullptr;
  const auto file = write_file(p.folder / "config.json", config.dump());
  const std::string small = (p.folder / "small").string();
  succeeds({"new-model", "--quiet", "--model-config", file.string(), "--out", small});
  const std::vector<std::string> more = {"--reference", small, "--beta", "0.1"};
  CHECK_THAT(fails(p.step(more)), ContainsSubstring("257"));
  std::vector<std::string> train = p.step(more);
  train[0] = "train";
  CHECK_THAT(fails(train), ContainsSubstring("257"));
  p.check_clean();
}

TEST_CASE("a long wrong value is cut in the sentence", "[program][negative]") {
  const place p;
  const std::string ids = std::string(5000, '1') + " x";
  CHECK_THAT(fails({"generate", "--quiet", "--model", p.model, "--prompt-ids", ids}, 2),
             ContainsSubstring("--prompt-ids holds"));
  CHECK_THAT(fails(p.step({"--threads", ids}), 2), ContainsSubstring("--threads"));
}

TEST_CASE("a --config file is read to its end, and its faults name the line",
          "[program][negative]") {
  const place p;
  const auto rejects = [&](const std::string& text, const std::string& expected) {
    const auto file = write_file(p.folder / "run.toml", text);
    CHECK_THAT(fails(p.step({"--config", file.string()}), 2), ContainsSubstring(expected));
  };
  rejects("# threads\n\nthreads = 0\n", "run.toml line 3: --threads is \"0\"");
  rejects("[step]\nspeed = 3\n", "run.toml line 2: \"speed\" is no option");
  rejects("[leap]\nspeed = 3\n", "run.toml line 2: there is no command");
  rejects("quiet = true\nthreads\n", "run.toml line 2 is \"threads\"");
  rejects("threads = \n", "run.toml line 1");
  rejects("threads = [1, 2]\n", "run.toml line 1");
  rejects("report = \"a\n", "run.toml line 1");
  rejects("threads = 1\nthreads = 2\n", "run.toml line 2");
  rejects("separate-score = perhaps\n", "run.toml line 1");
  rejects("[step\nthreads = 1\n", "run.toml line 1");
  rejects("config = \"other.toml\"\n", "run.toml line 1");
  rejects(std::string(2 << 20, '#'), "expected at most 1048576");
  for (const char* device : {"/dev/zero", "/dev/null", "."})
    CHECK_THAT(fails(p.step({"--config", device}), 2),
               ContainsSubstring("expected a regular file"));
  // What the command line gives is not the file's fault.
  const auto file = write_file(p.folder / "run.toml", "threads = 0\n").string();
  const std::string sentence = fails(p.step({"--config", file, "--threads", "300"}), 2);
  CHECK(sentence.find("run.toml") == std::string::npos);
  p.check_clean();
}

TEST_CASE("a stopped step says so and leaves nothing", "[program][negative]") {
  const place p;
  std::vector<std::string> all = p.step({"--threads", "1"});
  all[5] = p.with_data(nlohmann::json{
      {"prompt", std::string(200000, 'x')},
      {"responses", {"a", "b"}},
      {"rewards", {1, 0}}}.dump());
  process run(all);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  REQUIRE(run.running());
  run.send(SIGINT);
  const finished f = run.wait();
  CHECK(f.exit_code == 130);
  CHECK_THAT(f.err, ContainsSubstring("stopped by SIGINT"));
  p.check_clean();
}

TEST_CASE("output that is lost is noticed", "[program][negative]") {
  const place p;
  if (!std::filesystem::exists("/dev/full")) SKIP("this system has no /dev/full");
  const auto into_full = [] {
    if (::dup2(::open("/dev/full", O_WRONLY), STDOUT_FILENO) < 0) ::_exit(126);
  };
  CHECK_THAT(fails(p.step({"--print-schedule"}), 1, into_full),
             ContainsSubstring("standard output"));
  CHECK_THAT(fails({"score", "--quiet", "--model", p.model, "--data", p.data}, 1, into_full),
             ContainsSubstring("standard output"));
  for (const std::vector<std::string>& ask :
       {std::vector<std::string>{"--help"}, {"step", "--help"}, {"--version"}})
    CHECK_THAT(fails(ask, 1, into_full), ContainsSubstring("standard output"));
  CHECK_THAT(
      fails({"generate", "--quiet", "--model", p.model, "--prompt", "a", "--out", "/dev/full"}),
      ContainsSubstring("no regular file"));
  const auto small_files = [] {
    const rlimit limit{2'000, 2'000};
    setrlimit(RLIMIT_FSIZE, &limit);
  };
  CHECK_THAT(fails(p.step({"--trace", (p.folder / "t.json").string()}), 1, small_files),
             ContainsSubstring("timeline"));
  p.check_clean();
}

TEST_CASE("text for a checkpoint with a tokenizer points to the script that makes ids",
          "[program][negative]") {
  const place p;
  const auto model = p.folder / "m";
  std::filesystem::copy(p.model, model);
  write_file(model / "tokenizer.json", "{}");
  CHECK_THAT(fails({"generate", "--quiet", "--model", model.string(), "--prompt", "Hello"}),
             ContainsSubstring("scripts/tokenize"));
  CHECK_THAT(fails({"score", "--quiet", "--model", model.string(), "--data", p.data}),
             ContainsSubstring("scripts/tokenize"));
}

}  // namespace longstraw::testing
