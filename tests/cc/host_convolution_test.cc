// The host algorithms against the definition of a convolution, over every kind, layout, dtype,
// padding, stride, dilation, group count and activation.
#include "cc_kernels/core/host/host_convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "cc_kernels/core/host/host_backend.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/guarded_buffer.h"
#include "tests/cc/is_error.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

void ThreadedFor(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

using Buffer = GuardedBuffer;

// Sums are exact; Elu is not. Half has 11 significant bits.
constexpr Tolerance kExact = {0, 1.0 / 2048}, kOfElu = {1e-6, 1.0 / 2048};

Buffer Encode(DataType dtype, const std::vector<double>& values) {
  return EncodeElements<Buffer>(dtype, values);
}

// Runs `c` and compares every element.
void ExpectMatchesReference(const Convolution& c, HostAlgorithm algorithm) {
  SCOPED_TRACE(ToString(c) + " " + HostAlgorithmName(algorithm));
  ASSERT_TRUE(Validate(c).ok()) << Validate(c).message();
  if (!CanRun(algorithm, c)) return;
  const HostConvolution convolution(c, algorithm);
  ConvolutionProblem<Buffer> problem(c);
  Buffer result = problem.MakeResult(), workspace(convolution.workspace_bytes());
  convolution.Run(problem.Buffers(&result), workspace.data(), ThreadedFor);
  problem.ExpectCorrect(&result, c.activation == Activation::kElu ? kOfElu : kExact);
  EXPECT_TRUE(workspace.IsIntact()) << "written beyond the workspace";
}

// A convolution of one pixel and one filter: the sum of the products.
Convolution SumOf(DataType dtype, int64_t channels) {
  Convolution c;
  c.dtype = dtype;
  c.batch = 1;
  c.image_height = c.image_width = c.filter_height = c.filter_width = 1;
  c.image_channels = channels;
  c.output_channels = 1;
  CompleteSame(&c);
  return c;
}

class HostConvolutionTest : public testing::TestWithParam<HostAlgorithm> {};

TEST_P(HostConvolutionTest, MatchesDefinitionInEveryGeometry) {
  for (const auto dtype :
       {DataType::kFloat, DataType::kHalf, DataType::kBFloat16, DataType::kDouble}) {
    for (const auto& geometries : {Geometries(), VolumeGeometries()}) {
      for (const Convolution& c : WithEveryKindAndLayout(geometries, dtype)) {
        ExpectMatchesReference(c, GetParam());
        if (HasFatalFailure()) return;
      }
    }
  }
}

// What each geometry above has by itself, in any combination.
TEST_P(HostConvolutionTest, MatchesDefinitionInRandomGeometries) {
  std::mt19937 random(17);
  const auto pick = [&random](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  std::vector<Convolution> geometries(100, MakeConvolution());
  for (Convolution& c : geometries) {
    c.image_height = pick(7, 11);
    c.image_width = pick(7, 11);
    c.filter_height = pick(1, 3);
    c.filter_width = pick(1, 4);
    c.stride_height = pick(1, 3);
    c.stride_width = pick(1, 2);
    c.dilation_height = pick(1, 2);
    c.dilation_width = pick(1, 2);
    c.image_channels = 4;
    c.output_channels = 8;
    c.group_count = int64_t{1} << pick(0, 2);
    c.pad_top = pick(0, 3);
    c.pad_bottom = pick(0, 3);
    c.pad_left = pick(0, 3);
    c.pad_right = pick(0, 3);
    CompleteFromPads(&c);
  }
  for (const Convolution& c : WithEveryKindAndLayout(geometries, DataType::kFloat)) {
    ExpectMatchesReference(c, GetParam());
    if (HasFatalFailure()) return;
  }
}

// Larger than one block of the matrix product in every dimension; the blocks of a volume begin and
// end inside planes.
TEST_P(HostConvolutionTest, MatchesDefinitionAcrossBlocks) {
  Convolution image = MakeConvolution(), volume = MakeVolume();
  image.image_height = 16;
  image.image_width = 13;
  image.image_channels = 130;
  image.output_channels = 140;
  volume.image_depth = 3;
  volume.image_height = 23;
  volume.image_width = 9;
  volume.image_channels = 65;
  volume.output_channels = 66;
  for (Convolution* c : {&image, &volume}) {
    CompleteSame(c);
    for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                            ConvolutionKind::kBackwardFilter}) {
      c->kind = kind;
      ExpectMatchesReference(*c, GetParam());
    }
  }
}

