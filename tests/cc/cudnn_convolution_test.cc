// What the cudnn backend computes, on stand-ins for libcuda and libcudnn that check ranks and types
// and compute on the host: every kind, layout, type, padding, stride, dilation, group count and
// epilogue, of images and volumes, against the definition of a convolution, in every formulation.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

using CudnnConvolutionTest = CudnnTest;

// Images and volumes, in float, half and double; a few in bfloat16.
std::vector<Convolution> AllCases() {
  const std::vector<DataType> dtypes = {DataType::kFloat, DataType::kHalf, DataType::kDouble};
  std::vector<Convolution> cases = WithEveryKindAndLayout(Geometries(), dtypes);
  const auto add = [&cases](const std::vector<Convolution>& some) {
    cases.insert(cases.end(), some.begin(), some.end());
  };
  add(WithEveryKindAndLayout(VolumeGeometries(), dtypes));
  add(WithEveryKindAndLayout({MakeConvolution(), MakeVolume(), MakeAsymmetric()},
                             {DataType::kBFloat16}));
  return cases;
}

std::vector<Convolution> EveryEpilogue() {
  std::vector<Convolution> cases;
  for (const Convolution& c : WithEveryEpilogue({Geometries()[0], Geometries()[7], MakeVolume()})) {
    if (HasEpilogue(c)) cases.push_back(c);
  }
  return cases;
}

// A tensor of one channel, or of one pixel, is of both layouts at once.
bool IsTransposed(const Convolution& c) {
  return c.layout == Layout::kNHWC && c.image_channels > 1 && c.image_pixels() > 1;
}

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
}

TEST_F(CudnnConvolutionTest, MatchesReferenceForEveryGeometry) {
  for (const Convolution& c : AllCases()) {
    // The learned heuristic knows neither groups nor dilations.
    const bool is_plain = c.group_count == 1 && c.dilation_depth == 1 && c.dilation_height == 1 &&
                          c.dilation_width == 1;
    EXPECT_EQ(RunAndExpectMatch(c), is_plain ? "eng3_k2=7_k14=3" : "eng1_k2=5") << ToString(c);
  }
}

TEST_F(CudnnConvolutionTest, TransposesToNchwWhereNoEngineTakesNhwc) {
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : AllCases()) {
    EXPECT_TRUE(StartsWith(RunAndExpectMatch(c), IsTransposed(c) ? "nchw+eng" : "")) << ToString(c);
  }
  const int before = FakeCudnnCounts().copies;
  RunAndExpectMatch(MakeVolume());
  EXPECT_EQ(FakeCudnnCounts().copies - before, 3) << "filter, image and output, each in one";
}

