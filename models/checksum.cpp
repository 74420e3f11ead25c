#include <longstraw/models/checksum.hpp>
#include <longstraw/models/files.hpp>

// The whole library from its header: the installed package then needs no other one.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace longstraw::models {
namespace {
std::string digits(XXH64_hash_t hash) { return fmt::format("{:016x}", hash); }
}  // namespace

std::string checksum_of(std::string_view text) {
  return digits(XXH3_64bits(text.data(), text.size()));
}

std::string checksum_of(std::span<const float> values) {
  return digits(XXH3_64bits(values.data(), values.size_bytes()));
}

std::string checksum_of_file(const std::filesystem::path& path) {
  constexpr std::uint64_t block_bytes = 1 << 20;
  const descriptor file = open_for_reading(path);
  const std::uint64_t bytes = size_of(file.get(), path);
  std::vector<std::byte> block(static_cast<std::size_t>(std::min(bytes, block_bytes)));
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (std::uint64_t at = 0; at < bytes; at += block_bytes) {
    const auto part =
        std::span(block).first(static_cast<std::size_t>(std::min(block_bytes, bytes - at)));
    read_exactly(file.get(), path, at, part);
    XXH3_64bits_update(state.get(), part.data(), part.size());
  }
  return digits(XXH3_64bits_digest(state.get()));
}

}  // namespace longstraw::models
