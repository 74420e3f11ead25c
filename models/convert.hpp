#pragma once
// Number formats on disk and floats in memory. Widening is exact; narrowing rounds to nearest even,
// and a NaN stays a NaN with the payload bits that fit. Plain loops without branches, for the
// compiler to vectorise.

#include <cstdint>
#include <span>

namespace longstraw::models {

void widen_bf16(std::span<float> out, std::span<const std::uint16_t> in);
void widen_f16(std::span<float> out, std::span<const std::uint16_t> in);
void narrow_bf16(std::span<std::uint16_t> out, std::span<const float> in);
void narrow_f16(std::span<std::uint16_t> out, std::span<const float> in);

}  // namespace longstraw::models
