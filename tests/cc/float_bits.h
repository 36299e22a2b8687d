// Conversions between double and the bits of an IEEE half and of a bfloat16, for tests.
#ifndef TF_INTEROP_TESTS_CC_FLOAT_BITS_H_
#define TF_INTEROP_TESTS_CC_FLOAT_BITS_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tf_interop {

inline double HalfBitsToDouble(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  if (exponent == 0x1f) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

// Rounds to nearest, ties to even.
inline uint16_t DoubleToHalfBits(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520.0) return sign | 0x7c00;
  if (magnitude < std::ldexp(1.0, -14)) {
    return sign | static_cast<uint16_t>(std::nearbyint(std::ldexp(magnitude, 24)));
  }
  int exponent = 0;
  const double mantissa = std::frexp(magnitude, &exponent);  // in [0.5, 1)
  const auto significand = static_cast<int>(std::nearbyint(std::ldexp(mantissa, 11)));
  // A significand that rounded up to 2048 carries into the exponent by itself.
  return sign | static_cast<uint16_t>(((exponent + 13) << 10) + significand);
}

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
  // Carries into the kept half where the other is more than a half, or a half after an odd one.
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_FLOAT_BITS_H_
