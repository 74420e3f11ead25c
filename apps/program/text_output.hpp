#pragma once
// Lines that go to stdout, or to a file that appears when it is complete.

#include <longstraw/models/files.hpp>

#include <filesystem>
#include <string>

namespace longstraw::program {

class text_output {
 public:
  /// An empty path means stdout.
  explicit text_output(const std::filesystem::path& target);
  ~text_output();
  text_output(const text_output&) = delete;
  text_output& operator=(const text_output&) = delete;

  /// errc::io_failed names the file.
  void write(const std::string& text);
  void finish();

 private:
  const std::filesystem::path target_;
  std::filesystem::path partial_;
  models::descriptor file_;
};

}  // namespace longstraw::program
