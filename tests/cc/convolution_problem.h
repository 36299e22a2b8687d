// A convolution on numbers whose sums are exact, and the comparison with its definition.
#ifndef TF_INTEROP_TESTS_CC_CONVOLUTION_PROBLEM_H_
#define TF_INTEROP_TESTS_CC_CONVOLUTION_PROBLEM_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "tests/cc/float_bits.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {

// Relative to the expected value, or absolute where that is below 1.
struct Tolerance {
  double of_float;
  double of_half;

  // bfloat16 has three significant bits less than half.
  double Of(DataType dtype) const {
    switch (dtype) {
      case DataType::kFloat:
        return of_float;
      case DataType::kHalf:
        return of_half;
      case DataType::kBFloat16:
        return 8 * of_half;
      case DataType::kDouble:
        return 1e-15;
    }
    return 0;
  }
};

template <typename Buffer>
Buffer EncodeElements(DataType dtype, const std::vector<double>& values) {
  Buffer buffer(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DataType::kFloat) {
      reinterpret_cast<float*>(buffer.data())[i] = static_cast<float>(values[i]);
    } else if (dtype == DataType::kDouble) {
      reinterpret_cast<double*>(buffer.data())[i] = values[i];
    } else {
      reinterpret_cast<uint16_t*>(buffer.data())[i] =
          dtype == DataType::kHalf ? DoubleToHalfBits(values[i]) : DoubleToBFloat16Bits(values[i]);
    }
  }
  return buffer;
}

inline double DecodeElement(DataType dtype, const unsigned char* data, size_t i) {
  if (dtype == DataType::kFloat) return reinterpret_cast<const float*>(data)[i];
  if (dtype == DataType::kDouble) return reinterpret_cast<const double*>(data)[i];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(data)[i];
  return dtype == DataType::kHalf ? HalfBitsToDouble(bits) : BFloat16BitsToDouble(bits);
}

template <typename Buffer>
void ExpectElements(DataType dtype, const std::vector<double>& expected,
                    const Tolerance& tolerances, Buffer* result) {
  const double tolerance = tolerances.Of(dtype);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(DecodeElement(dtype, result->data(), i), expected[i],
                tolerance * std::max(1.0, std::fabs(expected[i])))
        << "element " << i;
  }
  EXPECT_TRUE(result->IsIntact()) << "written beyond the result";
}

// A convolution with its operands, and what it should give. Buffer is memory that the device and
// the test both reach: constructed with a number of bytes, movable, with data() and IsIntact().
template <typename Buffer>
class ConvolutionProblem {
 public:
  explicit ConvolutionProblem(const Convolution& c) : c_(c), reference_(MakeReferenceTensors(c)) {
    // Quarters whose sums are exact in float and in half.
    std::mt19937 random(ConvolutionHash()(c) & 0xffff);
    std::uniform_int_distribution<int> quarters(-4, 4);
    for (auto* tensor :
         {&reference_.image, &reference_.filter, &reference_.output, &reference_.bias}) {
      for (double& value : *tensor) value = quarters(random) * 0.25;
      operands_.push_back(EncodeElements<Buffer>(c.dtype, *tensor));
    }
    RunReference(c, &reference_);
  }

  ConvolutionBuffers Buffers(Buffer* result) {
    const void* image = operands_[0].data();
    const void* filter = operands_[1].data();
    const void* output = operands_[2].data();
    ConvolutionBuffers buffers;
    switch (c_.kind) {
      case ConvolutionKind::kForward:
        buffers = {{image, filter, c_.has_bias ? operands_[3].data() : nullptr}, nullptr};
        break;
      case ConvolutionKind::kBackwardInput:
        buffers = {{filter, output, nullptr}, nullptr};
        break;
      case ConvolutionKind::kBackwardFilter:
        buffers = {{image, output, nullptr}, nullptr};
        break;
    }
    buffers.result = result->data();
    return buffers;
  }

  Buffer MakeResult() const { return Buffer(c_.result_elements() * SizeOf(c_.dtype)); }

  void ExpectCorrect(Buffer* result, const Tolerance& tolerances) const {
    const std::vector<double>& expected = c_.kind == ConvolutionKind::kForward ? reference_.output
                                          : c_.kind == ConvolutionKind::kBackwardInput
                                              ? reference_.image
                                              : reference_.filter;
    ExpectElements(c_.dtype, expected, tolerances, result);
  }

 private:
  const Convolution c_;
  ReferenceTensors reference_;
  std::vector<Buffer> operands_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CONVOLUTION_PROBLEM_H_
