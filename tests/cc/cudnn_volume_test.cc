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

TEST_F(CudnnVolumeTest, PadsImageWhereNoEngineTakesUnequalPaddings) {
  FakeCudnn().no_asymmetric_padding = true;
  int padded = 0;
  for (const Convolution& c : AllCases()) {
    const bool pads = RunAndExpectMatch(c).rfind("pad+eng", 0) == 0;
    EXPECT_EQ(pads, PadsUnequally(c)) << ToString(c);
    padded += pads;
  }
  EXPECT_GT(padded, 50);
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
  FakeCudnn().no_asymmetric_padding = true;
  FakeCudnn().no_fused_convolution = true;
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : AllCases()) RunAndExpectMatch(c);
  Convolution fused = MakeVolume(ConvolutionKind::kForward, Layout::kNHWC, DataType::kDouble);
  ASSERT_TRUE(PadsUnequally(fused));
  fused.has_bias = true;
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6,
                                      Activation::kLeakyRelu, Activation::kElu}) {
    fused.activation = activation;
    EXPECT_EQ(RunAndExpectMatch(fused).rfind("pad+split+nchw+eng", 0), 0u);
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

  // Three images, each with pads that differ in the dimensions whose filter is even.
  static Convolution MakeBatch(Layout layout, int64_t filter_height, int64_t filter_width) {
    Convolution c = MakeVolume(ConvolutionKind::kForward, layout);
    c.batch = 3;
    c.filter_depth = 3;
    c.filter_height = filter_height;
    c.filter_width = filter_width;
    CompleteSame(&c);
    return c;
  }
};

// cuDNN copies four dimensions; depth, height and width stay together unless they are padded.
TEST_F(CudnnVolumeCopyTest, TransposesVolumesInOneCopyAndPaddedOnesImageByImage) {
  FakeCudnn().no_nhwc = true;
  FakeCudnn().no_asymmetric_padding = true;
  EXPECT_EQ(CopiesOf(MakeBatch(Layout::kNHWC, 3, 3)), 3) << "filter, image and output";
  EXPECT_EQ(CopiesOf(MakeBatch(Layout::kNHWC, 3, 2)), 3) << "depth and height stay together";
  EXPECT_EQ(CopiesOf(MakeBatch(Layout::kNHWC, 2, 2)), 2 + 3) << "filter, output, three images";
}

TEST_F(CudnnVolumeCopyTest, PadsVolumesInOneCopyWhereTheLayoutStays) {
  FakeCudnn().no_asymmetric_padding = true;
  EXPECT_EQ(CopiesOf(MakeBatch(Layout::kNHWC, 2, 2)), 2) << "filter and image";
  EXPECT_EQ(CopiesOf(MakeBatch(Layout::kNCHW, 2, 2)), 2) << "filter and image";
}

TEST_F(CudnnVolumeTest, RunsEveryLegacyName) {
  std::vector<Convolution> cases = WithEveryKindAndLayout(VolumeGeometries(), DataType::kFloat);
  for (const Convolution& c :
       WithEveryKindAndLayout({MakeConvolution(), MakeVolume()}, DataType::kDouble)) {
    cases.push_back(c);
  }
  for (const Convolution& c : cases) {
    for (const std::string& name : LegacyNamesOf(c.kind)) {
      const std::string ran = RunPinned(c, name);
      EXPECT_EQ(ran.substr(ran.rfind('+') + 1), name) << ToString(c);
    }
  }
}

TEST_F(CudnnVolumeTest, RestoresWhatItSerialized) {
  Convolution flat = MakeConvolution(ConvolutionKind::kForward, Layout::kNCHW, DataType::kDouble);
  for (const Convolution& c : {MakeVolume(), flat}) {
    std::string serialized;
    ASSERT_TRUE(PrepareOk(c)->Serialize(&serialized).ok());
    std::shared_ptr<const PreparedConvolution> restored;
    const Status status = backend_->Restore(c, serialized, &restored);
    ASSERT_TRUE(status.ok()) << status.message();
    ExpectMatchesReference(c, *restored);
    // A convolution that differs in nothing but its spatial rank, or its type, is another one.
    Convolution other = c;
    other.dtype = DataType::kHalf;
    EXPECT_EQ(backend_->Restore(other, serialized, &restored).code(), StatusCode::kUnsupported);
  }
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
  backend_->set_allow_tf32(false);
  const Convolution c = MakeVolume(ConvolutionKind::kForward, Layout::kNCHW, DataType::kDouble);
  EXPECT_FALSE(PrepareOk(c, "eng3")->reduces_precision());
  EXPECT_FALSE(PrepareOk(c, "IMPLICIT_GEMM")->reduces_precision());
  const auto prepared = PrepareOk(c, "FFT");
  ExpectMatchesReference(c, *prepared);
  EXPECT_EQ(FakeCudnnCounts().last_legacy_math_type, CUDNN_DEFAULT_MATH);
}

}  // namespace
}  // namespace tf_interop
