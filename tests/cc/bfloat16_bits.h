// Conversions between double and the bits of a bfloat16, for tests.
#ifndef TF_INTEROP_TESTS_CC_BFLOAT16_BITS_H_
#define TF_INTEROP_TESTS_CC_BFLOAT16_BITS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace tf_interop {

// A bfloat16 is the upper half of a float.
inline double BFloat16BitsToDouble(uint16_t bits) {
  const uint32_t float_bits = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &float_bits, sizeof(value));
  return value;
}

// Rounds to nearest, ties to even. By way of float, which is exact for the numbers of the tests.
inline uint16_t DoubleToBFloat16Bits(double value) {
  const float rounded = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &rounded, sizeof(bits));
  if (std::isnan(rounded)) return static_cast<uint16_t>(bits >> 16) | 0x40;
  // Carries into the kept half where the other is more than a half, or a half behind an odd one.
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_BFLOAT16_BITS_H_
