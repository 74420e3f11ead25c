// Files of groups: a batch of tensors, and JSON lines found by their offsets.

#include <longstraw/models/data.hpp>
#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>
#include <longstraw/models/safetensors.hpp>

#include <algorithm>
#include <cmath>

namespace longstraw::models {
namespace {

class batch_reader {
 public:
  batch_reader(const std::filesystem::path& path, const data_rules& rules)
      : file_(path), rules_(rules) {}

  group read() {
    group g;
    g.name = file_.path().filename().string();
    const index prompt = shape_of("prompt_ids", 1)[0];
    if (prompt == 0)
      fail(errc::bad_input, "{}: prompt_ids is empty; expected at least one token", g.name);
    for (const std::int64_t id : integers("prompt_ids", prompt))
      g.prompt.push_back(checked_id(id, "prompt_ids"));
    if (rules_.needs_responses) read_responses(g);
    return g;
  }

 private:
  /// [P], or [responses, longest]; a length that does not fit what other tensors said is an error.
  const std::vector<index>& shape_of(const char* name, std::size_t dimensions) const {
    const tensor_info* info = file_.find(name);
    if (!info) fail(errc::bad_input, "{}: tensor {} is missing", file_.path().string(), name);
    if (info->shape.size() != dimensions)
      fail(errc::bad_input, "{}: tensor {} has shape {}; expected {} dimensions",
           file_.path().string(), name, shape_text(info->shape), dimensions);
    return info->shape;
  }
  void expect_shape(const char* name, const std::vector<index>& expected) const {
    if (shape_of(name, expected.size()) != expected)
      fail(errc::bad_input, "{}: tensor {} has shape {}; expected {}", file_.path().string(), name,
           shape_text(file_.find(name)->shape), shape_text(expected));
  }

  std::vector<std::int64_t> integers(const char* name, index count) const {
    std::vector<std::int64_t> v(static_cast<std::size_t>(count));
    file_.read_integers(name, v);
    return v;
  }
  std::vector<float> floats(const char* name, index count) const {
    std::vector<float> v(static_cast<std::size_t>(count));
    file_.read_floats(name, v);
    return v;
  }
  double finite(float value, const char* name) const {
    if (!std::isfinite(value))
      fail(errc::bad_input, "{}: tensor {} holds {}; expected finite numbers",
           file_.path().string(), name, value);
    return value;
  }
  token_id checked_id(std::int64_t id, const char* name) const {
    if (id < 0 || id >= rules_.vocabulary)
      fail(errc::bad_input, "{}: tensor {} holds {}; expected ids from 0 to {}, the vocabulary",
           file_.path().string(), name, id, rules_.vocabulary - 1);
    return static_cast<token_id>(id);
  }

  void read_responses(group& g) const {
    const std::vector<index> shape = shape_of("response_ids", 2);
    const index count = shape[0], longest = shape[1];
    if (count == 0)
      fail(errc::bad_input, "{}: response_ids has shape {}; expected at least one response",
           file_.path().string(), shape_text(shape));
    const bool rewarded = rules_.needs_rewards || file_.find("rewards");
    expect_shape("response_lens", {count});
    if (rewarded) expect_shape("rewards", {count});
    const auto ids = integers("response_ids", count * longest);
    const auto lens = integers("response_lens", count);
    const auto rewards = rewarded ? floats("rewards", count) : std::vector<float>(lens.size());
    for (index i = 0; i < count; ++i) {
      const std::int64_t length = lens[static_cast<std::size_t>(i)];
      if (length < 0 || length > longest)
        fail(errc::bad_input, "{}: tensor response_lens holds {}; expected lengths from 0 to {}",
             file_.path().string(), length, longest);
      response r;
      for (index t = 0; t < length; ++t)
        r.tokens.push_back(
            checked_id(ids[static_cast<std::size_t>(i * longest + t)], "response_ids"));
      r.loss_tokens = length;
      r.reward = finite(rewards[static_cast<std::size_t>(i)], "rewards");
      g.responses.push_back(std::move(r));
    }
    read_advantages(g);
    read_logps(g, "old_logps", &response::old_logps, longest);
    read_logps(g, "ref_logps", &response::ref_logps, longest);
  }

