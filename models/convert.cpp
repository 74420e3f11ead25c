#include <longstraw/memory/error.hpp>
#include <longstraw/models/convert.hpp>

#include <bit>

namespace longstraw::models {
namespace {

using std::uint16_t;
using std::uint32_t;

constexpr uint32_t infinity_bits = 0x7f800000u;

// A NaN whose payload lies in the dropped bits alone would become an infinity; it gets the quiet
// bit instead.
constexpr uint32_t keep_nan(uint32_t mantissa, uint32_t quiet_bit) {
  return mantissa == 0 ? quiet_bit : mantissa;
}

inline float widen_one_f16(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t exponent = half & 0x7c00u;
  const uint32_t shifted = (half & 0x7fffu) << 13;
  const uint32_t normal = shifted + (112u << 23);
  const uint32_t special = shifted | infinity_bits;
  // Through an integer: no step has a subnormal float, which a processor may be set to flush.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(static_cast<float>(static_cast<int>(half & 0x3ffu)) * 0x1p-24f);
  const uint32_t finite = exponent == 0 ? subnormal : normal;
  return std::bit_cast<float>(sign | (exponent == 0x7c00u ? special : finite));
}

inline uint16_t narrow_one_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = ((bits >> 16) & 0xff80u) | keep_nan((bits >> 16) & 0x7fu, 0x40u);
  return static_cast<uint16_t>((bits & 0x7fffffffu) > infinity_bits ? nan : rounded);
}

inline uint16_t narrow_one_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t size = bits & 0x7fffffffu;
  const uint32_t normal = (size - (112u << 23) + 0xfffu + ((size >> 13) & 1u)) >> 13;
  // Below 2^-14 one unit of a half is 2^-24, which is the last place of a float in [0.5, 1): the
  // sum rounds there.
  const uint32_t subnormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5f) - std::bit_cast<uint32_t>(0.5f);
  const uint32_t nan = 0x7c00u | keep_nan((size >> 13) & 0x3ffu, 0x200u);
  const uint32_t finite = size < (113u << 23) ? subnormal : normal;
  // 65520 lies half way between the largest half and the next power of two, and rounds up to
  // infinity.
  const uint32_t bounded = size >= 0x477ff000u ? 0x7c00u : finite;
  return static_cast<uint16_t>(sign | (size > infinity_bits ? nan : bounded));
}

}  // namespace

void widen_bf16(std::span<float> out, std::span<const std::uint16_t> in) {
  LS_ASSERT(out.size() == in.size(), "one result a value");
  for (std::size_t i = 0; i < in.size(); ++i)
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(in[i]) << 16);
}

void widen_f16(std::span<float> out, std::span<const std::uint16_t> in) {
  LS_ASSERT(out.size() == in.size(), "one result a value");
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = widen_one_f16(in[i]);
}

void narrow_bf16(std::span<std::uint16_t> out, std::span<const float> in) {
  LS_ASSERT(out.size() == in.size(), "one result a value");
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = narrow_one_bf16(in[i]);
}

void narrow_f16(std::span<std::uint16_t> out, std::span<const float> in) {
  LS_ASSERT(out.size() == in.size(), "one result a value");
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = narrow_one_f16(in[i]);
}

}  // namespace longstraw::models