TEST_F(CudnnConvolutionTest, FusesSplitsAndTransposesEveryEpilogueAsEnginesAllow) {
  for (const bool fuses : {true, false}) {
    for (const bool takes_nhwc : {true, false}) {
      UseNewContext();
      FakeCudnn().no_fused_convolution = !fuses;
      FakeCudnn().no_nhwc = !takes_nhwc;
      for (const Convolution& c : EveryEpilogue()) {
        const std::string split = fuses ? "" : "split+";
        const std::string nchw = takes_nhwc || !IsTransposed(c) ? "eng" : "nchw+eng";
        EXPECT_TRUE(StartsWith(RunAndExpectMatch(c), split + nchw)) << ToString(c);
      }
    }
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

TEST_F(CudnnConvolutionTest, RunsEveryLegacyName) {
  for (const Convolution& c : AllCases()) {
    for (const std::string& name : LegacyNamesOf(c.kind)) {
      if (HasAsymmetricPadding(c)) {
        EXPECT_EQ(PrepareError(c, name).code(), StatusCode::kUnsupported);
        continue;
      }
      const std::string ran = RunAndExpectMatch(c, name);
      EXPECT_EQ(ran.substr(ran.rfind('+') + 1), name);
    }
  }
  for (const Convolution& c : EveryEpilogue()) {
    if (HasAsymmetricPadding(c)) continue;
    for (const char* name : {"IMPLICIT_PRECOMP_GEMM", "FFT"}) {
      EXPECT_TRUE(StartsWith(RunAndExpectMatch(c, name), "split+"));
    }
  }
}

TEST_F(CudnnConvolutionTest, CopiesAFilterOnlyWhereItsOrderDiffersAndNotWhereItWasTransformed) {
  for (const Convolution& c : WithEveryKindAndLayout(Geometries())) {
    for (const char* name : {"eng1", "ALGO_1", "IMPLICIT_PRECOMP_GEMM"}) {
      std::shared_ptr<const PreparedConvolution> prepared;
      if (!backend_->Prepare(c, name, options_, &prepared).ok()) continue;
      const int before = FakeCudnnCounts().copies;
      ExpectMatches(c, *prepared);
      const int of_launch = FakeCudnnCounts().copies - before;
      if (prepared->transformed_filter_bytes() == 0) continue;
      EXPECT_EQ(prepared->transformed_filter_bytes(), c.filter_elements() * SizeOf(c.dtype));
      ExpectMatches(c, *prepared, /*transforms=*/true);
      EXPECT_EQ(FakeCudnnCounts().copies - before - of_launch, 1 + 2 * (of_launch - 1))
          << "one transformation, and two launches without one";
    }
  }
  Convolution fused = MakeAsymmetric();
  fused.has_bias = true;
  for (const char* name : {"eng1", "split+eng1", "nchw+eng1", "split+nchw+eng1"}) {
    ExpectMatches(fused, *PrepareOk(fused, name), /*transforms=*/true);
  }
  Convolution ordered = MakeConvolution();
  ordered.group_count = ordered.output_channels = ordered.image_channels;
  ordered.filter_height = ordered.filter_width = 1;
  CompleteSame(&ordered);
  const int before = FakeCudnnCounts().copies;
  RunAndExpectMatch(ordered);
  EXPECT_EQ(FakeCudnnCounts().copies, before);
  for (const Convolution& c : {ordered, MakeConvolution(ConvolutionKind::kBackwardFilter)}) {
    const auto prepared = PrepareOk(c);
    EXPECT_EQ(prepared->transformed_filter_bytes(), 0u);
    GuardedBuffer filter(1024), transformed(1024);
    EXPECT_TRUE(IsError(TransformFilter(*prepared, filter.data(), transformed.data()),
                        StatusCode::kInvalidArgument, {prepared->algorithm()}));
  }
}

TEST_F(CudnnConvolutionTest, RefusesPointersThatAreMissingOrNotAligned) {
  const auto prepared = PrepareOk(MakeConvolution());
  Problem problem(MakeConvolution());
  unsigned char* const workspace = problem.NewBuffer(prepared->workspace_bytes() + 16).data();
  unsigned char* const other = problem.NewBuffer(prepared->transformed_filter_bytes() + 16).data();
  const ConvolutionBuffers buffers = problem.buffers();
  ConvolutionBuffers shifted = buffers, transformed = buffers;
  shifted.inputs[0] = static_cast<const char*>(shifted.inputs[0]) + 4;
  transformed.transformed_filter = other + 4;
  for (const auto& [status, part] : std::vector<std::pair<Status, std::string>>{
           {Launch(*prepared, buffers, nullptr), "workspace"},
           {Launch(*prepared, buffers, workspace + 4), "workspace"},
           {Launch(*prepared, shifted, workspace), "input aligned to 16 bytes"},
           {Launch(*prepared, transformed, workspace), "transformed filter"},
           {TransformFilter(*prepared, nullptr, other), "filter"},
           {TransformFilter(*prepared, buffers.inputs[1], other + 4), "transformed filter"}}) {
    EXPECT_TRUE(IsError(status, StatusCode::kInvalidArgument, {part}));
  }
}

}  // namespace
}  // namespace tf_interop
