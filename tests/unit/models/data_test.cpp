#include "support/files.hpp"

#include <longstraw/models/data.hpp>
#include <longstraw/models/safetensors.hpp>

#include <cmath>
#include <limits>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;

data_rules byte_rules() {
  data_rules rules;
  rules.vocabulary = 258;
  rules.end_of_sequence = {256, 257};
  return rules;
}

group parse(const std::string& line) {
  return parse_group(line, "data.jsonl line 3", byte_rules());
}

std::string refusal(const std::string& line) {
  const auto sentence = failure_of([&] { parse(line); });
  CHECK_THAT(sentence, ContainsSubstring("data.jsonl line 3"));
  return sentence;
}

/// A line with ids, and `more` before its end.
std::string line_with(const std::string& more, const std::string& rewards = "[1, 0]") {
  return R"({"prompt_ids": [1, 2], "response_ids": [[3, 4], [5]], "rewards": )" + rewards + more +
         "}";
}

}  // namespace

TEST_CASE("text becomes bytes, and rewards become advantages", "[unit]") {
  const group g = parse(R"({"prompt": "h\u00e9", "responses": ["a", "bc"], "rewards": [1, 0]})");
  CHECK(g.name == "data.jsonl line 3");
  CHECK(g.prompt == std::vector<token_id>{'h', 0xc3, 0xa9});
  REQUIRE(g.responses.size() == 2);
  CHECK(g.responses[1].tokens == std::vector<token_id>{'b', 'c'});
  CHECK(g.responses[1].loss_tokens == 2);
  CHECK(g.responses[0].advantage > 0.7);
  CHECK(g.responses[0].advantage == -g.responses[1].advantage);
}

TEST_CASE("a response ends with its first end-of-sequence token, and so do its scores", "[unit]") {
  const group g = parse(
      R"({"prompt_ids": [1], "response_ids": [[7, 257, 8, 256], [9, 9]], "rewards": [1, 0],
          "advantages": [2.5, -2], "old_logprobs": [[-1, -2, -3, -4], [-5, -6]],
          "ref_logprobs": [[-1, -1, -1, -1], [0, -0.5]]})");
  const response& first = g.responses[0];
  CHECK(first.tokens == std::vector<token_id>{7, 257});
  CHECK(first.loss_tokens == 2);
  CHECK(first.old_logps == std::vector<float>{-1, -2});
  CHECK(first.advantage == 2.5);
  CHECK(g.responses[1].tokens.size() == 2);
  CHECK(g.responses[1].ref_logps == std::vector<float>{0, -0.5});
}

TEST_CASE("a prompt alone is enough to generate from", "[unit]") {
  data_rules rules = byte_rules();
  rules.needs_responses = false;
  CHECK(parse_group(R"({"prompt": "x", "answer": [{}]})", "p", rules).responses.empty());
}

TEST_CASE("bytes and text", "[unit]") {
  CHECK(byte_text(byte_tokens("a\xff\x01")) == "a\xff\x01");
  CHECK(byte_text(std::vector<token_id>{'a', 256, 'b'}) ==
        "a\xef\xbf\xbd"
        "b");
}

