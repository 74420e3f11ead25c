#pragma once
// What this program was built from: for --version and for reports.

#include <string>
#include <utility>
#include <vector>

namespace longstraw::program {

/// Name and version: longstraw, compiler, target, build, caf, onednn, json, cli11, fmt.
std::vector<std::pair<std::string, std::string>> versions();
/// The same as text, a line each.
std::string version_lines();

}  // namespace longstraw::program
