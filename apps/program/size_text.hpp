#pragma once
// Sizes as people write them: 512MiB, 8GiB, 2G, 1.5GB, plain bytes.

#include <cstddef>
#include <optional>
#include <string_view>

namespace longstraw::program {

/// None if the text is no size or does not fit 63 bits. K, M, G, T and KiB, MiB, ... are powers of
/// 1024; KB, MB, ... of 1000. Upper and lower case are the same.
std::optional<std::size_t> parse_size(std::string_view text);

}  // namespace longstraw::program
