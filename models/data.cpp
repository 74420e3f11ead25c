#include <longstraw/models/data.hpp>
#include <longstraw/models/json_text.hpp>

#include <algorithm>
#include <cmath>
#include <optional>

namespace longstraw::models {
namespace {

using nlohmann::json;

/// The one of two spellings that is there. errc::bad_input if both or neither are.
struct text_or_ids {
  const json* text = nullptr;
  const json* ids = nullptr;
};

class line_reader {
 public:
  line_reader(const json& document, const std::string& name, const data_rules& rules)
      : fields_(document, name), name_(name), rules_(rules) {}

  group read() {
    group g;
    g.name = name_;
    g.prompt = tokens_of(either("prompt", "prompt_ids"), "prompt");
    if (rules_.needs_responses) read_responses(g);
    return g;
  }

 private:
  text_or_ids either(const char* text, const char* ids) const {
    const text_or_ids found{fields_.find(text), fields_.find(ids)};
    if (found.text && found.ids)
      fail(errc::bad_input, "{}: \"{}\" and \"{}\" are both there; expected one of them", name_,
           text, ids);
    if (!found.text && !found.ids)
      fail(errc::bad_input, "{}: \"{}\" is missing; expected it, or \"{}\"", name_, text, ids);
    return found;
  }

  std::vector<token_id> tokens_of(const text_or_ids& from, const std::string& what) const {
    std::vector<token_id> tokens =
        from.text ? text_tokens(*from.text, what) : id_tokens(*from.ids, what + "_ids");
    if (tokens.empty())
      fail(errc::bad_input, "{}: \"{}\" is empty; expected at least one token", name_,
           from.text ? what : what + "_ids");
    return tokens;
  }

  std::vector<token_id> text_tokens(const json& v, const std::string& what) const {
    if (!v.is_string())
      fail(errc::bad_input, "{}: \"{}\" is {}; expected a text", name_, what, shown(v));
    if (rules_.has_tokenizer)
      fail(errc::bad_input,
           "{}: \"{}\" is text, but the checkpoint has a tokenizer; turn the file into ids with "
           "scripts/tokenize first",
           name_, what);
    std::vector<token_id> tokens = byte_tokens(v.get_ref<const std::string&>());
    for (const token_id id : tokens) check_id(id, what);
    return tokens;
  }

  std::vector<token_id> id_tokens(const json& v, const std::string& what) const {
    if (!v.is_array())
      fail(errc::bad_input, "{}: \"{}\" is {}; expected an array of ids", name_, what, shown(v));
    std::vector<token_id> tokens;
    tokens.reserve(v.size());
    for (const json& one : v) {
      const bool whole = one.is_number_integer() &&
                         !(one.is_number_unsigned() && one.get<std::uint64_t>() >> 62 != 0);
      if (!whole)
        fail(errc::bad_input, "{}: \"{}\" holds {}; expected ids from 0 to {}", name_, what,
             shown(one), rules_.vocabulary - 1);
      check_id(one.get<index>(), what);
      tokens.push_back(one.get<token_id>());
    }
    return tokens;
  }

  void check_id(index id, const std::string& what) const {
    if (id < 0 || id >= rules_.vocabulary)
      fail(errc::bad_input, "{}: \"{}\" holds {}; expected ids from 0 to {}, the vocabulary", name_,
           what, id, rules_.vocabulary - 1);
  }

  const json& array(const char* field, std::size_t count, const char* of) const {
    const json* v = fields_.find(field);
    if (!v)
      fail(errc::bad_input, "{}: \"{}\" is missing; expected an array of {}", name_, field, of);
    if (!v->is_array())
      fail(errc::bad_input, "{}: \"{}\" is {}; expected an array of {}", name_, field, shown(*v),
           of);
    if (v->size() != count)
      fail(errc::bad_input, "{}: \"{}\" has {} values for {} responses; expected one each", name_,
           field, v->size(), count);
    return *v;
  }