  void read_advantages(group& g) const {
    const auto count = static_cast<index>(g.responses.size());
    std::vector<double> advantages;
    if (file_.find("advantages")) {
      expect_shape("advantages", {count});
      for (const float a : floats("advantages", count))
        advantages.push_back(finite(a, "advantages"));
    } else {
      std::vector<double> rewards;
      for (const response& r : g.responses) rewards.push_back(r.reward);
      advantages = advantages_of(rewards, rules_.scale);
    }
    for (std::size_t i = 0; i < advantages.size(); ++i) g.responses[i].advantage = advantages[i];
  }

  void read_logps(group& g, const char* name, std::vector<float> response::*into,
                  index longest) const {
    if (!file_.find(name)) return;
    const auto count = static_cast<index>(g.responses.size());
    expect_shape(name, {count, longest});
    const auto values = floats(name, count * longest);
    for (std::size_t i = 0; i < g.responses.size(); ++i) {
      const auto row = std::span(values).subspan(i * static_cast<std::size_t>(longest),
                                                 g.responses[i].tokens.size());
      for (const float v : row)
        if (finite(v, name) > 0)
          fail(errc::bad_input, "{}: tensor {} holds {}; a log-probability is at most 0",
               file_.path().string(), name, v);
      (g.responses[i].*into).assign(row.begin(), row.end());
    }
  }

  safetensors_file file_;
  const data_rules& rules_;
};

}  // namespace

group read_batch(const std::filesystem::path& file, const data_rules& rules) {
  return batch_reader(file, rules).read();
}

group_file::group_file(const std::filesystem::path& path, data_rules rules)
    : path_(path), rules_(std::move(rules)), is_batch_(path.extension() == ".safetensors") {
  if (is_batch_) {
    safetensors_file checked(path);
    return;
  }
  const descriptor file = open_for_reading(path);
  const std::uint64_t bytes = size_of(file.get(), path);
  std::vector<char> block(static_cast<std::size_t>(std::min<std::uint64_t>(bytes, 1 << 20)));
  index line = 1;
  bool blank = true;
  std::uint64_t begin = 0;
  for (std::uint64_t at = 0; at < bytes; at += block.size()) {
    const auto part = std::span(block).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(block.size(), bytes - at)));
    read_exactly(file.get(), path, at, std::as_writable_bytes(part));
    for (std::size_t i = 0; i < part.size(); ++i) {
      const char c = part[i];
      if (c == '\n') {
        ++line;
        blank = true;
        begin = at + i + 1;
      } else if (blank && c != ' ' && c != '\t' && c != '\r') {
        blank = false;
        line_begin_.push_back(begin);
        line_number_.push_back(line);
      }
    }
  }
  if (line_begin_.empty())
    fail(errc::bad_input, "{} holds no line; expected one JSON object a line", path.string());
  line_begin_.push_back(bytes);
}

index group_file::size() const { return is_batch_ ? 1 : static_cast<index>(line_number_.size()); }

group group_file::read(index i) const {
  if (i < 0 || i >= size())
    fail(errc::bad_input, "{} holds groups 0 to {}; there is no group {}", path_.string(),
         size() - 1, i);
  if (is_batch_) return read_batch(path_, rules_);
  const auto n = static_cast<std::size_t>(i);
  const descriptor file = open_for_reading(path_);
  std::string line(static_cast<std::size_t>(line_begin_[n + 1] - line_begin_[n]), '\0');
  read_exactly(file.get(), path_, line_begin_[n], std::as_writable_bytes(std::span(line)));
  return parse_group(line, fmt::format("{} line {}", path_.filename().string(), line_number_[n]),
                     rules_);
}

}  // namespace longstraw::models
