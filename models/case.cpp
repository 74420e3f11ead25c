#include <longstraw/models/case.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>

#include <limits>

namespace longstraw::models {
namespace {

using nlohmann::json;

constexpr std::uint64_t case_bytes_max = std::uint64_t{64} << 20;
constexpr double any = std::numeric_limits<double>::max();

case_loss read_loss(const json_fields& f, double temperature) {
  case_loss out;
  out.name = f.text("name");
  loss_settings& s = out.settings;
  const std::string in =
      fmt::format("{}: the loss_type of losses entry \"{}\"", f.file(), out.name);
  s.type = parse_loss_type(f.text("loss_type"), in);
  s.level = parse_sampling_level(
      f.text("importance_sampling_level", "token"),
      fmt::format("{}: the importance_sampling_level of losses entry \"{}\"", f.file(), out.name));
  s.beta = f.number("beta", 0.0, 1e6, 0.0);
  s.epsilon_low = f.number("epsilon_low", 0.0, 1e6);
  s.epsilon_high = f.number("epsilon_high", 0.0, 1e6);
  if (f.has("delta")) s.delta = f.number("delta", 0.0, 1e6);
  s.max_completion_length =
      f.integer("max_completion_length", 0, std::numeric_limits<index>::max(), 0);
  s.temperature = temperature;
  out.value = f.number("value", -any, any);
  return out;
}

}  // namespace

const case_loss& case_settings::loss(std::string_view wanted) const {
  std::string choices;
  for (const case_loss& l : losses) {
    if (l.name == wanted) return l;
    choices += fmt::format("{}{}", choices.empty() ? "" : ", ", l.name);
  }
  fail(errc::bad_input, "the case {} has no loss \"{}\"; expected one of {}", name, wanted,
       choices);
}

case_settings parse_case(std::string_view text, const std::string& file) {
  const json document = parse_json(text, file);
  const json_fields top(document, file);
  case_settings c;
  c.name = top.text("case");
  c.expected_from = top.text("expected_from", "");
  if (!c.expected_from.empty()) return c;

  c.temperature = top.number("temperature", 1e-6, 1e6, 1.0);
  const json* losses = top.find("losses");
  if (!losses || !losses->is_array() || losses->empty())
    top.reject("losses", "an array of at least one loss");
  for (std::size_t i = 0; i < losses->size(); ++i)
    c.losses.push_back(
        read_loss(json_fields((*losses)[i], file, fmt::format("losses[{}].", i)), c.temperature));

  const json_fields o = top.object("optimizer");
  if (o.text("name") != "AdamW") o.reject("name", "\"AdamW\"");
  c.optimizer.learning_rate = o.number("lr", 0.0, 1e6);
  c.optimizer.eps = o.number("eps", 0.0, 1.0);
  c.optimizer.weight_decay = o.number("weight_decay", 0.0, 1e6, 0.0);
  c.max_grad_norm = o.number("max_grad_norm", 0.0, any);
  const json* betas = o.find("betas");
  const auto is_beta = [](const json& v) {
    return v.is_number() && v.get<double>() >= 0.0 && v.get<double>() < 1.0;
  };
  if (!betas || !betas->is_array() || betas->size() != 2 || !is_beta((*betas)[0]) ||
      !is_beta((*betas)[1]))
    o.reject("betas", "two numbers from 0 to below 1");
  c.optimizer.beta1 = (*betas)[0].get<double>();
  c.optimizer.beta2 = (*betas)[1].get<double>();
  return c;
}

case_settings read_case(const std::filesystem::path& file) {
  return parse_case(read_text(file, case_bytes_max), file.string());
}

}  // namespace longstraw::models