TEST_P(HostConvolutionTest, AppliesBiasAndEveryActivation) {
  for (Convolution c : WithEveryEpilogue({MakeConvolution(), MakeVolume()})) {
    c.leaky_relu_alpha = 0.25f;
    ExpectMatchesReference(c, GetParam());
    if (c.dtype != DataType::kHalf) continue;
    c.dtype = DataType::kDouble;
    ExpectMatchesReference(c, GetParam());
  }
}

TEST_P(HostConvolutionTest, TakesDepthwiseWithAndWithoutMultiplier) {
  for (const int multiplier : {1, 3}) {
    Convolution c = MakeConvolution();
    c.image_channels = c.group_count = 6;
    c.output_channels = 6 * multiplier;
    c.stride_height = c.stride_width = 2;
    CompleteSame(&c);
    for (const Convolution& each : WithEveryKindAndLayout({c}, DataType::kFloat)) {
      ExpectMatchesReference(each, GetParam());
    }
  }
}

// float has no number between 1 and 1 + 2^-23.
TEST_P(HostConvolutionTest, ComputesDoubleInDouble) {
  const double expected = 1 + std::ldexp(1.0, -50);
  for (const auto layout : {Layout::kNHWC, Layout::kNCHW}) {
    Convolution c = SumOf(DataType::kDouble, 2);
    c.layout = layout;
    const std::vector<double> image = {1, std::ldexp(1.0, -50)}, filter = {1, 1};
    double result = 0;
    ConvolutionBuffers buffers{{image.data(), filter.data(), nullptr}, &result};
    const HostConvolution convolution(c, GetParam());
    EXPECT_EQ(convolution.transformed_filter_bytes(), 0u);
    std::vector<unsigned char> workspace(convolution.workspace_bytes());
    convolution.Run(buffers, workspace.data(), ThreadedFor);
    EXPECT_EQ(result, expected);
  }
}

TEST_P(HostConvolutionTest, RoundsOnceToNearestEven) {
  // Sums that lie in the middle of two neighbours of the type.
  const struct {
    DataType dtype;
    std::vector<double> image;
    double expected;
  } cases[] = {
      {DataType::kBFloat16, {256, 1}, 256},     {DataType::kBFloat16, {256, 3}, 260},
      {DataType::kBFloat16, {-256, -3}, -260},  {DataType::kBFloat16, {256, 1, 1, 1}, 260},
      {DataType::kHalf, {2048, 1}, 2048},       {DataType::kHalf, {2048, 3}, 2052},
      {DataType::kHalf, {2048, 1, 1, 1}, 2052},
  };
  for (const auto& each : cases) {
    const Convolution c = SumOf(each.dtype, each.image.size());
    Buffer image = Encode(c.dtype, each.image);
    Buffer filter = Encode(c.dtype, std::vector<double>(each.image.size(), 1.0));
    Buffer result(SizeOf(c.dtype));
    ConvolutionBuffers buffers{{image.data(), filter.data(), nullptr}, result.data()};
    const HostConvolution convolution(c, GetParam());
    std::vector<unsigned char> workspace(convolution.workspace_bytes());
    convolution.Run(buffers, workspace.data(), ThreadedFor);
    EXPECT_EQ(DecodeElement(c.dtype, result.data(), 0), each.expected) << ToString(c);
  }
}

