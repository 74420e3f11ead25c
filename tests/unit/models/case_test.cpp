#include "support/files.hpp"

#include <longstraw/models/case.hpp>

namespace longstraw::models {
namespace {

using namespace longstraw::testing;

const std::string good = R"({"case": "c", "temperature": 0.9, "losses": [{"name": "two",
  "loss_type": "bnpo", "importance_sampling_level": "sequence", "beta": 0.1, "epsilon_low": 0.2,
  "epsilon_high": 0.3, "max_completion_length": 8, "value": 1.5}],
  "optimizer": {"name": "AdamW", "lr": 0.01, "betas": [0.9, 0.95], "eps": 1e-6,
  "weight_decay": 0.1, "max_grad_norm": 4.5}})";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string refusal(const std::string& from, const std::string& to) {
  return failure_of([&] { parse_case(with(good, from, to), "case.json"); });
}

}  // namespace

TEST_CASE("a case gives its losses by name and its optimizer", "[unit]") {
  const case_settings c = parse_case(good, "case.json");
  const loss_settings& s = c.loss("two").settings;
  CHECK(s.type == loss_type::bnpo);
  CHECK(s.level == sampling_level::sequence);
  CHECK(s.beta == 0.1);
  CHECK(s.epsilon_high == 0.3);
  CHECK(s.temperature == 0.9);
  CHECK(s.max_completion_length == 8);
  CHECK(c.optimizer.learning_rate == 0.01);
  CHECK(c.optimizer.beta2 == 0.95);
  CHECK(c.max_grad_norm == 4.5);
  CHECK_THAT(failure_of([&] { c.loss("three"); }), ContainsSubstring("expected one of two"));
}

TEST_CASE("golden cases are read, also one that borrows its batch", "[unit][golden]") {
  const case_settings tiny = read_case(golden("qwen35-tiny") / "case.json");
  CHECK(tiny.loss("gspo").settings.level == sampling_level::sequence);
  CHECK(tiny.loss("cispo_max1p1").settings.epsilon_high == 1.1);
  CHECK(tiny.optimizer.eps == 1e-6);
  const case_settings prefix = read_case(golden("qwen35-multimodal-prefix") / "case.json");
  CHECK(prefix.expected_from == "qwen35-tiny");
  CHECK(prefix.losses.empty());
}

TEST_CASE("a case with impossible values is refused", "[unit][negative]") {
  CHECK_THAT(refusal("\"bnpo\"", "\"ppo\""), ContainsSubstring("\"ppo\""));
  CHECK_THAT(refusal("\"sequence\"", "7"),
             ContainsSubstring("losses[0].importance_sampling_level"));
  CHECK_THAT(refusal("0.9,", "0,"), ContainsSubstring("\"temperature\" is 0"));
  CHECK_THAT(refusal("[0.9, 0.95]", "[0.9, 1.0]"), ContainsSubstring("optimizer.betas"));
  CHECK_THAT(refusal("[0.9, 0.95]", "[0.9]"), ContainsSubstring("optimizer.betas"));
  CHECK_THAT(refusal("\"AdamW\"", "\"SGD\""), ContainsSubstring("\"SGD\""));
  CHECK_THAT(refusal("0.01", "-0.01"), ContainsSubstring("optimizer.lr"));
  CHECK_THAT(refusal("1e-6", "1e999"), ContainsSubstring("range of a double"));
  CHECK_THAT(refusal("\"value\"", "\"worth\""), ContainsSubstring("losses[0].value"));
}

}  // namespace longstraw::models