TEST_CASE("a line that is not one JSON object is refused", "[unit][negative]") {
  CHECK_THAT(refusal(""), ContainsSubstring("empty"));
  CHECK_THAT(refusal("{\"prompt\": "), ContainsSubstring("ends too early"));
  CHECK_THAT(refusal("[1]"), ContainsSubstring("expected a JSON object"));
  CHECK_THAT(refusal("{\"prompt\": \"\xff\xfe\"}"), ContainsSubstring("not JSON"));
  CHECK_THAT(refusal(line_with("", "[NaN, 1]")), ContainsSubstring("unexpected \"NaN\""));
  CHECK_THAT(refusal(line_with("", "[1e999, 1]")), ContainsSubstring("range of a double"));
  CHECK_THAT(refusal(R"({"prompt": "a", "prompt": "b"})"), ContainsSubstring("twice"));
  CHECK_THAT(refusal(std::string(200'000, '[')), ContainsSubstring("deeper than 64"));
  CHECK_THAT(refusal("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"),
             ContainsSubstring("deeper than 64"));
}

TEST_CASE("prompts and responses that cannot be used are refused", "[unit][negative]") {
  CHECK_THAT(refusal("{}"), ContainsSubstring("\"prompt\" is missing"));
  CHECK_THAT(refusal(R"({"prompt": "a", "prompt_ids": [1]})"), ContainsSubstring("both there"));
  CHECK_THAT(refusal(R"({"prompt": 5})"), ContainsSubstring("\"prompt\" is 5"));
  CHECK_THAT(refusal(R"({"prompt": ""})"), ContainsSubstring("\"prompt\" is empty"));
  CHECK_THAT(refusal(R"({"prompt_ids": []})"), ContainsSubstring("\"prompt_ids\" is empty"));
  CHECK_THAT(refusal(R"({"prompt_ids": [258]})"),
             ContainsSubstring("258; expected ids from 0 to 257"));
  CHECK_THAT(refusal(R"({"prompt_ids": [-1]})"), ContainsSubstring("-1"));
  CHECK_THAT(refusal(R"({"prompt_ids": [1.5]})"), ContainsSubstring("1.5"));
  CHECK_THAT(refusal(R"({"prompt_ids": [4294967297]})"), ContainsSubstring("4294967297"));
  CHECK_THAT(refusal(R"({"prompt_ids": [18446744073709551615]})"),
             ContainsSubstring("18446744073709551615"));
  CHECK_THAT(refusal(R"({"prompt_ids": ["1"]})"), ContainsSubstring("\"1\""));
  CHECK_THAT(refusal(R"({"prompt": "a"})"), ContainsSubstring("\"responses\" is missing"));
  CHECK_THAT(refusal(R"({"prompt": "a", "responses": []})"), ContainsSubstring("at least one"));
  CHECK_THAT(refusal(R"({"prompt": "a", "responses": ["b", ""], "rewards": [0, 1]})"),
             ContainsSubstring("\"responses[1]\" is empty"));
  CHECK_THAT(refusal(R"({"prompt": "a", "response_ids": [[1], []], "rewards": [0, 1]})"),
             ContainsSubstring("\"response_ids[1]\" is empty"));
  CHECK_THAT(refusal(R"({"prompt": "a", "response_ids": [1], "rewards": [0]})"),
             ContainsSubstring("expected an array of ids"));
}

TEST_CASE("rewards, advantages and scores of the wrong kind or count are refused",
          "[unit][negative]") {
  CHECK_THAT(refusal(R"({"prompt": "a", "responses": ["b"]})"),
             ContainsSubstring("\"rewards\" is missing"));
  CHECK_THAT(refusal(line_with("", "[1]")), ContainsSubstring("1 values for 2 responses"));
  CHECK_THAT(refusal(line_with("", "[1, \"x\"]")), ContainsSubstring("\"x\""));
  CHECK_THAT(refusal(line_with("", "[1, true]")), ContainsSubstring("true"));
  CHECK_THAT(refusal(line_with("", "[1, 1e300]")), ContainsSubstring("finite"));
  CHECK_THAT(refusal(line_with(R"(, "advantages": [1])")),
             ContainsSubstring("\"advantages\" has 1"));
  CHECK_THAT(refusal(line_with(R"(, "advantages": [1, null])")), ContainsSubstring("null"));
  CHECK_THAT(refusal(line_with(R"(, "old_logprobs": [[-1, -2]])")),
             ContainsSubstring("\"old_logprobs\" has 1"));
  CHECK_THAT(refusal(line_with(R"(, "old_logprobs": [[-1], [-2]])")),
             ContainsSubstring("expected 2 log-probabilities"));
  CHECK_THAT(refusal(line_with(R"(, "ref_logprobs": [[-1, 0.25], [-2]])")),
             ContainsSubstring("0.25; a log-probability is at most 0"));
  CHECK_THAT(refusal(line_with(R"(, "ref_logprobs": [[-1, -1e39], [-2]])")),
             ContainsSubstring("finite"));
}

TEST_CASE("text for a checkpoint with a tokenizer is refused with the way out",
          "[unit][negative]") {
  data_rules rules = byte_rules();
  rules.has_tokenizer = true;
  CHECK_THAT(failure_of([&] { parse_group(R"({"prompt": "a"})", "d line 1", rules); }),
             ContainsSubstring("scripts/tokenize"));
  rules.has_tokenizer = false;
  rules.vocabulary = 100;
  CHECK_THAT(failure_of([&] { parse_group(R"({"prompt": "z"})", "d line 1", rules); }),
             ContainsSubstring("122"));
}

TEST_CASE("a file of lines is read one group at a time", "[unit]") {
  temporary_folder folder;
  std::string text = "\n  \n" + line_with("", "[1, 2]") + "\r\n\n" + line_with("", "[5, 6]");
  const group_file file(write_file(folder / "data.jsonl", text), byte_rules());
  REQUIRE(file.size() == 2);
  CHECK(file.read(1).responses[0].reward == 5);
  CHECK(file.read(1).name == "data.jsonl line 5");
  CHECK(file.read(0).responses[1].reward == 2);
  CHECK_THAT(failure_of([&] { file.read(2); }), ContainsSubstring("no group 2"));

  // Longer than one block of the index, so that a line crosses its border.
  text = line_with(", \"note\": \"" + std::string(3 << 20, 'x') + "\"") + "\n" + line_with("");
  const group_file large(write_file(folder / "large.jsonl", text), byte_rules());
  REQUIRE(large.size() == 2);
  CHECK(large.read(0).responses.size() == 2);
  CHECK(large.read(1).name == "large.jsonl line 2");
}

TEST_CASE("files without a group are refused", "[unit][negative]") {
  temporary_folder folder;
  const auto open = [&](const std::filesystem::path& path) { group_file(path, byte_rules()); };
  CHECK_THAT(failure_of([&] { open(write_file(folder / "a.jsonl", "")); }),
             ContainsSubstring("holds no line"));
  CHECK_THAT(failure_of([&] { open(write_file(folder / "b.jsonl", "\n \n")); }),
             ContainsSubstring("holds no line"));
  CHECK_THAT(failure_of([&] { open(folder / "none.jsonl"); }, errc::io_failed),
             ContainsSubstring("none.jsonl"));
  CHECK_THAT(failure_of([&] { open(folder.path()); }), ContainsSubstring("a folder"));
}

TEST_CASE("a golden batch is one group with its scores", "[unit][golden]") {
  data_rules rules;
  rules.vocabulary = 256;
  const group_file file(golden("qwen35-tiny") / "batch.safetensors", rules);
  REQUIRE(file.size() == 1);
  const group g = file.read(0);
  CHECK(g.prompt.size() == 160);
  REQUIRE(g.responses.size() == 4);
  CHECK(g.responses[2].loss_tokens == 24);
  CHECK(g.responses[1].old_logps.size() == 5);
  CHECK(g.responses[1].ref_logps.size() == 5);
  rules.vocabulary = 100;
  CHECK_THAT(failure_of([&] { read_batch(golden("qwen35-tiny") / "batch.safetensors", rules); }),
             ContainsSubstring("expected ids from 0 to 99"));
}

namespace {

tensor_source integers(std::string name, std::vector<index> shape,
                       const std::vector<std::int64_t>& values) {
  tensor_source t;
  t.name = std::move(name);
  t.type = dtype::i64;
  t.shape = std::move(shape);
  t.fill = [values](std::uint64_t offset, std::span<std::byte> block) {
    std::memcpy(block.data(), reinterpret_cast<const char*>(values.data()) + offset, block.size());
  };
  return t;
}

struct batch_tensors {
  std::vector<std::int64_t> prompt{1, 2}, responses{3, 4, 0, 5, 0, 0}, lens{2, 0};
  std::vector<float> rewards{1, 0}, old_logps{-1, -2, 7, 7, 7, 7};

  group read(const temporary_folder& folder) const {
    const std::vector tensors{integers("prompt_ids", {static_cast<index>(prompt.size())}, prompt),
                              integers("response_ids", {2, 3}, responses),
                              integers("response_lens", {static_cast<index>(lens.size())}, lens),
                              from_floats("rewards", {static_cast<index>(rewards.size())}, rewards),
                              from_floats("old_logps", {2, 3}, old_logps)};
    write_safetensors(folder / "b.safetensors", tensors);
    return read_batch(folder / "b.safetensors", byte_rules());
  }
};

}  // namespace

TEST_CASE("a batch is taken as it is, masked responses and padding included", "[unit]") {
  temporary_folder folder;
  const group g = batch_tensors().read(folder);
  CHECK(g.responses[0].tokens == std::vector<token_id>{3, 4});
  CHECK(g.responses[0].old_logps == std::vector<float>{-1, -2});
  CHECK(g.responses[1].loss_tokens == 0);
  CHECK(g.responses[1].tokens.empty());
}

TEST_CASE("a batch with impossible values is refused", "[unit][negative]") {
  temporary_folder folder;
  batch_tensors b;
  const auto refused = [&] { return failure_of([&] { b.read(folder); }); };
  SECTION("length beyond the tensor") {
    b.lens = {4, 1};
    CHECK_THAT(refused(), ContainsSubstring("holds 4; expected lengths from 0 to 3"));
  }
  SECTION("negative length") {
    b.lens = {-1, 1};
    CHECK_THAT(refused(), ContainsSubstring("holds -1"));
  }
  SECTION("lengths of another count") {
    b.lens = {1};
    CHECK_THAT(refused(), ContainsSubstring("has shape [1]; expected [2]"));
  }
  SECTION("no prompt") {
    b.prompt = {};
    CHECK_THAT(refused(), ContainsSubstring("prompt_ids is empty"));
  }
  SECTION("id outside the vocabulary") {
    b.responses[1] = std::int64_t{1} << 40;
    CHECK_THAT(refused(), ContainsSubstring("1099511627776"));
  }
  SECTION("reward that is no number") {
    b.rewards[1] = std::numeric_limits<float>::quiet_NaN();
    CHECK_THAT(refused(), ContainsSubstring("rewards holds nan"));
  }
  SECTION("log-probability above 0") {
    b.old_logps[1] = 0.5f;
    CHECK_THAT(refused(), ContainsSubstring("old_logps holds 0.5"));
  }
}

}  // namespace longstraw::models