TEST_P(HostConvolutionTest, ReadsTheTransformedFilterInstead) {
  for (const auto dtype : {DataType::kHalf, DataType::kBFloat16}) {
    for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput}) {
      Convolution c = SumOf(dtype, 3);
      c.kind = kind;
      if (!CanRun(GetParam(), c)) continue;
      const HostConvolution convolution(c, GetParam());
      ASSERT_EQ(convolution.transformed_filter_bytes(), 3 * sizeof(float)) << ToString(c);
      Buffer filter = Encode(dtype, {2, 3, 4});
      float transformed[3];
      convolution.TransformFilter(filter.data(), transformed);
      Buffer other_filter = Encode(dtype, {0, 0, 0});
      Buffer read = Encode(dtype, {1, 2, 4});  // the image, or an output of one channel
      Buffer result(3 * SizeOf(dtype));
      ConvolutionBuffers buffers;
      const bool forward = kind == ConvolutionKind::kForward;
      buffers.inputs[forward ? 0 : 1] = read.data();
      buffers.inputs[forward ? 1 : 0] = other_filter.data();
      buffers.result = result.data();
      buffers.transformed_filter = transformed;
      std::vector<unsigned char> workspace(convolution.workspace_bytes());
      convolution.Run(buffers, workspace.data(), ThreadedFor);
      EXPECT_EQ(DecodeElement(dtype, result.data(), 0), forward ? 24 : 2) << ToString(c);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, HostConvolutionTest,
                         testing::Values(HostAlgorithm::kIm2colGemm, HostAlgorithm::kEigenSpatial,
                                         HostAlgorithm::kDirect),
                         [](const auto& info) {
                           return std::string(HostAlgorithmName(info.param));
                         });

TEST(HostTransformTest, NeedsNoneForFloatAndForTheFilterGradient) {
  Convolution c = SumOf(DataType::kFloat, 3);
  EXPECT_EQ(HostConvolution(c, HostAlgorithm::kDirect).transformed_filter_bytes(), 0u);
  c.layout = Layout::kNCHW;  // filters are HWIO all the same
  EXPECT_EQ(HostConvolution(c, HostAlgorithm::kDirect).transformed_filter_bytes(), 0u);
  c = SumOf(DataType::kHalf, 3);
  c.kind = ConvolutionKind::kBackwardFilter;
  EXPECT_EQ(HostConvolution(c, HostAlgorithm::kDirect).transformed_filter_bytes(), 0u);
}

TEST(ConvolutionTest, TypesOfOneSizeAreDifferent) {
  const Convolution half = SumOf(DataType::kHalf, 3);
  const Convolution bfloat16 = SumOf(DataType::kBFloat16, 3);
  EXPECT_EQ(SizeOf(DataType::kBFloat16), 2u);
  EXPECT_FALSE(half == bfloat16);
  EXPECT_NE(ConvolutionHash()(half), ConvolutionHash()(bfloat16));
  EXPECT_NE(ToString(bfloat16).find("bfloat16"), std::string::npos);
}

TEST(HostAlgorithmTest, SpatialIsForForwardConvolutionsOfFlatImagesWithoutGroups) {
  Convolution c = SumOf(DataType::kFloat, 3);
  EXPECT_TRUE(CanRun(HostAlgorithm::kEigenSpatial, c));
  c.group_count = 3;
  EXPECT_FALSE(CanRun(HostAlgorithm::kEigenSpatial, c));
  c.group_count = 1;
  c.spatial_rank = 3;
  EXPECT_FALSE(CanRun(HostAlgorithm::kEigenSpatial, c));
  c.spatial_rank = 2;
  c.kind = ConvolutionKind::kBackwardInput;
  EXPECT_FALSE(CanRun(HostAlgorithm::kEigenSpatial, c));
  HostBackend backend(SerialFor);
  std::shared_ptr<const PreparedConvolution> prepared;
  EXPECT_TRUE(IsError(backend.Prepare(c, "EIGEN_SPATIAL", {size_t{1} << 30}, &prepared),
                      StatusCode::kUnsupported,
                      {"forward convolution of flat images without groups"}));
}

TEST(HostAlgorithmTest, RefusesUnknownNames) {
  HostAlgorithm algorithm;
  EXPECT_TRUE(IsError(ParseHostAlgorithm("FASTEST", &algorithm), StatusCode::kInvalidArgument,
                      {"IM2COL_GEMM"}));
}

TEST(ValidateTest, NamesTheFieldThatIsWrong) {
  Convolution c;
  c.batch = 1;
  c.image_height = c.image_width = 5;
  c.image_channels = c.output_channels = 4;
  c.filter_height = c.filter_width = 3;
  CompleteSame(&c);
  ASSERT_TRUE(Validate(c).ok());
  Convolution wrong = c;
  wrong.output_height = 4;
  EXPECT_NE(Validate(wrong).message().find("output height"), std::string::npos);
  wrong = c;
  wrong.group_count = 3;
  EXPECT_NE(Validate(wrong).message().find("group_count 3"), std::string::npos);
  wrong = c;
  wrong.kind = ConvolutionKind::kBackwardInput;
  wrong.has_bias = true;
  EXPECT_NE(Validate(wrong).message().find("bias"), std::string::npos);
}

