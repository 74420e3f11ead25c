#pragma once
// Random weights for comparisons: of a size that lets every parameter matter to the loss, which the
// small weights that training starts from do not.

#include <longstraw/models/config.hpp>
#include <longstraw/models/parameters.hpp>

#include <cstdint>
#include <span>

namespace longstraw::models::reference {

/// weights [layout.total()] written. dt_bias is such that the recurrent state remembers. Same seed
/// and standard library, same bits.
void fill_random(std::span<float> weights, const model_config& config,
                 const parameter_layout& layout, std::uint64_t seed);

}  // namespace longstraw::models::reference
