// Two steps in a row against two steps with a restart between them.

#include "bounds.hpp"
#include "claims.hpp"

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

void write_state(const fs::path& file, const trainer& t) {
  std::vector<models::tensor_source> tensors;
  for (const auto& [name, values] : state_of(t))
    tensors.push_back(models::from_floats(name, {static_cast<index>(values.size())}, values));
  models::write_safetensors(file, tensors);
}

void read_state(const fs::path& file, const trainer& t) {
  const models::safetensors_file from(file);
  for (const auto& [name, values] : state_of(t)) from.read_floats(name, values);
}

}  // namespace

void measure_restart(const column& c, const models::group& g) {
  cell& here = c.at(claim::restart_equivalence);
  attempt(here, [&] {
    const actors::step_settings first = audit_step(c.how.gradient, 1),
                                second = audit_step(c.how.gradient, 2);
    trainer straight(*c.model, c.how);
    straight.step(g, first);
    const temporary_folder folder;
    const fs::path file = folder.path / "state.safetensors";
    {
      trainer before(*c.model, c.how);
      before.step(g, first);
      write_state(file, before);
    }
    straight.step(g, second);
    trainer after(*c.model, c.how);
    read_state(file, after);
    after.step(g, second);

    const auto want = state_of(straight), got = state_of(after);
    for (std::size_t n = 0; n < want.size(); ++n) {
      double different = 0;
      for (std::size_t i = 0; i < want[n].values.size(); ++i)
        different += std::bit_cast<std::uint32_t>(want[n].values[i]) !=
                     std::bit_cast<std::uint32_t>(got[n].values[i]);
      here.measure({fmt::format("{} with other bits", want[n].name), different, different_values,
                    want[n].name});
    }
  });
}

}  // namespace longstraw::audit
