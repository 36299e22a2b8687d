// What the cudnn backend computes, on stand-ins for libcuda and libcudnn that check ranks and types
// and compute on the host: every kind, layout, type, padding, stride, dilation, group count and
// epilogue, of images and volumes, against the definition of a convolution, in every formulation.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

using CudnnConvolutionTest = CudnnBackendTest;

// Images and volumes, in float, half and double.
std::vector<Convolution> AllCases() {
  std::vector<Convolution> cases;
  for (const auto& geometries : {Geometries(), VolumeGeometries()}) {
    for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kDouble}) {
      const auto some = WithEveryKindAndLayout(geometries, dtype);
      cases.insert(cases.end(), some.begin(), some.end());
    }
  }
  return cases;
}

std::vector<Convolution> EveryEpilogue() {
  std::vector<Convolution> cases;
  for (Convolution c : WithEveryEpilogue({Geometries()[0], Geometries()[7], MakeVolume()})) {
    cases.push_back(c);
    if (c.dtype != DataType::kHalf) continue;
    c.dtype = DataType::kDouble;
    cases.push_back(c);
  }
  return cases;
}

// A tensor of one channel, or of one pixel, is of both layouts at once.
bool IsTransposed(const Convolution& c) {
  return c.layout == Layout::kNHWC && c.image_channels > 1 && c.image_pixels() > 1;
}

TEST_F(CudnnConvolutionTest, MatchesReferenceForEveryGeometry) {
  for (const Convolution& c : AllCases()) {
    // The learned heuristic knows neither groups nor dilations.
    const bool is_plain = c.group_count == 1 && c.dilation_depth == 1 && c.dilation_height == 1 &&
                          c.dilation_width == 1;
    EXPECT_EQ(RunAndExpectMatch(c), is_plain ? "eng3_k2=7_k14=3" : "eng1_k2=5") << ToString(c);
  }
}

TEST_F(CudnnConvolutionTest, FusesEveryEpilogue) {
  for (const Convolution& c : EveryEpilogue()) {
    EXPECT_EQ(RunAndExpectMatch(c).find('+'), std::string::npos) << ToString(c);
  }
}

TEST_F(CudnnConvolutionTest, SplitsEpilogueWhereNoFusedGraphIsSupported) {
  FakeCudnn().no_fused_convolution = true;
  for (const Convolution& c : EveryEpilogue()) {
    EXPECT_EQ(RunAndExpectMatch(c).rfind("split+eng", 0), 0u) << ToString(c);
  }
}

// What is left is TensorFlow's own convolution, which pads into a copy.
TEST_F(CudnnConvolutionTest, RefusesUnequalPaddingsThatNoEngineTakes) {
  FakeCudnn().no_asymmetric_padding = true;
  for (const Convolution& c : AllCases()) {
    if (!HasAsymmetricPadding(c)) continue;
    EXPECT_EQ(PrepareError(c).code(), StatusCode::kUnsupported) << ToString(c);
  }
  RunAndExpectMatch(MakeConvolution());
}

TEST_F(CudnnConvolutionTest, TransposesToNchwWhereNoEngineTakesNhwc) {
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : AllCases()) {
    const std::string algorithm = RunAndExpectMatch(c);
    if (IsTransposed(c)) {
      EXPECT_EQ(algorithm.rfind("nchw+eng", 0), 0u) << ToString(c);
    }
  }
}

TEST_F(CudnnConvolutionTest, TransposesAndSplitsWhereItMust) {
  FakeCudnn().no_fused_convolution = true;
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : EveryEpilogue()) {
    EXPECT_EQ(RunAndExpectMatch(c).rfind(IsTransposed(c) ? "split+nchw+eng" : "split+eng", 0), 0u)
        << ToString(c);
  }
}

// cuDNN copies four dimensions; depth, height and width stay together.
TEST_F(CudnnConvolutionTest, TransposesVolumesInOneCopy) {
  FakeCudnn().no_nhwc = true;
  const int before = FakeCudnnCounts().copies;
  RunAndExpectMatch(MakeVolume());
  EXPECT_EQ(FakeCudnnCounts().copies - before, 3) << "filter, image and output";
}

TEST_F(CudnnConvolutionTest, RunsEveryLegacyName) {
  std::vector<Convolution> cases = WithEveryKindLayoutAndType(Geometries());
  const auto add = [&cases](const std::vector<Convolution>& geometries, DataType dtype) {
    const auto some = WithEveryKindAndLayout(geometries, dtype);
    cases.insert(cases.end(), some.begin(), some.end());
  };
  add(VolumeGeometries(), DataType::kFloat);
  add({MakeConvolution(), MakeVolume()}, DataType::kDouble);
  add({Geometries()[0], Geometries()[9]}, DataType::kBFloat16);
  for (const Convolution& c : cases) {
    for (const std::string& name : LegacyNamesOf(c.kind)) {
      if (HasAsymmetricPadding(c)) {
        EXPECT_EQ(PrepareError(c, name).code(), StatusCode::kUnsupported);
        continue;
      }
      const auto prepared = PrepareOk(c, name);
      ASSERT_NE(prepared, nullptr) << name;
      EXPECT_EQ(prepared->algorithm().substr(prepared->algorithm().rfind('+') + 1), name);
      ExpectMatchesReference(c, *prepared);
    }
  }
}

TEST_F(CudnnConvolutionTest, RunsLegacyNamesWithEveryEpilogue) {
  for (const Convolution& c : EveryEpilogue()) {
    if (HasAsymmetricPadding(c)) continue;
    for (const char* name : {"IMPLICIT_PRECOMP_GEMM", "FFT"}) {
      const auto prepared = PrepareOk(c, name);
      ASSERT_NE(prepared, nullptr);
      EXPECT_NE(prepared->algorithm().find("split+"), std::string::npos) << prepared->algorithm();
      ExpectMatchesReference(c, *prepared);
    }
  }
}

TEST_F(CudnnConvolutionTest, DoubleIsNeverOfReducedPrecision) {
  options_.allow_tf32 = false;
  Convolution c = MakeVolume(ConvolutionKind::kForward, Layout::kNCHW, DataType::kDouble);
  c.filter_depth = 3;
  CompleteSame(&c);
  EXPECT_FALSE(PrepareOk(c, "eng3")->reduces_precision());
  EXPECT_FALSE(PrepareOk(c, "IMPLICIT_GEMM")->reduces_precision());
  EXPECT_EQ(FakeCudnnCounts().last_legacy_math_type, CUDNN_DEFAULT_MATH);
}

}  // namespace
}  // namespace tf_interop
