// What a step leaves behind, beside its numbers.

#include "process.hpp"
#include "support/files.hpp"

#include <longstraw/models/safetensors.hpp>

namespace longstraw::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> step(const std::string& data, const fs::path& out,
                              const std::vector<std::string>& more = {}) {
  std::vector<std::string> all = {"step",   "--quiet", "--model", model_of("tiny"),
                                  "--data", data,      "--out",   out.string()};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_CASE("a step writes gradients, log-probabilities, a checkpoint and a report", "[program]") {
  const temporary_folder folder;
  const fs::path out = folder / "out";
  succeeds(step(data_of(folder.path(), 1), out,
                {"--trace", (out / "trace.json").string(), "--learning-rate", "0.01"}));
  CHECK(names_in(out) == std::vector<std::string>{"gradients.safetensors", "logprobs.safetensors",
                                                  "model", "report.json", "trace.json"});
  CHECK(names_in(folder.path()).size() == 2);

  const models::safetensors_file before(fs::path(model_of("tiny")) / "model.safetensors"),
      after(out / "model" / "model.safetensors"), gradients(out / "gradients.safetensors"),
      logprobs(out / "logprobs.safetensors");
  CHECK(after.tensors().size() == before.tensors().size());
  for (const auto& [name, info] : before.tensors()) {
    REQUIRE(gradients.find(name));
    CHECK(gradients.find(name)->shape == info.shape);
    CHECK(after.find(name)->shape == info.shape);
  }
  CHECK(logprobs.find("logps")->shape == std::vector<index>{3, 15});
  CHECK(logprobs.find("entropies")->shape == std::vector<index>{3, 15});
  CHECK(read_file(after.path()) != read_file(before.path()));

  const auto r = json_file(out / "report.json");
  for (const char* field :
       {"loss", "policy_loss", "kl", "clip_fraction", "grad_norm", "processor_seconds"})
    CHECK(r.at(field).is_number());
  for (const char* field : {"capture", "score", "replay", "sweep", "commit", "step", "total"})
    CHECK(r.at("seconds").at(field).get<double>() >= 0);
  CHECK(r.at("committed") == true);
  CHECK(r.at("skipped") == false);
  CHECK(r.at("tokens").at("prompt") == 33);
  CHECK(r.at("tokens").at("response") == 8 + 4 + 15);
  CHECK(r.at("trace") == (out / "trace.json").string());
  for (const char* field : {"longstraw", "compiler", "caf", "onednn"})
    CHECK_FALSE(r.at("versions").at(field).get<std::string>().empty());
  for (const char* name :
       {"parameters", "gradients", "conditional state", "activations", "program"})
    CHECK(r.at("peak_bytes").at(name).get<std::size_t>() > 0);
  CHECK_FALSE(r.at("peak_bytes").contains("moments"));  // no second step would read them
  std::size_t parts = 0;
  for (const auto& [name, bytes] : r.at("peak_bytes").items()) parts += bytes.get<std::size_t>();
  CHECK(r.at("peak_bytes_total").get<std::size_t>() <= parts);
  CHECK(r.at("process_peak_bytes").get<std::size_t>() > 0);
}

TEST_CASE("a group without signal is skipped and said so", "[program]") {
  const temporary_folder folder;
  const auto data =
      write_file(folder / "d.jsonl",
                 "{\"prompt\": \"a\", \"responses\": [\"b\", \"c\"], \"rewards\": [1, 1]}\n");
  succeeds(step(data.string(), folder / "out"));
  CHECK(names_in(folder / "out") == std::vector<std::string>{"report.json"});
  const auto r = json_file(folder / "out" / "report.json");
  CHECK(r.at("skipped") == true);
  CHECK(r.at("committed") == false);
  CHECK_THAT(r.at("skip_reason").get<std::string>(), ContainsSubstring("no signal"));
}

TEST_CASE("the reference's scores are freed before the policy is loaded", "[program]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 1);
  succeeds(step(data, folder / "out", {"--beta", "0.1", "--reference", model_of("tiny")}));
  const auto r = json_file(folder / "out" / "report.json");
  CHECK(std::abs(r.at("kl").get<double>()) < 1e-9);  // the policy is the reference
  const auto peaks = r.at("peak_bytes");
  CHECK(peaks.at("reference parameters") == peaks.at("parameters"));
  std::size_t parts = 0;
  for (const auto& [name, bytes] : peaks.items()) parts += bytes.get<std::size_t>();
  CHECK(r.at("peak_bytes_total").get<std::size_t>() <=
        parts - peaks.at("reference parameters").get<std::size_t>());
}

TEST_CASE("the plan of a step on several ranks is checked against the budget", "[program]") {
  const temporary_folder folder;
  succeeds(step(data_of(folder.path(), 1), folder / "out", {"--ranks", "3", "--memory", "1GiB"}));
}

TEST_CASE("options can stand in a file, with or without a section", "[program]") {
  const temporary_folder folder;
  const std::string data = data_of(folder.path(), 2);
  const auto plain = write_file(
      folder / "plain.toml", "model = \"" + model_of("tiny") + "\"\ndata = \"" + data +
                                 "\"\nlearning-rate = 0.25\nloss = \"bnpo\"\nno-decay-1d = true\n");
  succeeds({"step", "--quiet", "--config", plain.string(), "--out", (folder / "a").string(),
            "--group", "1"});
  auto settings = json_file(folder / "a" / "report.json").at("settings");
  CHECK(settings.at("learning_rate") == 0.25);
  CHECK(settings.at("loss") == "bnpo");
  CHECK(settings.at("no_decay_1d") == true);
  const auto sections =
      write_file(folder / "sections.toml",
                 "[step]\nmodel = \"" + model_of("tiny") + "\"\nbeta = 0\nlearning-rate = 0.25\n");
  succeeds({"--config", sections.string(), "step", "--quiet", "--data", data, "--out",
            (folder / "b").string(), "--learning-rate", "0.5"});  // the command line wins
  settings = json_file(folder / "b" / "report.json").at("settings");
  CHECK(settings.at("learning_rate") == 0.5);
  const auto wrong = write_file(folder / "wrong.toml", "no-such-option = 1\n");
  CHECK_THAT(fails(step(data, folder / "c", {"--config", wrong.string()}), 2),
             ContainsSubstring("no-such-option"));
}

TEST_CASE("the schedule is printed without running anything", "[program]") {
  const temporary_folder folder;
  const auto f = succeeds({"step", "--quiet", "--model", model_of("tiny"), "--data",
                           data_of(folder.path(), 1), "--print-schedule"});
  CHECK_THAT(f.out, ContainsSubstring("0 capture embed"));
  CHECK_THAT(f.out, ContainsSubstring("replay backward_layer"));
  CHECK(names_in(folder.path()).size() == 1);
}

TEST_CASE("every command explains itself", "[program]") {
  for (const char* command : {"step", "train", "score", "generate", "new-model"}) {
    const auto f = succeeds({command, "--help"});
    CHECK_THAT(f.out, ContainsSubstring("--out"));
    CHECK(f.err.empty());
  }
  CHECK_THAT(succeeds({"trace", "summary", "--help"}).out, ContainsSubstring("FILE"));
  CHECK_THAT(succeeds({"--help"}).out, ContainsSubstring("generate"));
  CHECK_THAT(succeeds({"--version"}).out, ContainsSubstring("longstraw 0."));
}

TEST_CASE("a trace is summed up, and what is no trace is refused", "[program]") {
  const temporary_folder folder;
  const fs::path trace = folder / "trace.json";
  succeeds(step(data_of(folder.path(), 1), folder / "out", {"--trace", trace.string()}));
  const auto f = succeeds({"trace", "summary", trace.string()});
  for (const char* part :
       {"rank 0 lane: busy", "longest operations", "p99 queue us", "submit_operation"})
    CHECK_THAT(f.out, ContainsSubstring(part));

  const std::string text = read_file(trace);
  const auto refused = [&](const std::string& content) {
    return fails({"trace", "summary", write_file(folder / "bad", content).string()});
  };
  CHECK_THAT(refused(""), ContainsSubstring("no timeline"));
  CHECK_THAT(refused("{\"traceEvents\": []}"), ContainsSubstring("line 1"));
  CHECK_THAT(refused(text.substr(0, text.size() / 2)), ContainsSubstring("line"));
  CHECK_THAT(refused(text + "more\n"), ContainsSubstring("follows"));
  CHECK_THAT(refused("[\n{\"ph\":\"X\",\"pid\":1,\"tid\":1,\"ts\":1,\"dur\":-5,\"cat\":\"message\","
                     "\"name\":\"a\",\"args\":{}}\n]\n"),
             ContainsSubstring("dur"));
  CHECK_THAT(fails({"trace", "summary", folder.path().string()}), ContainsSubstring("folder"));
}

TEST_CASE("samples follow from the seed", "[program]") {
  const std::vector<std::string> base = {
      "generate",         "--quiet",      "--model", model_of("tiny"), "--prompt",
      "Once upon a time", "--max-tokens", "12",      "--num",          "3",
      "--json",           "--seed"};
  const auto with = [&](const char* seed, const std::vector<std::string>& more = {}) {
    std::vector<std::string> all = base;
    all.push_back(seed);
    all.insert(all.end(), more.begin(), more.end());
    return succeeds(all).out;
  };
  CHECK(with("1") == with("1", {"--threads", "2"}));
  CHECK(with("1") != with("2"));
  CHECK(with("1", {"--top-k", "1"}) == with("2", {"--temperature", "0"}));
  CHECK_THAT(fails({"generate", "--quiet", "--model", model_of("tiny")}, 2),
             ContainsSubstring("--prompt"));
  CHECK_THAT(fails({"generate", "--quiet", "--model", model_of("tiny"), "--prompt-ids", "1 400"}),
             ContainsSubstring("400"));
}

TEST_CASE("scores need no rewards", "[program]") {
  const temporary_folder folder;
  const auto data =
      write_file(folder / "d.jsonl", "{\"prompt\": \"a\", \"responses\": [\"bcd\", \"e\"]}\n");
  const auto f =
      succeeds({"score", "--quiet", "--model", model_of("tiny"), "--data", data.string()});
  const auto line = nlohmann::json::parse(f.out);
  CHECK(line.at("logprobs").at(0).size() == 3);
  CHECK(line.at("entropies").at(1).size() == 1);
}

}  // namespace longstraw::testing
