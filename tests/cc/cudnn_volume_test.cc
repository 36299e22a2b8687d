// Convolutions of volumes and of double by the cudnn backend, on stand-ins for libcuda and libcudnn
// that check ranks and types and compute on the host.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "cc_kernels/core/cudnn/legacy_convolution.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

class CudnnVolumeTest : public CudnnBackendTest {
 protected:
  // The stand-in's answer to a pinned algorithm, which has to run.
  std::string RunPinned(const Convolution& c, const std::string& name) {
    const auto prepared = PrepareOk(c, name);
    if (!prepared) return "";
    ExpectMatchesReference(c, *prepared);
    return prepared->algorithm();
  }
};

bool PadsUnequally(const Convolution& c) {
  return c.pad_front != c.pad_back || c.pad_top != c.pad_bottom || c.pad_left != c.pad_right;
}

// Volumes in float and half, and both volumes and images in double.
std::vector<Convolution> AllCases() {
  std::vector<Convolution> cases = WithEveryKindLayoutAndType(VolumeGeometries());
  for (const auto& geometries : {VolumeGeometries(), Geometries()}) {
    for (const Convolution& c : WithEveryKindAndLayout(geometries, DataType::kDouble)) {
      cases.push_back(c);
    }
  }
  return cases;
}

TEST_F(CudnnVolumeTest, MatchesReferenceForEveryGeometry) {
  for (const Convolution& c : AllCases()) {
    EXPECT_EQ(RunAndExpectMatch(c).find('+'), std::string::npos) << ToString(c);
  }
}

TEST_F(CudnnVolumeTest, AsksTheLearnedHeuristicForVolumesThatAreNotDilated) {
  EXPECT_EQ(PrepareOk(MakeVolume())->algorithm().rfind("eng3", 0), 0u);
  for (int64_t Convolution::* const dilation :
       {&Convolution::dilation_depth, &Convolution::dilation_height,
        &Convolution::dilation_width}) {
    Convolution c = MakeVolume();
    c.*dilation = 2;
    CompleteSame(&c);
    EXPECT_EQ(PrepareOk(c)->algorithm().rfind("eng1", 0), 0u) << ToString(c);
  }
}

TEST_F(CudnnVolumeTest, RefusesUnequalPaddingsThatNoEngineTakes) {
  FakeCudnn().no_asymmetric_padding = true;
  int refused = 0;
  for (const Convolution& c : AllCases()) {
    if (!PadsUnequally(c)) continue;
    EXPECT_EQ(PrepareError(c).code(), StatusCode::kUnsupported) << ToString(c);
    ++refused;
  }
  EXPECT_GT(refused, 50);
}

TEST_F(CudnnVolumeTest, TransposesToChannelsFirstWhereNoEngineTakesThemLast) {
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : AllCases()) {
    const std::string algorithm = RunAndExpectMatch(c);
    const bool is_one_pixel = c.image_depth * c.image_height * c.image_width == 1;
    // A tensor of one channel, or of one pixel, is of both layouts at once.
    if (c.layout == Layout::kNHWC && c.image_channels > 1 && !is_one_pixel) {
      EXPECT_NE(algorithm.find("nchw+eng"), std::string::npos) << ToString(c);
    }
  }
}

TEST_F(CudnnVolumeTest, CombinesAllFormulationsWhereItMust) {
  FakeCudnn().no_fused_convolution = true;
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : AllCases()) RunAndExpectMatch(c);
  Convolution fused = MakeVolume(ConvolutionKind::kForward, Layout::kNHWC, DataType::kDouble);
  fused.has_bias = true;
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6,
                                      Activation::kLeakyRelu, Activation::kElu}) {
    fused.activation = activation;
    EXPECT_EQ(RunAndExpectMatch(fused).rfind("split+nchw+eng", 0), 0u);
  }
}

TEST_F(CudnnVolumeTest, FusesEveryEpilogue) {
  std::vector<Convolution> cases = WithEveryEpilogue({MakeVolume()});
  for (Convolution c : WithEveryEpilogue({MakeConvolution(), MakeVolume()})) {
    c.dtype = DataType::kDouble;
    cases.push_back(c);
  }
  for (const Convolution& c : cases) {
    EXPECT_EQ(RunAndExpectMatch(c).find('+'), std::string::npos) << ToString(c);
  }
}

class CudnnVolumeCopyTest : public CudnnVolumeTest {
 protected:
  int CopiesOf(const Convolution& c) {
    const int before = FakeCudnnCounts().copies;
    RunAndExpectMatch(c);
    return FakeCudnnCounts().copies - before;
  }
};

// cuDNN copies four dimensions; depth, height and width stay together.
TEST_F(CudnnVolumeCopyTest, TransposesVolumesInOneCopy) {
  FakeCudnn().no_nhwc = true;
  Convolution c = MakeVolume();
  c.batch = 3;
  c.filter_depth = 3;
  c.filter_height = c.filter_width = 2;
  CompleteSame(&c);
  EXPECT_EQ(CopiesOf(c), 3) << "filter, image and output";
}

TEST_F(CudnnVolumeTest, RunsEveryLegacyName) {
  std::vector<Convolution> cases = WithEveryKindAndLayout(VolumeGeometries(), DataType::kFloat);
  for (const Convolution& c :
       WithEveryKindAndLayout({MakeConvolution(), MakeVolume()}, DataType::kDouble)) {
    cases.push_back(c);
  }
  int unequal = 0;
  for (const Convolution& c : cases) {
    for (const std::string& name : LegacyNamesOf(c.kind)) {
      if (PadsUnequally(c)) {
        EXPECT_EQ(PrepareError(c, name).code(), StatusCode::kUnsupported);
        ++unequal;
        continue;
      }
      const std::string ran = RunPinned(c, name);
      EXPECT_EQ(ran.substr(ran.rfind('+') + 1), name) << ToString(c);
    }
  }
  EXPECT_GT(unequal, 0);
}

TEST_F(CudnnVolumeTest, FallsBackToTheHeuristicWhereAPinCannotRun) {
  const Convolution c = MakeVolume();
  FakeCudnn().unsupported_engines = {3};
  EXPECT_EQ(PrepareError(c, "eng3").code(), StatusCode::kUnsupported);
  EXPECT_EQ(RunAndExpectMatch(c), "eng1_k2=5");
}

TEST_F(CudnnVolumeTest, RefusesDoubleThatNoEngineTakesByName) {
  FakeCudnn().no_double = true;
  const Status status =
      PrepareError(MakeConvolution(ConvolutionKind::kForward, Layout::kNHWC, DataType::kDouble));
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("forward double NHWC"), std::string::npos) << status.message();
}

TEST_F(CudnnVolumeTest, DoubleIsNeverOfReducedPrecision) {
  options_.allow_tf32 = false;
  Convolution c = MakeVolume(ConvolutionKind::kForward, Layout::kNCHW, DataType::kDouble);
  c.filter_depth = c.filter_height = c.filter_width = 3;
  CompleteSame(&c);
  EXPECT_FALSE(PrepareOk(c, "eng3")->reduces_precision());
  EXPECT_FALSE(PrepareOk(c, "IMPLICIT_GEMM")->reduces_precision());
  const auto prepared = PrepareOk(c, "FFT");
  ExpectMatchesReference(c, *prepared);
  EXPECT_EQ(FakeCudnnCounts().last_legacy_math_type, CUDNN_DEFAULT_MATH);
}

}  // namespace
}  // namespace tf_interop
