#pragma once
// The system calls that checkpoint and data files need, each turned into one sentence when it
// fails: open for reading, read at an offset, read a small text whole, write, sync.

#include <longstraw/memory/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace longstraw::models {

/// The system's words for an errno value.
std::string system_reason(int error_number);

/// A file descriptor that is closed on destruction.
class descriptor {
 public:
  descriptor() = default;
  explicit descriptor(int fd) : fd_(fd) {}
  ~descriptor() { close(); }
  descriptor(descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  descriptor& operator=(descriptor&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  void close() noexcept;
  int fd_ = -1;
};

/// Opens a regular file. errc::io_failed if it cannot be opened, errc::bad_input if it is a folder,
/// pipe or device.
descriptor open_for_reading(const std::filesystem::path& path);
std::uint64_t size_of(int fd, const std::filesystem::path& path);

/// Fills `out` from that offset. errc::io_failed if the file ends before.
void read_exactly(int fd, const std::filesystem::path& path, std::uint64_t offset,
                  std::span<std::byte> out);

/// The whole of a file that must not be longer than `limit_bytes` (errc::bad_input: it is read into
/// memory).
std::string read_text(const std::filesystem::path& path, std::uint64_t limit_bytes);

/// Writes all of `bytes` at the current position. errc::io_failed.
void write_all(int fd, const std::filesystem::path& path, std::span<const std::byte> bytes);
void write_all(int fd, const std::filesystem::path& path, std::string_view text);

/// Creates or empties a file. errc::io_failed.
descriptor open_for_writing(const std::filesystem::path& path);
void sync_file(int fd, const std::filesystem::path& path);
/// Makes the names in a folder durable.
void sync_folder(const std::filesystem::path& folder);

}  // namespace longstraw::models
