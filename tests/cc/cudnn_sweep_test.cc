// Every kind, layout, type, rank, epilogue and group count of TensorFlow's ops, on the real cuDNN
// with the properties of three GPUs (fake_cudnn.h): each convolution has a plan, unless it is known
// to have none.
//
// Tests use two geometries. With TF_INTEROP_WHOLE_SWEEP they use all, and print a line for each
// device, which scripts/sweep_cudnn.sh keeps in tests/cc/cudnn_sweep.txt.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

bool IsWhole() { return std::getenv("TF_INTEROP_WHOLE_SWEEP") != nullptr; }

struct Geometry {
  int64_t size, channels, filters, taps, stride, groups, dilation;
  bool is_row = false;
};

std::vector<Geometry> SweepGeometries() {
  std::vector<Geometry> all = {{56, 64, 128, 3, 2, 1, 1},  // unequal paddings
                               {28, 96, 96, 3, 1, 96, 1},  // depthwise
                               {28, 96, 128, 3, 1, 1, 1},        {17, 13, 17, 3, 1, 1, 1},
                               {14, 480, 192, 1, 1, 1, 1},       {14, 16, 48, 5, 1, 1, 1},
                               {224, 3, 64, 7, 2, 1, 1},         {28, 32, 32, 3, 1, 1, 2},
                               {28, 64, 128, 3, 1, 4, 1},        {28, 32, 64, 3, 2, 32, 1},
                               {17, 128, 128, 7, 1, 1, 1, true}, {32, 1, 1, 3, 1, 1, 1}};
  if (!IsWhole()) all.resize(2);
  return all;
}

Convolution MakeOf(const Geometry& geometry, int spatial_rank) {
  Convolution c;
  c.spatial_rank = spatial_rank;
  c.batch = 4;
  c.image_height = c.image_width = geometry.size;
  c.image_channels = geometry.channels;
  c.output_channels = geometry.filters;
  c.filter_width = geometry.taps;
  c.filter_height = geometry.is_row ? 1 : geometry.taps;
  c.stride_height = c.stride_width = geometry.stride;
  c.dilation_height = c.dilation_width = geometry.dilation;
  c.group_count = geometry.groups;
  if (spatial_rank == 3) {
    c.image_depth = 8;
    c.filter_depth = std::min<int64_t>(geometry.taps, 3);
    c.stride_depth = geometry.stride;
  }
  CompleteSame(&c);
  return c;
}

// TensorFlow fuses an activation only after a bias.
std::vector<Convolution> SweepCases() {
  std::vector<Convolution> cases;
  const auto add = [&cases](Convolution c, const std::vector<Activation>& activations) {
    cases.push_back(c);
    if (c.kind != ConvolutionKind::kForward) return;
    c.has_bias = true;
    for (const Activation activation : activations) {
      c.activation = activation;
      cases.push_back(c);
    }
  };
  const std::vector<DataType> dtypes = {DataType::kFloat, DataType::kHalf, DataType::kBFloat16,
                                        DataType::kDouble};
  for (const Geometry& geometry : SweepGeometries()) {
    for (const Convolution& c : WithEveryKindAndLayout({MakeOf(geometry, 2)}, dtypes)) {
      add(c, {Activation::kNone, Activation::kRelu, Activation::kRelu6, Activation::kLeakyRelu,
              Activation::kElu});
    }
    if (geometry.size > 60) continue;  // its volumes are too large
    for (const Convolution& c : WithEveryKindAndLayout({MakeOf(geometry, 3)}, dtypes)) {
      add(c, {Activation::kNone, Activation::kRelu});
    }
  }
  return cases;
}

// The reason why cuDNN has no engine, or "". Stock TensorFlow does not need these either: on a GPU
// it fuses no LeakyRelu with doubles, and converts bfloat16 to float on GPUs without bfloat16
// arithmetic. Neither gets into a stage without a measurement (tf_interop/planning/always.py).
std::string KnownToHaveNone(const Convolution& c, const std::string& device) {
  if (c.dtype == DataType::kBFloat16 && device == "t4") return "bfloat16";
  const bool is_leaky = c.activation == Activation::kLeakyRelu;
  return is_leaky && c.dtype == DataType::kDouble ? "double with LeakyRelu" : "";
}

class CudnnSweepTest : public CudnnTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    CudnnTest::SetUp();
    FakeCudnn().device = GetParam();
    options_.workspace_limit_bytes = size_t{8} << 30;
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, CudnnSweepTest, testing::Values("h200", "a100", "t4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudnnSweepTest, EveryConvolutionHasAPlanUnlessKnownToHaveNone) {
  std::map<std::string, int> counts = {{"refused", 0}};
  for (const Convolution& c : SweepCases()) {
    for (const bool allow_tf32 : {true, false}) {
      if (!allow_tf32 && c.dtype != DataType::kFloat) continue;
      options_.allow_tf32 = allow_tf32;
      std::shared_ptr<const PreparedConvolution> chosen, again;
      const Status status = backend_->Prepare(c, "", options_, &chosen);
      const std::string known = KnownToHaveNone(c, GetParam());
      if (!known.empty()) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported) << ToString(c);
        ++counts["no " + known];
        continue;
      }
      EXPECT_TRUE(IsOk(status)) << ToString(c);
      if (!status.ok()) {
        ++counts["refused"];
        continue;
      }
      const std::string algorithm = chosen->algorithm();
      ASSERT_TRUE(IsOk(backend_->Prepare(c, algorithm, options_, &again))) << ToString(c);
      EXPECT_EQ(again->algorithm(), algorithm) << ToString(c);
      ++counts[ToString(Parsed(algorithm).formulation.value_or(Formulation()))];
    }
  }
  if (!IsWhole()) return;
  std::cout << "sweep: " << GetParam();
  for (const auto& [outcome, count] : counts) std::cout << "  " << outcome << ": " << count;
  std::cout << "\n";
}

}  // namespace
}  // namespace tf_interop
