#include "output.hpp"

#include <longstraw/models/files.hpp>

#include <cerrno>
#include <cstdlib>
#include <unistd.h>

namespace longstraw::program {

namespace fs = std::filesystem;

namespace {

/// Whether something can really be created: permission bits alone do not tell (read-only file
/// systems, root).
void check_writable(const fs::path& target) {
  std::error_code failure;
  fs::path folder = fs::absolute(target).lexically_normal().parent_path();
  while (!fs::exists(folder, failure) && folder.has_relative_path()) folder = folder.parent_path();
  if (!fs::is_directory(folder, failure))
    fail(errc::io_failed, "{} cannot be created: {} is not a folder", target.string(),
         folder.string());
  std::string probe = (folder / ".longstraw-XXXXXX").string();
  if (!::mkdtemp(probe.data()))
    fail(errc::io_failed, "{} cannot be created in {}: {}", target.string(), folder.string(),
         models::system_reason(errno));
  if (::rmdir(probe.c_str()) != 0)
    fail(errc::io_failed, "{} cannot be removed: {}", probe, models::system_reason(errno));
}

fs::path without_slash(const fs::path& p) {
  const fs::path whole = fs::absolute(p).lexically_normal();
  return whole.filename().empty() ? whole.parent_path() : whole;
}

}  // namespace

void check_output_folder(const fs::path& folder, const std::string& mark) {
  std::error_code failure;
  const fs::path whole = without_slash(folder);
  if (fs::exists(whole, failure)) {
    if (!fs::is_directory(whole, failure))
      fail(errc::bad_input, "--out {} is a file; expected a folder", folder.string());
    if (!fs::is_empty(whole, failure) && !fs::exists(whole / mark, failure))
      fail(errc::bad_input,
           "--out {} holds files but no {}, so it is not an older result and is not replaced; give "
           "another folder",
           folder.string(), mark);
  }
  check_writable(whole);
}

void check_output_file(const fs::path& file, const std::string& flag) {
  std::error_code failure;
  if (fs::is_directory(file, failure))
    fail(errc::bad_input, "{} {} is a folder; expected the name of a file", flag, file.string());
  // Results take their place by a rename, which would replace the device itself.
  if (fs::exists(file, failure) && !fs::is_regular_file(file, failure))
    fail(errc::bad_input, "{} {} is no regular file and is not replaced", flag, file.string());
  check_writable(file);
}

void check_beside_results(const fs::path& file, const std::string& flag, const fs::path& folder,
                          const std::vector<std::string>& written) {
  const fs::path within = inside(file, folder, ".").lexically_normal();
  if (within.empty()) return;
  const std::string first = within.begin()->string();
  for (const std::string& name : written)
    if (first == name || (name.ends_with('-') && first.starts_with(name)))
      fail(errc::bad_input, "{} {} would take the place of {}, which is written into --out {}",
           flag, file.string(), first, folder.string());
}

fs::path inside(const fs::path& file, const fs::path& target, const fs::path& fresh) {
  if (file.empty()) return {};
  const fs::path relative = without_slash(file).lexically_relative(without_slash(target));
  if (relative.empty() || relative == "." || *relative.begin() == "..") return {};
  return fresh / relative;
}

}  // namespace longstraw::program
