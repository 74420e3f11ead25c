// longstraw generate: samples from one prompt that is captured once.

#include "commands.hpp"
#include "machine.hpp"
#include "progress.hpp"
#include "text_output.hpp"

#include <longstraw/models/files.hpp>
#include <longstraw/models/json_text.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>

namespace longstraw::program {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr std::uint64_t prompt_bytes_max = std::uint64_t{1} << 34;

struct generate_options {
  fs::path model, data, prompt_file, out;
  std::optional<std::string> prompt, prompt_ids;
  index group = 0, samples = 1, max_tokens = 64, top_k = 0, seed = 0;
  double temperature = 1.0, top_p = 1.0;
  bool as_json = false, as_ids = false, ignore_end = false;
  machine_options machine;
};

std::vector<token_id> ids_in(const std::string& text) {
  std::vector<token_id> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    while (at != end && (*at == ' ' || *at == ',' || *at == '\n' || *at == '\t')) ++at;
    if (at == end) return ids;
    token_id id = 0;
    const auto [rest, failure] = std::from_chars(at, end, id);
    if (failure != std::errc())
      throw usage_error(
          fmt::format("--prompt-ids holds {}; expected whole numbers with spaces or commas between",
                      models::in_quotes(std::string_view(at, static_cast<std::size_t>(end - at)))));
    ids.push_back(id);
    at = rest;
  }
}

std::vector<token_id> byte_prompt(const std::string& text, const char* flag,
                                  const models::data_rules& rules) {
  if (rules.has_tokenizer)
    fail(errc::bad_input,
         "{} is text, but the checkpoint has a tokenizer; turn the text into ids with "
         "scripts/tokenize first",
         flag);
  return models::byte_tokens(text);
}

models::group prompt_of(const generate_options& o, const models::checkpoint& files) {
  if (!o.prompt + o.prompt_file.empty() + !o.prompt_ids + o.data.empty() != 3)
    throw usage_error(
        "exactly one of --prompt, --prompt-file, --prompt-ids and --data is required");
  models::data_rules rules = rules_of(files);
  rules.needs_responses = false;
  if (!o.data.empty()) return models::group_file(o.data, rules).read(o.group);
  models::group g;
  g.name = o.prompt ? "--prompt" : o.prompt_ids ? "--prompt-ids" : o.prompt_file.string();
  if (o.prompt) g.prompt = byte_prompt(*o.prompt, "--prompt", rules);
  if (o.prompt_ids) g.prompt = ids_in(*o.prompt_ids);
  if (!o.prompt_file.empty())
    g.prompt =
        byte_prompt(models::read_text(o.prompt_file, prompt_bytes_max), "--prompt-file", rules);
  if (g.prompt.empty())
    fail(errc::bad_input, "{}: the prompt is empty; expected at least one token", g.name);
  for (const token_id id : g.prompt)
    if (id < 0 || id >= rules.vocabulary)
      fail(errc::bad_input,
           "{}: the prompt holds token {}; expected ids from 0 to {}, the vocabulary", g.name, id,
           rules.vocabulary - 1);
  return g;
}

bool is_end(token_id id, const models::model_config& c) {
  return std::find(c.end_of_sequence.begin(), c.end_of_sequence.end(), id) !=
         c.end_of_sequence.end();
}

std::string id_text(const std::vector<token_id>& ids) {
  std::string text;
  for (const token_id id : ids) text += fmt::format("{}{}", text.empty() ? "" : " ", id);
  return text;
}

/// What follows the prompt, without the token that ends it.
std::string sample_text(std::vector<token_id> ids, const models::model_config& c) {
  if (!ids.empty() && is_end(ids.back(), c)) ids.pop_back();
  return models::byte_text(ids);
}

int run_generate(const generate_options& o) {
  trace_file trace(o.machine.trace);
  text_output out(o.out);
  const process_memory memory(o.machine.memory);
  const loaded_model loaded(o.model, models::parameter_use::forward, o.machine, *memory.budget);
  const models::group prompt = prompt_of(o, loaded.files);
  actors::runtime_options options = o.machine.runtime();
  options.trace_file = trace.partial();
  actors::runtime runtime(std::move(options), loaded.model, memory.budget);

  actors::generate_settings s;
  s.sampling = {o.temperature, o.top_p, o.top_k};
  s.samples = o.samples;
  s.max_tokens = o.max_tokens;
  s.seed = static_cast<std::uint64_t>(o.seed);
  s.stop_at_end_of_sequence = !o.ignore_end;
  const auto outcome = runtime.generate(prompt, s);
  runtime.close_timeline();
  progress_bar().clear();

  const bool as_text = !loaded.files.has_tokenizer();
  index tokens = 0;
  for (std::size_t n = 0; n < outcome.samples.size(); ++n) {
    const auto& ids = outcome.samples[n];
    tokens += static_cast<index>(ids.size());
    if (o.as_json) {
      json line = {{"sample", n},
                   {"ids", ids},
                   {"finished", !ids.empty() && is_end(ids.back(), loaded.files.config())}};
      if (as_text) line["text"] = sample_text(ids, loaded.files.config());
      out.write(line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
      continue;
    }
    if (outcome.samples.size() > 1) out.write(fmt::format("--- sample {}\n", n));
    out.write((as_text && !o.as_ids ? sample_text(ids, loaded.files.config()) : id_text(ids)) +
              "\n");
  }
  out.finish();
  trace.publish();
  progress_bar().line(
      fmt::format("{} prompt tokens captured in {:.4f} s, {} tokens generated in {:.4f} s",
                  prompt.prompt.size(), outcome.seconds.capture, tokens, outcome.seconds.decode));
  return 0;
}

}  // namespace

void add_generate(command_line& line) {
  const auto o = std::make_shared<generate_options>();
  options opts = line.command("generate", "Continue a prompt: one capture, any number of samples.",
                              [o] { return run_generate(*o); });
  constexpr index most = index{1} << 40;
  opts.section("Files");
  opts.path("--model", o->model, "checkpoint folder", need::required);
  opts.text("--prompt", o->prompt, "prompt as text; its bytes are the tokens");
  opts.path("--prompt-file", o->prompt_file, "file whose bytes are the prompt");
  opts.text("--prompt-ids", o->prompt_ids, "prompt as token ids: \"17 4 99\"");
  opts.path("--data", o->data,
            "JSON lines or batch.safetensors; the prompt of --group is continued");
  opts.whole("--group", o->group, 0, most, "which group of --data, from 0");
  opts.path("--out", o->out, "file for the samples; without it they go to stdout");
  opts.section("Sampling");
  opts.whole("--num", o->samples, 1, 1 << 20, "samples");
  opts.whole("--max-tokens", o->max_tokens, 1, most, "longest sample");
  opts.number("--temperature", o->temperature, not_negative,
              "divides the logits; 0: the likeliest token, always");
  opts.number("--top-p", o->top_p, limits{0.0, 1.0, true},
              "keep the fewest likeliest tokens that reach this probability");
  opts.whole("--top-k", o->top_k, 0, most, "keep that many likeliest tokens; 0: all");
  opts.whole("--seed", o->seed, 0, std::numeric_limits<index>::max(), "same seed, same samples");
  opts.toggle("--ignore-end", o->ignore_end, "go on after an end-of-sequence token");
  opts.section("Output");
  opts.toggle("--json", o->as_json, "a JSON line a sample: sample, ids, finished, text");
  opts.toggle("--ids", o->as_ids, "print token ids instead of text");
  o->machine.declare(opts, machine_options::ranks_allowed::one);
}

}  // namespace longstraw::program