  double number(const json& v, const std::string& field) const {
    if (!v.is_number() || !std::isfinite(v.get<double>()) ||
        !std::isfinite(static_cast<float>(v.get<double>())))
      fail(errc::bad_input, "{}: \"{}\" holds {}; expected finite numbers", name_, field, shown(v));
    return v.get<double>();
  }

  void read_responses(group& g) const {
    const text_or_ids from = either("responses", "response_ids");
    const json& all = from.text ? *from.text : *from.ids;
    const char* field = from.text ? "responses" : "response_ids";
    if (!all.is_array() || all.empty())
      fail(errc::bad_input, "{}: \"{}\" is {}; expected an array of at least one response", name_,
           field, shown(all));
    std::vector<std::size_t> written;  // lengths before the cut
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string what = fmt::format("{}[{}]", field, i);
      response r;
      r.tokens = from.text ? text_tokens(all[i], what) : id_tokens(all[i], what);
      if (r.tokens.empty())
        fail(errc::bad_input, "{}: \"{}\" is empty; expected at least one token", name_, what);
      written.push_back(r.tokens.size());
      cut(r);
      g.responses.push_back(std::move(r));
    }
    read_rewards(g);
    read_logps(g, "old_logprobs", &response::old_logps, written);
    read_logps(g, "ref_logprobs", &response::ref_logps, written);
  }

  /// Tokens after the first end-of-sequence carry no loss, so they are not replayed either.
  void cut(response& r) const {
    const auto end =
        std::find_first_of(r.tokens.begin(), r.tokens.end(), rules_.end_of_sequence.begin(),
                           rules_.end_of_sequence.end());
    if (end != r.tokens.end()) r.tokens.erase(end + 1, r.tokens.end());
    r.loss_tokens = static_cast<index>(r.tokens.size());
  }

  void read_rewards(group& g) const {
    if (!rules_.needs_rewards && !fields_.has("rewards")) return;
    const json& given = array("rewards", g.responses.size(), "numbers, one a response");
    std::vector<double> rewards;
    for (const json& v : given) rewards.push_back(number(v, "rewards"));
    std::vector<double> advantages;
    if (fields_.has("advantages")) {
      for (const json& v : array("advantages", rewards.size(), "numbers, one a response"))
        advantages.push_back(number(v, "advantages"));
    } else {
      advantages = advantages_of(rewards, rules_.scale);
    }
    for (std::size_t i = 0; i < rewards.size(); ++i) {
      g.responses[i].reward = rewards[i];
      g.responses[i].advantage = advantages[i];
    }
  }

  void read_logps(group& g, const char* field, std::vector<float> response::*into,
                  const std::vector<std::size_t>& written) const {
    if (!fields_.has(field)) return;
    const json& all = array(field, g.responses.size(), "arrays, one a response");
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string what = fmt::format("{}[{}]", field, i);
      if (!all[i].is_array() || all[i].size() != written[i])
        fail(errc::bad_input, "{}: \"{}\" is {}; expected {} log-probabilities, one a token", name_,
             what, shown(all[i]), written[i]);
      auto& out = g.responses[i].*into;
      for (const json& v : all[i]) {
        const double d = number(v, what);
        if (d > 0)
          fail(errc::bad_input, "{}: \"{}\" holds {}; a log-probability is at most 0", name_, what,
               d);
        if (out.size() < g.responses[i].tokens.size()) out.push_back(static_cast<float>(d));
      }
    }
  }

  json_fields fields_;
  const std::string& name_;
  const data_rules& rules_;
};

}  // namespace

group parse_group(std::string_view line, const std::string& name, const data_rules& rules) {
  const json document = parse_json(line, name);
  return line_reader(document, name, rules).read();
}

std::vector<token_id> byte_tokens(std::string_view text) {
  std::vector<token_id> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string byte_text(std::span<const token_id> ids) {
  std::string text;
  for (const token_id id : ids) {
    if (id >= 0 && id < 256)
      text.push_back(static_cast<char>(id));
    else
      text += "\xef\xbf\xbd";
  }
  return text;
}

}  // namespace longstraw::models
