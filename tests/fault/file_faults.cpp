// A library to be loaded in front of libc (LD_PRELOAD): counts the calls by which a process changes
// files below one folder, and at the n-th of them ends the process or lets the call fail. Steered
// by the environment:
//
//   FILE_FAULTS_UNDER   the folder, absolute
//   FILE_FAULTS_AT      n, from 1
//   FILE_FAULTS_KIND    kill-before    SIGKILL instead of the call
//                       kill-within    SIGKILL after half of a write's bytes, after any other call
//                       EIO            this call fails, once
//                       ENOSPC         a full disk: a write is cut short, and from then on every call that needs room
//                                      fails
//   FILE_FAULTS_LOG     a file to which every counted call is added: "CALL PATH[ PATH]", for a write also the first
//                       bytes; a line "fault" when the fault happens

#include <climits>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

enum class fault_kind { none, kill_before, kill_within, io_error, no_space };
enum class needs { room, nothing };

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

struct plan {
  std::string under = variable("FILE_FAULTS_UNDER") + "/";
  long at = std::atol(variable("FILE_FAULTS_AT").c_str());
  fault_kind kind = read_kind(variable("FILE_FAULTS_KIND"));
  int log = -1;
  std::atomic<long> calls{0};
  std::atomic<bool> full{false};

  plan() {
    if (const std::string file = variable("FILE_FAULTS_LOG"); !file.empty())
      log = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, file.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }
  static fault_kind read_kind(const std::string& name) {
    if (name == "kill-before") return fault_kind::kill_before;
    if (name == "kill-within") return fault_kind::kill_within;
    if (name == "EIO") return fault_kind::io_error;
    if (name == "ENOSPC") return fault_kind::no_space;
    return fault_kind::none;
  }
  void note(const std::string& line) const {
    const std::string whole = line + "\n";
    if (log >= 0) ::syscall(SYS_write, log, whole.data(), whole.size());
  }
};

plan& the_plan() {
  static plan p;
  return p;
}

[[noreturn]] void end_process() {
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

std::string path_of(int fd) {
  char name[PATH_MAX];
  const ssize_t n = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof name);
  return n < 0 ? "" : std::string(name, static_cast<std::size_t>(n));
}

std::string path_at(int folder, const char* path) {
  if (path[0] == '/') return path;
  char here[PATH_MAX];
  const std::string base = folder != AT_FDCWD            ? path_of(folder)
                           : ::getcwd(here, sizeof here) ? std::string(here)
                                                         : std::string();
  return base + "/" + path;
}

/// One call: counted on construction, where the process may end or the call be told to fail.
class call {
 public:
  call(const char* name, const std::string& path, needs n, const std::string& more = "") {
    plan& p = the_plan();
    if (!path.starts_with(p.under)) return;
    p.note(std::string(name) + " " + path + (more.empty() ? "" : " " + more));
    if (p.full && n == needs::room) error_ = ENOSPC;
    if (++p.calls != p.at || p.kind == fault_kind::none) return;
    p.note("fault");
    if (p.kind == fault_kind::kill_before) end_process();
    if (p.kind == fault_kind::io_error) error_ = EIO;
    if (p.kind == fault_kind::no_space) {
      p.full = true;
      if (n == needs::room) error_ = ENOSPC;
    }
    here_ = true;
  }

  int error() const { return error_; }
  bool kills() const { return here_ && the_plan().kind == fault_kind::kill_within; }
  /// A write moves only half of its bytes.
  bool halves() const { return here_ && (kills() || the_plan().kind == fault_kind::no_space); }

  template <class Run>
  auto around(Run&& run) const -> decltype(run()) {
    if (error_ != 0) {
      errno = error_;
      return static_cast<decltype(run())>(-1);
    }
    const auto result = run();
    if (kills()) end_process();
    return result;
  }

  template <class Run>
  ssize_t around_write(std::size_t bytes, Run&& run) const {
    if (halves() && bytes > 1) {
      const ssize_t done = run(bytes / 2);
      if (kills()) end_process();
      return done;
    }
    return around([&] { return run(bytes); });
  }

