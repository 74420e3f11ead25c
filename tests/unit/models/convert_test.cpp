#include "support/files.hpp"

#include <longstraw/models/convert.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace longstraw::models {
namespace {

std::vector<std::uint16_t> all_patterns() {
  std::vector<std::uint16_t> v(65536);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<std::uint16_t>(i);
  return v;
}

/// The value of a half by its definition, in double.
double half_value(std::uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (h & 0x8000) ? -size : size;
}

template <class Narrow>
std::uint16_t narrow_one(Narrow narrow, float value) {
  std::uint16_t out = 0;
  narrow(std::span(&out, 1), std::span<const float>(&value, 1));
  return out;
}

}  // namespace

TEST_CASE("every bfloat16 pattern widens exactly and narrows back to itself", "[unit]") {
  const auto patterns = all_patterns();
  std::vector<float> wide(patterns.size());
  std::vector<std::uint16_t> back(patterns.size());
  widen_bf16(wide, patterns);
  narrow_bf16(back, wide);
  for (std::size_t i = 0; i < patterns.size(); ++i)
    REQUIRE(std::bit_cast<std::uint32_t>(wide[i]) == patterns[i] * 65536u);
  CHECK(back == patterns);
}

TEST_CASE("every half pattern widens to its value and narrows back to itself", "[unit]") {
  const auto patterns = all_patterns();
  std::vector<float> wide(patterns.size());
  std::vector<std::uint16_t> back(patterns.size());
  widen_f16(wide, patterns);
  narrow_f16(back, wide);
  CHECK(back == patterns);
  for (const std::uint16_t h : patterns) {
    if ((h & 0x7c00) == 0x7c00) {
      REQUIRE((h & 0x3ff ? std::isnan(wide[h]) : std::isinf(wide[h])));
    } else {
      REQUIRE(static_cast<double>(wide[h]) == half_value(h));
    }
    REQUIRE(std::signbit(wide[h]) == ((h & 0x8000) != 0));
  }
}

TEST_CASE("narrowing to half takes the nearer neighbour, and the even one of a tie", "[unit]") {
  // Between each two neighbours: the midpoint, and the floats just below and above it.
  for (std::uint16_t low = 0; low < 0x7bff; ++low) {
    const auto middle =
        static_cast<float>((half_value(low) + half_value(static_cast<std::uint16_t>(low + 1))) / 2);
    const std::uint16_t even = (low & 1) ? low + 1 : low;
    REQUIRE(narrow_one(narrow_f16, middle) == even);
    REQUIRE(narrow_one(narrow_f16, std::nextafter(middle, 0.0f)) == low);
    REQUIRE(narrow_one(narrow_f16, -std::nextafter(middle, 1e9f)) == (0x8000 | (low + 1)));
  }
  CHECK(narrow_one(narrow_f16, 65519.996f) == 0x7bff);
  CHECK(narrow_one(narrow_f16, 65520.0f) == 0x7c00);
  CHECK(narrow_one(narrow_f16, 1e30f) == 0x7c00);
  CHECK(narrow_one(narrow_f16, -std::numeric_limits<float>::infinity()) == 0xfc00);
  CHECK(narrow_one(narrow_f16, std::numeric_limits<float>::denorm_min()) == 0);
}

TEST_CASE("narrowing to bfloat16 takes the nearer neighbour, and the even one of a tie", "[unit]") {
  for (std::uint32_t low = 0; low < 0x7f7f; ++low) {
    const std::uint32_t middle = (low << 16) | 0x8000u;
    REQUIRE(narrow_one(narrow_bf16, std::bit_cast<float>(middle)) == low + (low & 1));
    REQUIRE(narrow_one(narrow_bf16, std::bit_cast<float>(middle - 1)) == low);
    REQUIRE(narrow_one(narrow_bf16, std::bit_cast<float>(middle + 1)) == low + 1);
  }
  CHECK(narrow_one(narrow_bf16, std::numeric_limits<float>::max()) == 0x7f80);
}

TEST_CASE("a NaN whose payload does not fit stays a NaN", "[unit]") {
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fc00000u, 0xffffffffu}) {
    const auto nan = std::bit_cast<float>(bits);
    const std::uint16_t bf16 = narrow_one(narrow_bf16, nan), f16 = narrow_one(narrow_f16, nan);
    CHECK((bf16 & 0x7f80) == 0x7f80);
    CHECK((bf16 & 0x7f) != 0);
    CHECK((f16 & 0x7c00) == 0x7c00);
    CHECK((f16 & 0x3ff) != 0);
    CHECK((bf16 >> 15) == (bits >> 31));
  }
}

}  // namespace longstraw::models
