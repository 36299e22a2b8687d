// The description of a convolution (validity, equality, text), and the reference for its results.
#include "cc_kernels/core/convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/cc/convolution_cases.h"
#include "tests/cc/problem.h"

namespace tf_interop {
namespace {

constexpr int64_t kLargest = (int64_t{1} << 31) - 1;

TEST(ValidateTest, NamesTheFieldThatIsWrong) {
  using C = Convolution;
  const struct {
    Convolution valid;
    std::function<void(C*)> spoil;
    std::string part;
  } cases[] = {
      {MakeConvolution(), [](C* c) { c->output_height = 4; }, "output height"},
      {MakeConvolution(), [](C* c) { c->group_count = 3; }, "group_count 3"},
      {MakeConvolution(ConvolutionKind::kBackwardInput), [](C* c) { c->has_bias = true; }, "bias"},
      {MakeVolume(), [](C* c) { c->output_depth = 3; }, "Expected output depth 4"},
      {MakeVolume(), [](C* c) { c->stride_depth = 0; }, "stride_depth"},
      {MakeVolume(), [](C* c) { c->spatial_rank = 4; }, "spatial rank of 2 or 3, got 4"},
      {MakeVolume(), [](C* c) { c->spatial_rank = 2; }, "spatial rank of 2, got image 4, filter 2"},
      {MakePointwise(5), [](C* c) { c->image_height = kLargest + 1; },
       "image_height to be at most"},
      {MakePointwise(5), [](C* c) { c->pad_left = kLargest + 1; }, "pad_left to be at most"},
      // 2^64 + 1 elements are 1 in 64 bits.
      {MakePointwise(5), [](C* c) { c->image_height = 274177, c->image_width = 67280421310721; },
       "image_width to be at most"},
      // Products of sizes that fit.
      {MakePointwise(5), [](C* c) { c->batch = c->image_height = kLargest, CompleteSame(c); },
       "image of at most"},
      {MakePointwise(1), [](C* c) { c->batch = c->output_channels = kLargest; },
       "output of at most"},
      {MakePointwise(1), [](C* c) { c->image_channels = c->output_channels = kLargest; },
       "filter of at most"},
  };
  for (const auto& each : cases) {
    EXPECT_TRUE(IsOk(Validate(each.valid)));
    Convolution wrong = each.valid;
    each.spoil(&wrong);
    EXPECT_TRUE(IsError(Validate(wrong), StatusCode::kInvalidArgument, {each.part}));
  }
  Convolution empty = MakePointwise(kLargest);
  empty.batch = 0;
  empty.image_height = empty.output_height = kLargest;
  EXPECT_TRUE(IsOk(Validate(empty))) << "an empty batch of large images holds nothing";
}

TEST(ConvolutionTest, EveryFieldTellsConvolutionsApart) {
  const Convolution volume = MakeVolume();
  std::vector<Convolution> others(11, volume);
  ++others[0].image_depth;
  ++others[1].filter_depth;
  ++others[2].stride_depth;
  ++others[3].dilation_depth;
  ++others[4].pad_front;
  ++others[5].pad_back;
  others[6].kind = ConvolutionKind::kBackwardInput;
  others[7].dtype = DataType::kBFloat16;
  others[8].layout = Layout::kNCHW;
  others[9].has_bias = true;
  others[10].activation = Activation::kElu;
  for (const Convolution& other : others) {
    EXPECT_FALSE(volume == other);
    EXPECT_NE(ToString(volume), ToString(other));
  }
  EXPECT_EQ(ToString(volume),
            "forward float NDHWC image 2x4x6x5x4 filter 2x3x3x4x6 output 4x6x5 "
            "pads 0,1,1,1,1,1");
}

// Other tests compare the reference with the stand-in for cuDNN (cudnn_convolution_test.cc) and
// with TensorFlow (tests/op/op_matrix_test.py).

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
