// Both host algorithms against the definition of a convolution, over every kind, layout, dtype,
// padding, stride, dilation, group count and activation.
#include "cc_kernels/core/host/host_convolution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "Eigen/Core"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

void ThreadedFor(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
std::vector<unsigned char> Encode(const std::vector<double>& values) {
  std::vector<unsigned char> bytes(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value(static_cast<float>(values[i]));
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
  return bytes;
}

std::vector<unsigned char> Encode(DataType dtype, const std::vector<double>& values) {
  return dtype == DataType::kFloat ? Encode<float>(values) : Encode<Eigen::half>(values);
}

double Decode(DataType dtype, const unsigned char* bytes, size_t i) {
  if (dtype == DataType::kFloat) {
    float value;
    std::memcpy(&value, bytes + i * sizeof(value), sizeof(value));
    return value;
  }
  Eigen::half value;
  std::memcpy(static_cast<void*>(&value), bytes + i * sizeof(value), sizeof(value));
  return static_cast<float>(value);
}

// Runs `c` on small whole numbers, whose sums are exact in float, and compares every element.
void ExpectMatchesReference(const Convolution& c, HostAlgorithm algorithm) {
  SCOPED_TRACE(ToString(c) + " " + HostAlgorithmName(algorithm));
  ASSERT_TRUE(Validate(c).ok()) << Validate(c).message();
  ReferenceTensors reference = MakeReferenceTensors(c);
  std::mt19937 random(17);
  std::uniform_int_distribution<int> digits(-3, 3);
  for (auto* tensor : {&reference.image, &reference.filter, &reference.output, &reference.bias}) {
    for (double& value : *tensor) value = digits(random);
  }
  const auto image = Encode(c.dtype, reference.image);
  const auto filter = Encode(c.dtype, reference.filter);
  const auto output = Encode(c.dtype, reference.output);
  const auto bias = Encode(c.dtype, reference.bias);
  ConvolutionBuffers buffers;
  const std::vector<double>* expected = nullptr;
  switch (c.kind) {
    case ConvolutionKind::kForward:
      buffers.inputs[0] = image.data();
      buffers.inputs[1] = filter.data();
      buffers.inputs[2] = c.has_bias ? bias.data() : nullptr;
      expected = &reference.output;
      break;
    case ConvolutionKind::kBackwardInput:
      buffers.inputs[0] = filter.data();
      buffers.inputs[1] = output.data();
      expected = &reference.image;
      break;
    case ConvolutionKind::kBackwardFilter:
      buffers.inputs[0] = image.data();
      buffers.inputs[1] = output.data();
      expected = &reference.filter;
      break;
  }
  // Filled with a pattern that is NaN in both types, so that an element left out shows.
  std::vector<unsigned char> result(c.result_elements() * SizeOf(c.dtype), 0xff);
  buffers.result = result.data();
  const HostConvolution convolution(c, algorithm);
  std::vector<unsigned char> workspace(convolution.workspace_bytes(), 0xff);
  convolution.Run(buffers, workspace.data(), ThreadedFor);

  RunReference(c, &reference);
  // Elu is not exact; half has 11 significant bits.
  const double tolerance =
      c.dtype == DataType::kHalf ? 1e-3 : (c.activation == Activation::kElu ? 1e-6 : 0.0);
  for (size_t i = 0; i < expected->size(); ++i) {
    const double value = Decode(c.dtype, result.data(), i);
    ASSERT_LE(std::abs(value - (*expected)[i]), tolerance * std::max(1.0, std::abs((*expected)[i])))
        << "element " << i << ": expected " << (*expected)[i] << ", got " << value;
  }
}

class HostConvolutionTest : public testing::TestWithParam<HostAlgorithm> {};

TEST_P(HostConvolutionTest, MatchesDefinitionOverAllParameters) {
  int cases = 0;
  for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                          ConvolutionKind::kBackwardFilter}) {
    for (const auto dtype : {DataType::kFloat, DataType::kHalf}) {
      for (const auto layout : {Layout::kNHWC, Layout::kNCHW}) {
        for (const int groups : {1, 2, 4}) {
          for (const int stride : {1, 2}) {
            for (const int dilation : {1, 2}) {
              for (const int filter : {1, 3}) {
                for (const int padding : {0, 1, 2}) {
                  Convolution c;
                  c.kind = kind;
                  c.dtype = dtype;
                  c.layout = layout;
                  c.batch = 2;
                  c.image_height = 9;
                  c.image_width = 8;
                  c.image_channels = 4;
                  c.output_channels = 8;
                  c.group_count = groups;
                  c.stride_height = stride;
                  c.stride_width = 3 - stride;
                  c.dilation_height = dilation;
                  c.filter_height = filter;
                  c.filter_width = 2 * filter - 1;
                  if (padding == 0) CompleteSame(&c);
                  if (padding == 1) CompleteFromPads(&c);
                  if (padding == 2) {
                    c.pad_top = 3;
                    c.pad_right = 2;
                    c.pad_left = 1;
                    CompleteFromPads(&c);
                  }
                  ExpectMatchesReference(c, GetParam());
                  if (HasFatalFailure()) return;
                  ++cases;
                }
              }
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(cases, 3 * 2 * 2 * 3 * 2 * 2 * 2 * 3);
}

TEST_P(HostConvolutionTest, AppliesBiasAndEveryActivation) {
  for (const auto layout : {Layout::kNHWC, Layout::kNCHW}) {
    for (const auto activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6,
                                  Activation::kLeakyRelu, Activation::kElu}) {
      Convolution c;
      c.layout = layout;
      c.batch = 1;
      c.image_height = c.image_width = 6;
      c.image_channels = 3;
      c.output_channels = 5;
      c.filter_height = c.filter_width = 3;
      c.has_bias = true;
      c.activation = activation;
      c.leaky_relu_alpha = 0.25f;
      CompleteSame(&c);
      ExpectMatchesReference(c, GetParam());
    }
  }
}

TEST_P(HostConvolutionTest, TakesDepthwiseWithAndWithoutMultiplier) {
  for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                          ConvolutionKind::kBackwardFilter}) {
    for (const int multiplier : {1, 3}) {
      Convolution c;
      c.kind = kind;
      c.batch = 2;
      c.image_height = c.image_width = 7;
      c.image_channels = c.group_count = 6;
      c.output_channels = 6 * multiplier;
      c.filter_height = c.filter_width = 3;
      c.stride_height = c.stride_width = 2;
      CompleteSame(&c);
      ExpectMatchesReference(c, GetParam());
    }
  }
}

// Larger than one block of the matrix product in every dimension.
TEST_P(HostConvolutionTest, MatchesDefinitionAcrossBlocks) {
  for (const auto kind : {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                          ConvolutionKind::kBackwardFilter}) {
    Convolution c;
    c.kind = kind;
    c.batch = 2;
    c.image_height = 48;
    c.image_width = 33;
    c.image_channels = 130;
    c.output_channels = 140;
    c.filter_height = c.filter_width = 3;
    CompleteSame(&c);
    ExpectMatchesReference(c, GetParam());
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, HostConvolutionTest,
                         testing::Values(HostAlgorithm::kIm2colGemm, HostAlgorithm::kDirect),
                         [](const auto& info) {
                           return std::string(HostAlgorithmName(info.param));
                         });

TEST(HostAlgorithmTest, RefusesUnknownNames) {
  HostAlgorithm algorithm;
  const Status status = ParseHostAlgorithm("FASTEST", &algorithm);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("IM2COL_GEMM"), std::string::npos);
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

}  // namespace
}  // namespace tf_interop
