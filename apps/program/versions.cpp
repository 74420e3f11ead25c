#include "versions.hpp"

#include <CLI/Version.hpp>
#include <fmt/format.h>
#include <nlohmann/detail/abi_macros.hpp>
#include <spdlog/version.h>

namespace longstraw::program {
namespace {

std::string compiler() {
#if defined(__clang__)
  return fmt::format("clang {}", __clang_version__);
#else
  return fmt::format("gcc {}", __VERSION__);
#endif
}

}  // namespace

std::vector<std::pair<std::string, std::string>> versions() {
  return {
      {"longstraw", LONGSTRAW_VERSION},
      {"compiler", compiler()},
      {"target", LONGSTRAW_MARCH},
      {"build", LONGSTRAW_BUILD_TYPE},
      {"caf", LONGSTRAW_CAF_VERSION},
      {"onednn", LONGSTRAW_ONEDNN_VERSION},
      {"spdlog", fmt::format("{}.{}.{}", SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH)},
      {"nlohmann_json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR,
                                    NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"cli11", CLI11_VERSION},
      {"fmt",
       fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
  };
}

std::string version_lines() {
  std::string text;
  for (const auto& [name, version] : versions())
    text += fmt::format("{}{} {}", text.empty() ? "" : "\n", name, version);
  return text;
}

}  // namespace longstraw::program
