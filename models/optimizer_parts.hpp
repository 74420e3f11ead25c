#pragma once
// The optimizer's state on disk, one part a rank: each holds the run of the flat parameter layout
// that falls to its rank, and any number of ranks can read it back.
//
//   optimizer-00002-of-00004.safetensors, all F32:
//     first_moment.NAME, second_moment.NAME        a parameter that lies wholly in the part, with its shape
//     first_moment.NAME[100:164], ...              the elements 100 .. 163 of one that the border of two parts cuts
//     master.NAME, master.NAME[100:164]            weights in float32, if the checkpoint beside holds them rounded

#include <longstraw/models/layer_program.hpp>
#include <longstraw/models/parameters.hpp>
#include <longstraw/models/safetensors.hpp>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace longstraw::models {

/// One rank's arrays of its range; `master` is empty if weights are not part of it.
struct optimizer_shard {
  token_range range;  ///< places in the flat parameter layout
  std::span<float> first_moment, second_moment, master;
};
/// A range of a store that has all of it.
optimizer_shard shard_in(const parameter_store& store, token_range range, bool with_master);

/// "optimizer-00002-of-00004.safetensors" for rank 1 of 4.
std::string optimizer_part_name(const rank_share& at);
bool is_optimizer_part(const std::string& file_name);

/// Writes and syncs the part of that rank; `shard.range` is at.part(layout.total()).
/// errc::io_failed.
void write_optimizer_part(const std::filesystem::path& folder, const parameter_layout& layout,
                          const optimizer_shard& shard, const rank_share& at);

/// The parts of all ranks that saved, opened to be read by any number of ranks.
class optimizer_parts {
 public:
  /// errc::bad_input names a part or tensor that is missing or is not what the layout expects.
  optimizer_parts(const std::filesystem::path& folder, const parameter_layout& layout, index ranks);

  /// Fills the arrays of `shard`, whatever its range, with the bits that were written.
  void read(const optimizer_shard& shard) const;

 private:
  const parameter_layout& layout_;
  std::vector<safetensors_file> files_;  ///< by rank
};

}  // namespace longstraw::models
