#include <longstraw/models/files.hpp>

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

namespace longstraw::models {
namespace {
// One call moves at most about 2 GiB on Linux; smaller blocks let a signal end the work soon.
constexpr std::size_t block_bytes_max = std::size_t{1} << 28;
}  // namespace

std::string system_reason(int error_number) {
  return std::generic_category().message(error_number);
}

void descriptor::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

descriptor open_for_reading(const std::filesystem::path& path) {
  // Without O_NONBLOCK the open of a pipe would wait for its writer.
  descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0)
    fail(errc::io_failed, "{} cannot be opened: {}", path.string(), system_reason(errno));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0)
    fail(errc::io_failed, "{} cannot be examined: {}", path.string(), system_reason(errno));
  if (!S_ISREG(info.st_mode))
    fail(errc::bad_input, "{} is {}; expected a regular file", path.string(),
         S_ISDIR(info.st_mode) ? "a folder" : "not a regular file");
  return file;
}

std::uint64_t size_of(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    fail(errc::io_failed, "{} cannot be examined: {}", path.string(), system_reason(errno));
  return static_cast<std::uint64_t>(info.st_size);
}

void read_exactly(int fd, const std::filesystem::path& path, std::uint64_t offset,
                  std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got =
        ::pread(fd, out.data(), std::min(out.size(), block_bytes_max), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      fail(errc::io_failed, "{} cannot be read at byte {}: {}", path.string(), offset,
           system_reason(errno));
    if (got == 0)
      fail(errc::io_failed, "{} ends at byte {}; {} more bytes were expected", path.string(),
           offset, out.size());
    offset += static_cast<std::uint64_t>(got);
    out = out.subspan(static_cast<std::size_t>(got));
  }
}

std::string read_text(const std::filesystem::path& path, std::uint64_t limit_bytes) {
  const descriptor file = open_for_reading(path);
  const std::uint64_t bytes = size_of(file.get(), path);
  if (bytes > limit_bytes)
    fail(errc::bad_input, "{} has {} bytes; expected at most {}", path.string(), bytes,
         limit_bytes);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  read_exactly(file.get(), path, 0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_all(int fd, const std::filesystem::path& path, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), std::min(bytes.size(), block_bytes_max));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      fail(errc::io_failed, "{} cannot be written: {}", path.string(),
           system_reason(done < 0 ? errno : ENOSPC));
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
}

void write_all(int fd, const std::filesystem::path& path, std::string_view text) {
  write_all(fd, path, std::as_bytes(std::span(text)));
}

descriptor open_for_writing(const std::filesystem::path& path) {
  descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0)
    fail(errc::io_failed, "{} cannot be created: {}", path.string(), system_reason(errno));
  return file;
}

void sync_file(int fd, const std::filesystem::path& path) {
  if (::fsync(fd) != 0)
    fail(errc::io_failed, "{} cannot be synced to disk: {}", path.string(), system_reason(errno));
}

void sync_folder(const std::filesystem::path& folder) {
  const std::filesystem::path named = folder.empty() ? std::filesystem::path(".") : folder;
  descriptor opened(::open(named.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (opened.get() < 0)
    fail(errc::io_failed, "{} cannot be opened: {}", named.string(), system_reason(errno));
  // Some file systems cannot sync a folder and say EINVAL; there a rename is as durable as it gets.
  if (::fsync(opened.get()) != 0 && errno != EINVAL)
    fail(errc::io_failed, "{} cannot be synced to disk: {}", named.string(), system_reason(errno));
}

}  // namespace longstraw::models
