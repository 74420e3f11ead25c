#pragma once
// What tests of files share: a folder that disappears, raw safetensors bytes, the golden cases, and
// the sentence of a failure.

#include <longstraw/memory/error.hpp>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace longstraw::testing {

using Catch::Matchers::ContainsSubstring;

class temporary_folder {
 public:
  explicit temporary_folder(
      const std::filesystem::path& in = std::filesystem::temp_directory_path()) {
    std::string name = (in / "longstraw-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::filesystem::path write_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  REQUIRE(file.good());
  return path;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Names in a folder, in order, hidden ones too.
inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// The bytes of a safetensors file with that header text and `data_bytes` zero bytes.
inline std::string safetensors_bytes(const std::string& header, std::size_t data_bytes) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + std::string(data_bytes, '\0');
}

/// The sentence with which `act` fails; the code must be `code`, and it must be one line.
template <class Act>
std::string failure_of(Act&& act, errc code = errc::bad_input) {
  try {
    act();
  } catch (const error& e) {
    const std::string sentence = e.what();
    CHECK(to_string(e.code()) == to_string(code));
    CHECK(sentence.find('\n') == std::string::npos);
    CHECK(sentence.size() < 600);
    return sentence;
  }
  FAIL("this was expected to fail");
  return "";
}

/// The folder of a golden case; the test is skipped where the golden files are not.
inline std::filesystem::path golden(const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(LONGSTRAW_GOLDEN_DIR) / name;
  if (!std::filesystem::is_directory(folder))
    SKIP("there are no golden files at " << folder.string()
                                         << "; set LONGSTRAW_GOLDEN_DIR to their folder");
  return folder;
}

}  // namespace longstraw::testing
