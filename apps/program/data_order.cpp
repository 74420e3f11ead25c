#include "data_order.hpp"

#include <numeric>
#include <utility>

namespace longstraw::program {
namespace {

/// SplitMix64 (Steele, Lea, Flood 2014). Spelled out: the standard library's shuffle may differ
/// between implementations, and a resumed run must not.
std::uint64_t next_random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

index data_order::group_at(index position) {
  const index epoch = epoch_of(position);
  const auto within = static_cast<std::size_t>(position - epoch * groups_);
  if (!shuffle_) return static_cast<index>(within);
  if (epoch != epoch_) {
    epoch_ = epoch;
    order_.resize(static_cast<std::size_t>(groups_));
    std::iota(order_.begin(), order_.end(), index{0});
    std::uint64_t state = seed_;
    state = next_random(state) + static_cast<std::uint64_t>(epoch);
    for (std::size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[next_random(state) % i]);
  }
  return order_[within];
}

}  // namespace longstraw::program
