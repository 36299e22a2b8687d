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
  EXPECT_TRUE(IsOk(Validate(empty))) << "an empty batch of large images has no elements";
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

TEST(ReferenceConvolutionTest, ActivationsPassNanOn) {
  Convolution c = MakePointwise(1);
  for (const Activation activation : {Activation::kRelu, Activation::kRelu6, Activation::kElu}) {
    c.activation = activation;
    EXPECT_TRUE(std::isnan(Convolve(c, {{NAN}, {1}})[0]));
  }
}

TEST(ReferenceConvolutionTest, EachElementIsAlsoComputedByItself) {
  std::vector<Convolution> geometries = Geometries();
  for (const Convolution& c : VolumeGeometries()) geometries.push_back(c);
  std::vector<Convolution> cases = WithEveryKindAndLayout(geometries, {DataType::kDouble});
  for (const Convolution& c : EveryEpilogue()) {
    if (c.dtype == DataType::kDouble) cases.push_back(c);
  }
  std::mt19937 random(17);
  for (const Convolution& c : cases) {
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

}  // namespace
}  // namespace tf_interop
