// The results of the cudnn backend, on stand-ins for libcuda and libcudnn that check ranks and
// types and compute on the host: every kind, layout, type, padding, stride, dilation, group count,
// epilogue and formulation, for images and volumes, against the definition of a convolution.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
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
  std::vector<Convolution> cases;
  for (const auto& some :
       {WithEveryKindAndLayout(Geometries(), dtypes),
        WithEveryKindAndLayout(VolumeGeometries(), dtypes),
        WithEveryKindAndLayout({MakeConvolution(), MakeVolume(), MakeAsymmetric()},
                               {DataType::kBFloat16})}) {
    std::copy_if(some.begin(), some.end(), std::back_inserter(cases),
                 [](const Convolution& c) { return CheckPadding(c).ok(); });
  }
  return cases;
}

std::vector<Convolution> FusedCases() {
  std::vector<Convolution> cases = {MakeFused(Layout::kNHWC, DataType::kHalf),
                                    MakeFused(Layout::kNCHW, DataType::kDouble), MakeVolume()};
  cases.back().has_bias = true;
  for (const Convolution& c : EveryEpilogue()) {
    if (HasEpilogue(c) && c.dtype == DataType::kFloat) cases.push_back(c);
  }
  // Only then may NCHW be split too.
  for (Convolution& c : cases) c.batch = 1;
  return cases;
}

TEST_F(CudnnConvolutionTest, MatchesReferenceForEveryGeometryInEveryFormulation) {
  for (const Convolution& c : AllCases()) {
    RunAndExpectMatch(c);
    if (c.layout == Layout::kNHWC && c.dtype == DataType::kHalf) {
      RunAndExpectMatch(c, Engines(c, {false, true})[0]);
    }
  }
  const int before = FakeCudnnCounts().copies;
  RunAndExpectMatch(MakeVolume(), Engines(MakeVolume(), {false, true})[0]);
  EXPECT_EQ(FakeCudnnCounts().copies - before, 3) << "one each for filter, image and output";
}

TEST_F(CudnnConvolutionTest, RefusesPaddingBeyondTheReachOfTheFilterOrWiderThanTheImage) {
  Convolution c = MakeConvolution(ConvolutionKind::kBackwardFilter);
  const struct {
    int64_t image_width, filter_width, pad_right;
    std::string reason;  // "" if it is allowed
  } cases[] = {{5, 3, 2, ""},
               {5, 3, 3, "at most 2, the reach of the filter"},
               {2, 4, 2, ""},
               {2, 4, 3, "and 2, the image, got 3"}};
  for (const auto& each : cases) {
    c.image_width = each.image_width;
    c.filter_width = each.filter_width;
    c.pad_left = 0;
    c.pad_right = each.pad_right;
    CompleteFromPads(&c);
    ASSERT_TRUE(IsOk(Validate(c)));
    EXPECT_EQ(CheckPadding(c).ok(), each.reason.empty());
    if (each.reason.empty()) continue;
    EXPECT_TRUE(IsError(PrepareError(c), StatusCode::kUnsupported, {each.reason}));
  }
}

TEST_F(CudnnConvolutionTest, SplitsNoBiasOfSeveralImagesInNchw) {
  Convolution c = MakeFused(Layout::kNHWC, DataType::kHalf);
  ASSERT_GT(c.batch, 1);
  const auto splits_nchw = [](const Convolution& each) {
    const std::vector<Formulation> all = FormulationsOf(each);
    return std::any_of(all.begin(), all.end(), [&](const Formulation& formulation) {
      return formulation.splits_epilogue &&
             FormulatedConvolution(each, formulation).layout == Layout::kNCHW;
    });
  };
  EXPECT_FALSE(splits_nchw(c));
  EXPECT_FALSE(splits_nchw(MakeFused(Layout::kNCHW, DataType::kHalf)));
  c.batch = 1;
  EXPECT_TRUE(splits_nchw(c));
  c.batch = 2;
  c.has_bias = false;
  EXPECT_TRUE(splits_nchw(c));
}

