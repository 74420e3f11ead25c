#pragma once
// Which group comes when. The order of an epoch follows from seed and epoch alone, so a run that
// goes on from a saved step needs no other random state.

#include <longstraw/memory/view.hpp>

#include <cstdint>
#include <vector>

namespace longstraw::program {

class data_order {
 public:
  data_order(index groups, bool shuffle, std::uint64_t seed)
      : groups_(groups), shuffle_(shuffle), seed_(seed) {}

  index epoch_of(index position) const { return position / groups_; }
  /// The group at that position of the run, from 0.
  index group_at(index position);

 private:
  const index groups_;
  const bool shuffle_;
  const std::uint64_t seed_;
  index epoch_ = -1;
  std::vector<index> order_;  ///< of epoch_
};

}  // namespace longstraw::program
