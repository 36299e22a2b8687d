// The reference that everything else is compared with: against sums made by hand, and against the
// identities that hold for every convolution.
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

// A row of five pixels of two channels, and what a convolution with two taps does to them.
Convolution Row() {
  Convolution c;
  c.batch = c.image_height = c.filter_height = 1;
  c.image_width = 5;
  c.image_channels = c.filter_width = 2;
  c.output_channels = 1;
  CompleteFromPads(&c);
  return c;
}

const Values kRow = {1, 10, 2, 20, 3, 30, 4, 40, 5, 50};

TEST(ReferenceConvolutionTest, ForwardIsTheSumByHand) {
  Convolution c = Row();
  const Values filter = {1, 2, 3, 4};  // of each tap and channel
  EXPECT_EQ(Convolve(c, {kRow, filter}), (Values{107, 171, 235, 299}));
  c.layout = Layout::kNCHW;
  EXPECT_EQ(Convolve(c, {{1, 2, 3, 4, 5, 10, 20, 30, 40, 50}, filter}),
            (Values{107, 171, 235, 299}));
  c = Row();
  c.stride_width = c.dilation_width = 2;
  c.pad_right = 3;
  CompleteFromPads(&c);
  EXPECT_EQ(Convolve(c, {kRow, filter}), (Values{150, 278, 105}));
  c = Row();
  c.group_count = c.output_channels = 2;  // the filter is [tap][output channel]
  EXPECT_EQ(Convolve(c, {kRow, filter}), (Values{7, 100, 11, 160, 15, 220, 19, 280}));
}

TEST(ReferenceConvolutionTest, VolumesHaveADepthOfTheirOwn) {
  Convolution c;
  c.spatial_rank = 3;
  c.batch = c.image_height = c.image_width = c.image_channels = c.output_channels = 1;
  c.filter_height = c.filter_width = 1;
  c.image_depth = 4;
  c.filter_depth = c.stride_depth = 2;
  c.pad_front = 1;
  c.pad_back = 2;
  CompleteFromPads(&c);
  EXPECT_EQ(Convolve(c, {{1, 2, 3, 4}, {10, 1}}), (Values{1, 23, 40}));
}

TEST(ReferenceConvolutionTest, BiasAndActivationsComeLast) {
  Convolution c = Row();
  c.image_width = c.filter_width = 1;
  c.image_channels = 1;
  c.output_channels = 3;
  CompleteFromPads(&c);
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

// Both gradients belong to the output: <output gradient, convolution of image and filter> is the
// same number as <image, image gradient> and <filter, filter gradient>. Integers: sums are exact.
TEST(ReferenceConvolutionTest, GradientsAreTheAdjointsOfTheForwardConvolution) {
  std::mt19937 random(17);
  const auto draw = [&random](int64_t elements) {
    Values values(elements);
    for (double& value : values) value = std::uniform_int_distribution<int>(-9, 9)(random);
    return values;
  };
  const auto product = [](const Values& a, const Values& b) {
    EXPECT_EQ(a.size(), b.size());
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  // The whole result, of which each element is also computed by itself.
  const auto computed = [](Convolution c, const Values& first, const Values& second) {
    const Values whole = Convolve(c, {first, second});
    std::vector<int64_t> places(whole.size());
    std::iota(places.begin(), places.end(), 0);
    c.dtype = DataType::kDouble;
    EXPECT_EQ(ConvolveAt(c, {first.data(), second.data()}, places), whole);
    return whole;
  };
  std::vector<Convolution> geometries = Geometries();
  for (const Convolution& c : VolumeGeometries()) geometries.push_back(c);
  for (Convolution c : geometries) {
    for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
      c.layout = layout;
      SCOPED_TRACE(ToString(c));
      const Values image = draw(c.image_elements()), filter = draw(c.filter_elements());
      const Values gradient = draw(c.output_elements());
      c.kind = ConvolutionKind::kForward;
      const double expected = product(gradient, computed(c, image, filter));
      c.kind = ConvolutionKind::kBackwardInput;
      EXPECT_EQ(product(image, computed(c, filter, gradient)), expected);
      c.kind = ConvolutionKind::kBackwardFilter;
      EXPECT_EQ(product(filter, computed(c, image, gradient)), expected);
    }
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
