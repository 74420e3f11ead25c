// longstraw new-model: a random checkpoint of a known size, or of a config.json of one's own.

#include "commands.hpp"
#include "output.hpp"
#include "progress.hpp"

#include <longstraw/models/checkpoint.hpp>
#include <longstraw/models/files.hpp>

namespace longstraw::program {
namespace {

constexpr std::uint64_t config_bytes_max = std::uint64_t{16} << 20;

struct new_model_options {
  std::string size;
  std::filesystem::path config, out;
  index seed = 0;
};

/// Weights that took someone's training or download are never replaced by random ones: nothing is.
void check_empty(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored) && !std::filesystem::is_empty(folder, ignored))
    fail(errc::bad_input, "--out {} holds files and is not replaced; give another folder",
         folder.string());
}

int run_new_model(const new_model_options& o) {
  if (o.size.empty() == o.config.empty())
    throw usage_error("one of --size and --model-config is required, and not both");
  check_output_folder(o.out, "config.json");
  check_empty(o.out);
  const std::string config = o.size.empty() ? models::read_text(o.config, config_bytes_max)
                                            : models::preset_config(o.size);
  models::write_random_checkpoint(o.out, config, static_cast<std::uint64_t>(o.seed));
  const models::checkpoint made(o.out);
  progress_bar().line(fmt::format("{}: {} layers, {} parameters, vocabulary {}", o.out.string(),
                                  made.config().layer_count(), made.layout().parameter_count(),
                                  made.config().vocabulary));
  return 0;
}

std::string size_list() {
  std::string all;
  for (const std::string& name : models::preset_names()) all += (all.empty() ? "" : ", ") + name;
  return all;
}

}  // namespace

void add_new_model(command_line& line) {
  const auto o = std::make_shared<new_model_options>();
  options opts =
      line.command("new-model", "Write a randomly initialised checkpoint. Same seed, same bits.",
                   [o] { return run_new_model(*o); });
  opts.text("--size", o->size, "one of " + size_list());
  opts.path("--model-config", o->config, "a config.json to initialise instead");
  opts.path("--out", o->out, "folder of the new checkpoint", need::required);
  opts.whole("--seed", o->seed, 0, std::numeric_limits<index>::max(), "seed of the random weights");
}

}  // namespace longstraw::program