TEST(ValidateTest, KnowsDepthOfVolumesAlone) {
  const Convolution volume = MakeVolume();
  ASSERT_TRUE(Validate(volume).ok()) << Validate(volume).message();
  const auto expect_refused = [](const Convolution& wrong, const char* part) {
    const Status status = Validate(wrong);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  Convolution wrong = volume;
  wrong.output_depth = 3;
  expect_refused(wrong, "Expected output depth 4");
  wrong = volume;
  wrong.stride_depth = 0;
  expect_refused(wrong, "stride_depth");
  wrong = volume;
  wrong.spatial_rank = 4;
  expect_refused(wrong, "spatial rank of 2 or 3, got 4");
  wrong = volume;
  wrong.spatial_rank = 2;
  expect_refused(wrong, "spatial rank of 2, got image 4, filter 2, output 4");
}

TEST(ConvolutionTest, EveryDepthTellsVolumesApart) {
  const Convolution volume = MakeVolume();
  const auto expect_different = [&volume](const Convolution& other) {
    EXPECT_FALSE(volume == other) << ToString(other);
    EXPECT_NE(ConvolutionHash()(volume), ConvolutionHash()(other)) << ToString(other);
    EXPECT_NE(ToString(volume), ToString(other));
  };
  for (int64_t Convolution::* const field :
       {&Convolution::image_depth, &Convolution::filter_depth, &Convolution::output_depth,
        &Convolution::stride_depth, &Convolution::dilation_depth, &Convolution::pad_front,
        &Convolution::pad_back}) {
    Convolution other = volume;
    ++(other.*field);
    expect_different(other);
  }
  Convolution flat = MakeConvolution();
  Convolution shallow = flat;
  shallow.spatial_rank = 3;
  EXPECT_FALSE(flat == shallow);
  EXPECT_EQ(ToString(volume),
            "forward float NDHWC image 2x4x6x5x4 filter 2x3x3x4x6 output 4x6x5 "
            "pads 0,1,1,1,1,1");
}

TEST(ValidateTest, RefusesSizesWhoseProductsDoNotFit) {
  const int64_t largest = (int64_t{1} << 31) - 1;
  Convolution c;
  c.batch = 1;
  c.image_height = largest;
  c.image_width = 5;
  c.image_channels = c.output_channels = 4;
  c.filter_height = c.filter_width = 1;
  CompleteSame(&c);
  ASSERT_TRUE(Validate(c).ok()) << Validate(c).message();
  const auto expect_refused = [](const Convolution& wrong, const char* part) {
    const Status status = Validate(wrong);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  };
  Convolution wrong = c;
  wrong.image_height = largest + 1;
  expect_refused(wrong, "image_height to be at most 2147483647");
  wrong = c;
  wrong.pad_left = largest + 1;
  expect_refused(wrong, "pad_left to be at most 2147483647");
  // 2^64 + 1 elements are 1 in 64 bits.
  wrong = c;
  wrong.image_height = 274177;
  wrong.image_width = 67280421310721;
  wrong.image_channels = wrong.output_channels = 1;
  CompleteSame(&wrong);
  expect_refused(wrong, "image_width to be at most 2147483647");
  // Products of a size that fits.
  wrong = c;
  wrong.batch = wrong.image_height = largest;
  wrong.image_width = 1;
  CompleteSame(&wrong);
  expect_refused(wrong, "image of at most");
  wrong = c;
  wrong.batch = largest;
  wrong.image_height = 1;
  wrong.image_channels = 1;
  wrong.output_channels = largest;
  wrong.filter_height = wrong.filter_width = 1;
  CompleteSame(&wrong);
  expect_refused(wrong, "output of at most");
  wrong = c;
  wrong.image_channels = wrong.output_channels = largest;
  wrong.image_height = wrong.image_width = 1;
  CompleteSame(&wrong);
  expect_refused(wrong, "filter of at most");
  // An empty batch of large images holds nothing.
  wrong = c;
  wrong.batch = 0;
  wrong.image_width = wrong.image_height = largest;
  CompleteSame(&wrong);
  EXPECT_TRUE(Validate(wrong).ok()) << Validate(wrong).message();
}

}  // namespace
}  // namespace tf_interop
