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
  std::vector<Convolution> cases = {MakeFused(Layout::kNHWC, DataType::kHalf),
                                    MakeFused(Layout::kNCHW, DataType::kDouble), MakeVolume()};
  cases.back().has_bias = true;
  for (const Convolution& c : WithEveryEpilogue({MakeConvolution()})) {
    if (HasEpilogue(c) && c.dtype == DataType::kFloat) cases.push_back(c);
  }
  return cases;
}

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.rfind(prefix, 0) == 0;
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
  EXPECT_EQ(FakeCudnnCounts().copies - before, 3) << "filter, image and output, each in one";
}

TEST_F(CudnnConvolutionTest, FusesSplitsAndTransposesEveryEpilogue) {
  for (const Convolution& c : EveryEpilogue()) {
    // cuDNN 9.8 has engines for what TensorFlow fuses alone, and none for LeakyRelu.
    const bool is_leaky = c.activation == Activation::kLeakyRelu;
    if (IsOldCudnn() && (!c.has_bias || is_leaky)) continue;
    RunAndExpectMatch(c);
    if (c.dtype != DataType::kFloat || IsOldCudnn() || c.activation == Activation::kElu) continue;
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
      const std::string ran = RunAndExpectMatch(c, name);
      EXPECT_EQ(ran.substr(ran.rfind('+') + 1), name);
    }
  }
  for (const Convolution& c : EveryEpilogue()) {
    if (HasAsymmetricPadding(c)) continue;
    if (c.dtype == DataType::kDouble || IsOldCudnn()) continue;  // no engine for the epilogue
    for (const char* name : {"IMPLICIT_PRECOMP_GEMM", "FFT"}) {
      EXPECT_TRUE(StartsWith(RunAndExpectMatch(c, name), "split+"));
    }
  }
}

TEST_F(CudnnConvolutionTest, CopiesAFilterOnlyWhereItsOrderDiffersAndNotWhereItWasTransformed) {
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
    if (formulation.splits_epilogue && IsOldCudnn()) continue;
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
    const auto prepared = PrepareOk(c);
    EXPECT_EQ(prepared->transformed_filter_bytes(), 0u);
    GuardedBuffer filter(1024), transformed(1024);
    EXPECT_TRUE(IsError(TransformFilter(*prepared, filter.data(), transformed.data()),
                        StatusCode::kInvalidArgument, {prepared->algorithm()}));
  }
}

// Every kind, layout, type, rank and epilogue that TensorFlow's ops have, of a layer with unequal
// paddings and of a depthwise one.
std::vector<Convolution> CasesOfLayers() {
  std::vector<Convolution> layers;
  for (Convolution c : {MakeConvolution(), MakeVolume()}) {
    c.image_height = c.image_width = 56;
    c.image_channels = 64;
    c.output_channels = 128;
    c.stride_height = c.stride_width = 2;
    layers.push_back(c);
    c.image_channels = c.output_channels = c.group_count = 96;
    c.stride_height = c.stride_width = 1;
    layers.push_back(c);
  }
  for (Convolution& c : layers) CompleteSame(&c);
  std::vector<Convolution> cases = WithEveryKindAndLayout(
      layers, {DataType::kFloat, DataType::kHalf, DataType::kBFloat16, DataType::kDouble});
  for (size_t i = cases.size(); i-- > 0;) {
    Convolution c = cases[i];
    if (c.kind != ConvolutionKind::kForward) continue;
    c.has_bias = true;  // TensorFlow fuses no activation without one
    for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6,
                                        Activation::kLeakyRelu, Activation::kElu}) {
      c.activation = activation;
      if (c.spatial_rank == 2 || activation <= Activation::kRelu) cases.push_back(c);
    }
  }
  return cases;
}

// What TensorFlow runs by itself, as the ladder has it: no engine of this cuDNN is for it.
bool HasNoEngine(const Convolution& c, const std::string& device) {
  if (c.dtype == DataType::kBFloat16 && device == "t4") return true;
  return c.activation == Activation::kLeakyRelu && (c.dtype == DataType::kDouble || IsOldCudnn());
}

class CudnnOnOtherDevicesTest : public CudnnTest,
                                public testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Devices, CudnnOnOtherDevicesTest, testing::Values("a100", "t4"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudnnOnOtherDevicesTest, EveryConvolutionHasAPlanOrIsKnownToHaveNone) {
  FakeCudnn().device = GetParam();
  options_.workspace_limit_bytes = size_t{8} << 30;
  for (const Convolution& c : CasesOfLayers()) {
    for (const bool allow_tf32 : {true, false}) {
      if (!allow_tf32 && c.dtype != DataType::kFloat) continue;
      options_.allow_tf32 = allow_tf32;
      std::shared_ptr<const PreparedConvolution> chosen, again;
      const Status status = backend_->Prepare(c, "", options_, &chosen);
      if (HasNoEngine(c, GetParam())) {
        EXPECT_EQ(status.code(), StatusCode::kUnsupported) << ToString(c);
        continue;
      }
      ASSERT_TRUE(IsOk(status)) << ToString(c);
      ASSERT_TRUE(IsOk(backend_->Prepare(c, chosen->algorithm(), options_, &again)));
      EXPECT_EQ(again->algorithm(), chosen->algorithm()) << ToString(c);
    }
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
