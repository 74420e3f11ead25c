#include <longstraw/models/files.hpp>
#include <longstraw/models/replace.hpp>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fcntl.h>
#include <system_error>
#include <unistd.h>

namespace longstraw::models {
namespace {

namespace fs = std::filesystem;

/// The path that really changes: a link to a folder stays a link, and its folder is replaced.
fs::path resolved(const fs::path& target) {
  std::error_code failure;
  fs::path path = fs::weakly_canonical(fs::absolute(target), failure);
  if (failure || path.empty()) path = fs::absolute(target);
  if (path.filename().empty()) path = path.parent_path();
  return path;
}

/// A hidden name beside `target` that no other writer of this machine uses.
fs::path sibling(const fs::path& target, const char* what) {
  static std::atomic<unsigned> uses{0};
  return target.parent_path() / fmt::format(".{}.{}-{}-{}", target.filename().string(), what,
                                            ::getpid(), uses.fetch_add(1));
}

void make_parents(const fs::path& target) {
  std::error_code failure;
  fs::create_directories(target.parent_path(), failure);
  if (failure)
    fail(errc::io_failed, "{} cannot be created: {}", target.parent_path().string(),
         failure.message());
}

/// Removed on every way out.
struct temporary_path {
  fs::path path;
  ~temporary_path() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
};

/// What processes that have ended left beside `target`, half-written or moved out of the way.
void remove_leftovers(const fs::path& target) {
  std::error_code ignored;
  const std::string hidden = "." + target.filename().string() + ".";
  for (const auto& entry : fs::directory_iterator(target.parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    for (const std::string kind : {"partial-", "older-"}) {
      if (!name.starts_with(hidden + kind)) continue;
      const std::string rest = name.substr(hidden.size() + kind.size());
      const std::size_t digits = rest.find_first_not_of("0123456789");
      if (digits == 0 || digits > 9 || rest[digits == std::string::npos ? 0 : digits] != '-')
        continue;
      const pid_t writer = std::stoi(rest.substr(0, digits));
      if (::kill(writer, 0) != 0 && errno == ESRCH) fs::remove_all(entry.path(), ignored);
    }
  }
}

void sync_tree(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_directory()) {
      sync_folder(entry.path());
    } else if (entry.is_regular_file() && !entry.is_symlink()) {
      const descriptor file = open_for_reading(entry.path());
      sync_file(file.get(), entry.path());
    }
  }
  sync_folder(folder);
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno == ENOTEMPTY || errno == EEXIST)
    fail(errc::io_failed, "{} was made by another process meanwhile and is not replaced",
         to.string());
  fail(errc::io_failed, "{} cannot be renamed to {}: {}", from.string(), to.string(),
       system_reason(errno));
}

/// Puts `fresh` in the place of the existing `target`; afterwards `fresh.path` names the older
/// folder.
void exchange(temporary_path& fresh, const fs::path& target) {
  if (::renameat2(AT_FDCWD, fresh.path.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0)
    return;
  if (errno != EINVAL && errno != ENOSYS)
    fail(errc::io_failed, "{} cannot be replaced: {}", target.string(), system_reason(errno));
  const fs::path older = sibling(target, "older");
  rename_or_fail(target, older);
  try {
    rename_or_fail(fresh.path, target);
  } catch (...) {
    ::rename(older.c_str(), target.c_str());
    throw;
  }
  fresh.path = older;
}

}  // namespace

void replace_folder(const fs::path& named, const std::function<void(const fs::path&)>& fill) {
  const fs::path target = resolved(named);
  make_parents(target);
  std::error_code ignored;
  const bool exists = fs::exists(fs::symlink_status(target, ignored));
  if (exists && !fs::is_directory(target, ignored))
    fail(errc::io_failed, "{} is not a folder; it is not replaced by one", target.string());

  remove_leftovers(target);
  temporary_path fresh{sibling(target, "partial")};
  fs::remove_all(fresh.path, ignored);
  std::error_code failure;
  if (!fs::create_directory(fresh.path, failure) || failure)
    fail(errc::io_failed, "{} cannot be created: {}", fresh.path.string(), failure.message());
  try {
    fill(fresh.path);
    sync_tree(fresh.path);
  } catch (const fs::filesystem_error& e) {
    fail(errc::io_failed, "{} cannot be written: {}", e.path1().string(), e.code().message());
  }
  if (exists) {
    exchange(fresh, target);
  } else {
    rename_or_fail(fresh.path, target);
    fresh.path.clear();
  }
  sync_folder(target.parent_path());
}

void replace_file(const fs::path& named, const std::string& text) {
  const fs::path target = resolved(named);
  make_parents(target);
  temporary_path fresh{sibling(target, "partial")};
  {
    const descriptor file = open_for_writing(fresh.path);
    write_all(file.get(), fresh.path, text);
    sync_file(file.get(), fresh.path);
  }
  rename_or_fail(fresh.path, target);
  fresh.path.clear();
  sync_folder(target.parent_path());
}

}  // namespace longstraw::models
