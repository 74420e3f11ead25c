// Two steps in a row against two steps with a restart between them, which goes through the files of
// a training run: saved by one object, resumed by another into a store that held something else.

#include "bounds.hpp"
#include "claims.hpp"
#include "compare.hpp"
#include "train_state.hpp"

#include <longstraw/models/files.hpp>
#include <longstraw/models/safetensors.hpp>

#include <bit>
#include <cerrno>
#include <cstdlib>

namespace longstraw::audit {
namespace {

namespace fs = std::filesystem;

struct temporary_folder {
  fs::path path;
  temporary_folder() {
    std::string name = (fs::temp_directory_path() / "longstraw-audit-XXXXXX").string();
    if (!::mkdtemp(name.data()))
      fail(errc::io_failed, "{} cannot be created: {}", name, models::system_reason(errno));
    path = name;
  }
  ~temporary_folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
};

/// All that a run needs to go on.
struct named_values {
  const char* name;
  std::span<float> values;
};
std::vector<named_values> state_of(const trainer& t) {
  return {{"weights", t.parameters().weights()},
          {"first moments", t.parameters().first_moments()},
          {"second moments", t.parameters().second_moments()}};
}

/// A checkpoint with the subject's weights in bfloat16: what a run trains, and its saves have the
/// same dtype. The float32 weights are then in the optimizer's parts.
models::checkpoint write_origin(const fs::path& folder, const subject& s) {
  fs::create_directory(folder);
  const fs::path file = folder / "config.json";
  models::write_all(models::open_for_writing(file).get(), file, s.config_text);
  std::vector<models::tensor_source> tensors;
  for (const models::parameter& p : s.layout.all())
    tensors.push_back(models::from_floats(p.name, p.shape, part_of(std::span(s.weights), p),
                                          models::dtype::bf16));
  models::write_safetensors(folder / "model.safetensors", tensors);
  return models::checkpoint(folder);
}

/// A run as `longstraw train` has one; what it must share with a continued one matters only there.
program::train_folder open_run(const fs::path& folder, const subject& s) {
  return {folder, {{"model", s.name}}};
}

double different_bits(std::span<const float> got, std::span<const float> want) {
  check_count(got.size(), want.size());
  double different = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    different += std::bit_cast<std::uint32_t>(want[i]) != std::bit_cast<std::uint32_t>(got[i]);
  return different;
}

}  // namespace

void measure_restart(const column& c, const models::group& g,
                     const std::function<void(const fs::path&)>& between) {
  cell& here = c.at(claim::restart_equivalence);
  attempt(here, [&] {
    const auto step = [&](index number) { return audit_step(c.how.gradient, number); };
    trainer straight(*c.model, c.how);
    straight.step(g, step(1));
    straight.step(g, step(2));

    const temporary_folder folder;
    const fs::path run = folder.path / "run";
    {
      const models::checkpoint files = write_origin(folder.path / "model", *c.model);
      trainer before(*c.model, c.how);
      program::train_folder to = open_run(run, *c.model);
      to.begin({}, 1);
      before.step(g, step(1));
      program::run_position at;
      at.step = at.optimizer_steps = at.moment_steps = 1;
      // As many parts as another number of ranks would write.
      to.save(at, files, before.parameters(), c.how.ranks + 1, 1);
    }
    if (between) between(run);
    trainer after(*c.model, c.how);
    const auto at =
        open_run(run, *c.model).resume(after.parameters(), program::damaged_moments::refuse);
    if (!at) fail(errc::internal, "the run that was saved holds no save");
    after.step(g, step(at->moment_steps + 1));

    const auto want = state_of(straight), got = state_of(after);
    for (std::size_t n = 0; n < want.size(); ++n)
      here.measure({fmt::format("{} with other bits", want[n].name),
                    different_bits(got[n].values, want[n].values), different_values, want[n].name});
  });
}

}  // namespace longstraw::audit
