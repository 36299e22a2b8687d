// The reference for everything else. Other tests compare its sums with the stand-in for cuDNN
// (cudnn_convolution_test.cc) and with TensorFlow (tests/op/op_matrix_test.py).
#include "cc_kernels/core/host/reference_convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "tests/cc/convolution_cases.h"

namespace tf_interop {
namespace {

using Values = std::vector<double>;

TEST(ReferenceConvolutionTest, BiasAndActivationsComeLast) {
  Convolution c = MakePointwise(1, 1, 3);
  c.has_bias = true;
  const std::vector<Values> inputs = {{2}, {-4, 1, 4}, {1, 1, 1}};  // sums: -7, 3, 9
  c.leaky_relu_alpha = 0.5f;
  const Values expected[] = {
      {-7, 3, 9}, {0, 3, 9}, {0, 3, 6}, {-3.5, 3, 9}, {std::expm1(-7.0), 3, 9}};
  for (int i = 0; i < 5; ++i) {
    c.activation = static_cast<Activation>(i);
    EXPECT_EQ(Convolve(c, inputs), expected[i]) << ToString(c);
    const float image = 2, filter[] = {-4, 1, 4}, bias[] = {1, 1, 1};
    EXPECT_EQ(ConvolveAt(c, {&image, filter, bias}, {2, 0}),
              (Values{expected[i][2], expected[i][0]}));
  }
  EXPECT_TRUE(std::isnan(Convolve(c, {{NAN}, inputs[1], inputs[2]})[0]));
}

TEST(ReferenceConvolutionTest, EachElementIsAlsoComputedByItself) {
  std::vector<Convolution> geometries = Geometries();
  for (const Convolution& c : VolumeGeometries()) geometries.push_back(c);
  std::mt19937 random(17);
  for (const Convolution& c : WithEveryKindAndLayout(geometries, {DataType::kDouble})) {
    std::vector<Values> inputs;
    std::vector<const void*> addresses;
    for (const int64_t elements : InputElements(c)) {
      for (double& value : inputs.emplace_back(elements)) {
        value = std::uniform_int_distribution<int>(-9, 9)(random);
      }
    }
    for (const Values& input : inputs) addresses.push_back(input.data());
    const Values whole = Convolve(c, inputs);
    std::vector<int64_t> places(whole.size());
    std::iota(places.begin(), places.end(), 0);
    EXPECT_EQ(ConvolveAt(c, addresses, places), whole) << ToString(c);
  }
}

TEST(ReferenceConvolutionTest, EncodingRoundsToNearestEven) {
  const struct {
    DataType dtype;
    double value, rounded;
  } cases[] = {{DataType::kBFloat16, 257, 256},    {DataType::kBFloat16, 259, 260},
               {DataType::kBFloat16, -259, -260},  {DataType::kHalf, 2049, 2048},
               {DataType::kHalf, 2051, 2052},      {DataType::kFloat, 16777217, 16777216},
               {DataType::kDouble, 1e-300, 1e-300}};
  for (const auto& each : cases) {
    unsigned char tensor[8];
    Encode(each.dtype, &each.value, 1, tensor);
    EXPECT_EQ(Decode(each.dtype, tensor, 1)[0], each.rounded) << each.value;
  }
}

}  // namespace
}  // namespace tf_interop