 private:
  int error_ = 0;
  bool here_ = false;
};

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static const auto real = next<decltype(&::name)>(#name)

std::string beginning(const void* data, std::size_t bytes) {
  std::string text(static_cast<const char*>(data), bytes < 40 ? bytes : 40);
  for (char& c : text)
    if (c < 0x20 || c > 0x7e) c = '.';
  return text;
}

bool creates(int flags) { return (flags & (O_CREAT | O_TRUNC)) != 0; }

mode_t mode_in(int flags, va_list& arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

ssize_t write(int fd, const void* data, size_t bytes) {
  NEXT(write);
  return call("write", path_of(fd), needs::room, beginning(data, bytes))
      .around_write(bytes, [&](size_t n) { return real(fd, data, n); });
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  NEXT(pwrite);
  return call("write", path_of(fd), needs::room, beginning(data, bytes))
      .around_write(bytes, [&](size_t n) { return real(fd, data, n, at); });
}

ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
  NEXT(pwrite64);
  return call("write", path_of(fd), needs::room, beginning(data, bytes))
      .around_write(bytes, [&](size_t n) { return real(fd, data, n, at); });
}

ssize_t writev(int fd, const iovec* parts, int count) {
  NEXT(writev);
  return call("write", path_of(fd), needs::room).around([&] { return real(fd, parts, count); });
}

ssize_t sendfile(int to, int from, off_t* at, size_t bytes) {
  using function = ssize_t (*)(int, int, off_t*, size_t);
  static const auto real = next<function>("sendfile");
  return call("write", path_of(to), needs::room).around_write(bytes, [&](size_t n) {
    return real(to, from, at, n);
  });
}

ssize_t copy_file_range(int from, off64_t* from_at, int to, off64_t* to_at, size_t bytes,
                        unsigned flags) {
  NEXT(copy_file_range);
  return call("write", path_of(to), needs::room).around_write(bytes, [&](size_t n) {
    return real(from, from_at, to, to_at, n, flags);
  });
}

int fsync(int fd) {
  NEXT(fsync);
  return call("fsync", path_of(fd), needs::nothing).around([&] { return real(fd); });
}

int fdatasync(int fd) {
  NEXT(fdatasync);
  return call("fsync", path_of(fd), needs::nothing).around([&] { return real(fd); });
}

int ftruncate(int fd, off_t bytes) noexcept {
  NEXT(ftruncate);
  return call("truncate", path_of(fd), needs::nothing).around([&] { return real(fd, bytes); });
}

int ftruncate64(int fd, off64_t bytes) noexcept {
  NEXT(ftruncate64);
  return call("truncate", path_of(fd), needs::nothing).around([&] { return real(fd, bytes); });
}

int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  return call("rename", path_at(AT_FDCWD, from), needs::nothing, path_at(AT_FDCWD, to)).around([&] {
    return real(from, to);
  });
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  NEXT(renameat);
  return call("rename", path_at(from_folder, from), needs::nothing, path_at(to_folder, to))
      .around([&] { return real(from_folder, from, to_folder, to); });
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  NEXT(renameat2);
  const char* const name = (flags & RENAME_EXCHANGE) != 0 ? "exchange" : "rename";
  return call(name, path_at(from_folder, from), needs::nothing, path_at(to_folder, to)).around([&] {
    return real(from_folder, from, to_folder, to, flags);
  });
}

int unlink(const char* path) noexcept {
  NEXT(unlink);
  return call("unlink", path_at(AT_FDCWD, path), needs::nothing).around([&] { return real(path); });
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  return call("unlink", path_at(folder, path), needs::nothing).around([&] {
    return real(folder, path, flags);
  });
}

int remove(const char* path) noexcept {
  NEXT(remove);
  return call("unlink", path_at(AT_FDCWD, path), needs::nothing).around([&] { return real(path); });
}

int rmdir(const char* path) noexcept {
  NEXT(rmdir);
  return call("unlink", path_at(AT_FDCWD, path), needs::nothing).around([&] { return real(path); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  return call("create", path_at(AT_FDCWD, path), needs::room).around([&] {
    return real(path, mode);
  });
}

int open(const char* path, int flags, ...) {
  NEXT(open);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  if (!creates(flags)) return real(path, flags);
  return call("create", path_at(AT_FDCWD, path), needs::room).around([&] {
    return real(path, flags, mode);
  });
}

int open64(const char* path, int flags, ...) {
  NEXT(open64);
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_in(flags, arguments);
  va_end(arguments);
  if (!creates(flags)) return real(path, flags);
  return call("create", path_at(AT_FDCWD, path), needs::room).around([&] {
    return real(path, flags, mode);
  });
}

}  // extern "C"
