// The audit as a user runs it.

#include "process.hpp"
#include "support/files.hpp"

namespace longstraw::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> audit_of(const std::string& architecture,
                                  const std::vector<std::string>& more) {
  std::vector<std::string> all = {"audit",      "--quiet", "--architecture", architecture,
                                  "--gradient", "frozen",  "--ranks",        "1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

TEST_CASE("an audit of one architecture ends well and leaves three results", "[program]") {
  const temporary_folder folder;
  const fs::path out = folder / "out";
  const auto f = succeeds(audit_of("llama", {"--out", out.string()}));
  CHECK(names_in(out) == std::vector<std::string>{"audit.html", "audit.json", "audit.txt"});
  CHECK(read_file(out / "audit.txt") == f.out);
  CHECK_THAT(f.out, ContainsSubstring("llama, frozen gradient"));
  CHECK_THAT(f.out, ContainsSubstring("0 failed"));

  const auto j = json_file(out / "audit.json");
  for (const char* field : {"date", "machine"}) CHECK_FALSE(j.at(field).get<std::string>().empty());
  CHECK(j.at("versions").contains("longstraw"));
  CHECK(j.at("failed") == 0);
  CHECK(j.at("cells").size() == 9);
  for (const auto& c : j.at("cells")) {
    INFO(c.dump());
    const std::string claim = c.at("claim");
    const bool runs = claim != "learning" && claim != "distributed consistency";
    CHECK(c.at("state") == (runs ? "proved" : "not run"));
    CHECK(c.at("measurements").empty() == !runs);
    if (claim == "execution capacity")
      CHECK_THAT(c.at("measurements")[0].at("what").get<std::string>(),
                 ContainsSubstring("growth"));
    if (claim == "group-size memory")
      CHECK_THAT(c.at("measurements")[0].at("what").get<std::string>(),
                 ContainsSubstring("but staging and scratch"));
    CHECK(c.at("reason").get<std::string>().empty() == runs);
    if (runs) CHECK(c.at("seconds").get<double>() >= 0);
  }
  CHECK_THAT(read_file(out / "audit.html"), ContainsSubstring("frozen-gradient parity"));

  // Replaced as a whole, but not if something else lies there.
  succeeds(audit_of("llama", {"--out", out.string()}));
  write_file(out / "notes.txt", "mine");
  CHECK_THAT(fails(audit_of("llama", {"--out", out.string()})), ContainsSubstring("notes.txt"));
}

TEST_CASE("an audit proves both gradients on several ranks", "[program]") {
  const temporary_folder folder;
  succeeds({"audit", "--quiet", "--architecture", "qwen3_5_text", "--ranks", "1", "3", "--out",
            (folder / "out").string()});
  const auto j = json_file(folder / "out" / "audit.json");
  CHECK(j.at("cells").size() == 2 * 2 * 9 * 2);  // models, modes, rows, ranks
  CHECK(j.at("not_run") == 2 * 2 * (2 + 1));     // learning, and ranks against themselves
  for (const auto& c : j.at("cells"))
    if (c.at("claim") == "distributed consistency" && c.at("ranks") == 3)
      CHECK(c.at("state") == "proved");
}

TEST_CASE("a failed cell gives the audit an exit code, and its results are there", "[program]") {
  const temporary_folder folder;
  const fs::path out = folder / "out";
  CHECK_THAT(fails(audit_of("qwen3", {"--memory", "1MiB", "--out", out.string()})),
             ContainsSubstring("1 of the audit's 9 cells failed"));
  const auto j = json_file(out / "audit.json");
  for (const auto& c : j.at("cells"))
    if (c.at("claim") == "execution capacity") {
      CHECK(c.at("state") == "failed");
      CHECK_THAT(c.at("reason").get<std::string>(), ContainsSubstring("1.0 MiB"));
    }
  CHECK_THAT(read_file(out / "audit.html"), ContainsSubstring("class=\"failed\""));
}

TEST_CASE("an audit takes checkpoints, and names what it cannot audit", "[program]") {
  const temporary_folder folder;
  const auto unknown = fails({"audit", "--architecture", "qwen3", "mamba"}, 2);
  for (const char* part : {"mamba", "qwen3_5_text", "qwen3", "llama"})
    CHECK_THAT(unknown, ContainsSubstring(part));
  CHECK_THAT(fails({"audit", "--ranks", "1", "17"}, 2), ContainsSubstring("17"));
  CHECK_THAT(fails({"audit", "--golden", folder.path().string()}), ContainsSubstring("case.json"));
  CHECK_THAT(fails({"audit", "--quiet", "--model", model_of("small")}),
             ContainsSubstring("takes at most"));
}

TEST_CASE("golden cases of other architectures are not run, and no failure", "[program][parity]") {
  const temporary_folder folder, cases;
  for (const char* name : {"llama-tiny", "glm-dsa-tiny"})
    fs::create_directory_symlink(golden(name), cases / name);
  succeeds(
      audit_of("llama", {"--golden", cases.path().string(), "--out", (folder / "out").string()}));
  int proved = 0, not_run = 0;
  const auto j = json_file(folder / "out" / "audit.json");
  for (const auto& c : j.at("cells")) {
    if (c.at("subject") == "golden llama-tiny") proved += c.at("state") == "proved";
    if (c.at("subject") != "golden glm-dsa-tiny") continue;
    not_run += c.at("state") == "not run";
    CHECK_THAT(c.at("reason").get<std::string>(), ContainsSubstring("glm_moe_dsa"));
  }
  CHECK(proved == 3);
  CHECK(not_run == 3);
}

}  // namespace longstraw::testing