TEST_F(CudnnConvolutionTest, FusesSplitsAndTransposesEveryEpilogue) {
  for (const Convolution& c : FusedCases()) {
    const bool is_leaky = c.activation == Activation::kLeakyRelu;
    RunAndExpectMatch(c);
    if (c.dtype != DataType::kFloat || c.activation == Activation::kElu) continue;
    for (const Formulation& formulation : FormulationsOf(c)) {
      if (!formulation.splits_epilogue || c.has_bias == is_leaky) continue;
      RunAndExpectMatch(c, Engines(c, formulation)[0]);
    }
  }
}

TEST_F(CudnnConvolutionTest, RunsEveryLegacyName) {
  for (const Convolution& c : AllCases()) {
    for (const std::string& name : LegacyNamesOf(c.kind)) {
      if (HasAsymmetricPadding(c)) {
        EXPECT_EQ(PrepareError(c, name).code(), StatusCode::kUnsupported);
        continue;
      }
      // The stand-in's FFT refuses NHWC, so the name means the next formulation.
      const bool is_refused =
          c.layout == Layout::kNHWC && c.image_channels > 1 && name.rfind("FFT", 0) == 0;
      EXPECT_EQ(RunAndExpectMatch(c, name), (is_refused ? "nchw+" : "") + name);
      EXPECT_EQ(FakeCudnnCounts().last_legacy_name.load(), name);
    }
  }
  for (const Convolution& c : FusedCases()) {
    if (HasAsymmetricPadding(c)) continue;
    if (c.dtype == DataType::kDouble) continue;  // no engine for the epilogue
    for (const char* name : {"IMPLICIT_PRECOMP_GEMM", "FFT"}) {
      EXPECT_EQ(RunAndExpectMatch(c, name).rfind("split+", 0), 0u);
    }
  }
}

TEST_F(CudnnConvolutionTest, CopiesAFilterOnlyIfItsOrderDiffersAndItWasNotTransformed) {
  for (const Convolution& c : WithEveryKindAndLayout(Geometries())) {
    for (const char* name : {"", "ALGO_1", "IMPLICIT_PRECOMP_GEMM"}) {
      std::shared_ptr<const PreparedConvolution> prepared;
      if (!backend_->Prepare(c, name, options_, &prepared).ok()) continue;
      const int before = FakeCudnnCounts().copies;
      ExpectMatches(c, *prepared);
      const int of_launch = FakeCudnnCounts().copies - before;
      if (prepared->transformed_filter_bytes() == 0) continue;
      EXPECT_EQ(prepared->transformed_filter_bytes(), c.filter_elements() * SizeOf(c.dtype));
      ExpectMatches(c, *prepared, /*transforms=*/true);
      EXPECT_EQ(FakeCudnnCounts().copies - before, 2 * of_launch)
          << "one transformation, and a launch without one";
    }
  }
  Convolution fused = MakeAsymmetric();
  fused.has_bias = true;
  for (const Formulation& formulation : FormulationsOf(fused)) {
    ExpectMatches(fused, *PrepareOk(fused, Engines(fused, formulation)[0]), /*transforms=*/true);
  }
  Convolution ordered = MakeConvolution();
  ordered.group_count = ordered.output_channels = ordered.image_channels;
  ordered.filter_height = ordered.filter_width = 1;
  CompleteSame(&ordered);
  const int before = FakeCudnnCounts().copies;
  RunAndExpectMatch(ordered);
  EXPECT_EQ(FakeCudnnCounts().copies, before);
  for (const Convolution& c : {ordered, MakeConvolution(ConvolutionKind::kBackwardFilter)}) {
    EXPECT_EQ(PrepareOk(c)->transformed_filter_bytes(), 0u);
  }
}

TEST_F(CudnnConvolutionTest, RefusesMissingAndMisalignedPointers) {
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
