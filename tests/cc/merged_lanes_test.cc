// Lanes whose convolutions run as one wider convolution, on the host backend: what is merged, what
// is not and why, and that results are those of the convolutions by themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/merged_convolution.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/is_error.h"
#include "tests/cc/merged_problem.h"

namespace tf_interop {
namespace {

constexpr Tolerance kExact = {0, 0};
// Sums in float, exponentials, and one rounding to 16 bits.
constexpr Tolerance kRounded = {1e-6, 1e-3};

// Notes the convolutions that are launched.
class NotingBackend : public HostBackend {
 public:
  explicit NotingBackend(HostLaunchHook hook = nullptr) : HostBackend(SerialFor, std::move(hook)) {}

  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override {
    algorithms.push_back(prepared.algorithm());
    return HostBackend::Launch(prepared, buffers, workspace, group, stream);
  }
  Status CopyRows(const void* source, size_t source_pitch, void* destination,
                  size_t destination_pitch, size_t row_bytes, size_t rows, Stream stream) override {
    if (copies == fail_copy) return Internal("no copy");
    ++copies;
    return HostBackend::CopyRows(source, source_pitch, destination, destination_pitch, row_bytes,
                                 rows, stream);
  }

  std::vector<std::string> algorithms;
  int copies = 0;
  int fail_copy = -1;
};

// Runs a stage on workspaces of exactly the size that it asks for.
Status RunToEnd(HostBackend* backend, const PreparedStage& stage,
                const std::vector<ConvolutionBuffers>& buffers,
                const std::vector<const void*>& joined_filters = {}) {
  std::vector<GuardedBuffer> workspaces;
  std::vector<void*> pointers;
  for (const size_t bytes : stage.lane_workspace_bytes) workspaces.emplace_back(bytes);
  for (GuardedBuffer& workspace : workspaces) pointers.push_back(workspace.data());
  const std::unique_ptr<HostStream> caller = NewCaller();
  const Status status =
      RunStage(backend, stage, {buffers, pointers, joined_filters, nullptr}, caller.get());
  caller->Synchronize();
  for (const GuardedBuffer& workspace : workspaces) EXPECT_TRUE(workspace.IsIntact());
  return status;
}

// Why the one lane of `stage` is not merged; "" where it is.
std::string RefusalOf(const Stage& stage, size_t limit = kAnyWorkspace.workspace_limit_bytes) {
  HostBackend backend(SerialFor);
  const PreparedStage prepared = Prepared(&backend, stage, {limit});
  EXPECT_EQ(prepared.merged.empty(), !prepared.unmerged.empty());
  return prepared.unmerged.empty() ? "" : prepared.unmerged.front();
}

Convolution AsInput(Layout layout, DataType dtype) {
  return MakeConvolution(ConvolutionKind::kForward, layout, dtype);
}

TEST(MergeConvolutionsTest, DescribesTheWiderConvolutionAndItsMemory) {
  Convolution c = AsInput(Layout::kNHWC, DataType::kHalf);
  c.has_bias = true;
  MergedConvolution merged;
  ASSERT_TRUE(MergeConvolutions(WithOutputChannels(c, {6, 1, 9}), &merged).ok());
  c.output_channels = 16;
  EXPECT_EQ(merged.wide, c);
  EXPECT_EQ(merged.filter.rows, 3u * 3 * 4);
  EXPECT_EQ(merged.filter.row_bytes, 32u);
  EXPECT_EQ(merged.filter.part_row_bytes, (std::vector<size_t>{12, 2, 18}));
  EXPECT_EQ(merged.bias.rows, 1u);
  EXPECT_EQ(merged.bias.row_bytes, 32u);
  EXPECT_EQ(merged.output.rows, 2u * 6 * 5);
  EXPECT_EQ(merged.output.part_row_bytes, (std::vector<size_t>{12, 2, 18}));
  EXPECT_EQ(merged.filter.workspace_offset, 0u);
  EXPECT_EQ(merged.bias.workspace_offset, 1280u);  // 36 rows of 32 bytes, on 256 bytes
  EXPECT_EQ(merged.output.workspace_offset, 1536u);
  EXPECT_EQ(merged.joined_bytes, 1536u + 2048u);
}

TEST(MergeConvolutionsTest, OutputsInNchwAreAPlaneForEachChannel) {
  MergedConvolution merged;
  ASSERT_TRUE(MergeConvolutions(
                  WithOutputChannels(AsInput(Layout::kNCHW, DataType::kFloat), {6, 2}), &merged)
                  .ok());
  EXPECT_EQ(merged.output.rows, 2u);
  EXPECT_EQ(merged.output.part_row_bytes, (std::vector<size_t>{6 * 30 * 4, 2 * 30 * 4}));
  EXPECT_EQ(merged.bias.bytes(), 0u);
}

TEST(MergeConvolutionsTest, RefusesRowsThatAreFurtherApartThanCudaCopies) {
  Convolution c = AsInput(Layout::kNCHW, DataType::kFloat);
  c.image_height = c.image_width = 30000;
  CompleteSame(&c);
  MergedConvolution merged;
  EXPECT_TRUE(IsError(MergeConvolutions(WithOutputChannels(c, {1, 1}), &merged),
                      StatusCode::kUnsupported, {"got 7200000000"}));
}

TEST(MergeConvolutionsTest, RefusesMoreChannelsThanAConvolutionMayHave) {
  Convolution c;
  c.batch = c.image_height = c.image_width = c.image_channels = 1;
  c.filter_height = c.filter_width = c.output_height = c.output_width = 1;
  MergedConvolution merged;
  EXPECT_TRUE(IsError(MergeConvolutions(WithOutputChannels(c, {1 << 30, 1 << 30}), &merged),
                      StatusCode::kUnsupported, {"output_channels"}));
}

class MergedTypesTest : public testing::TestWithParam<std::tuple<Layout, DataType>> {};

TEST_P(MergedTypesTest, GivesWhatTheConvolutionsGiveByThemselves) {
  const auto [layout, dtype] = GetParam();
  for (const std::string algorithm : {"IM2COL_GEMM", "EIGEN_SPATIAL", "DIRECT"}) {
    SCOPED_TRACE(algorithm);
    const auto parts = WithOutputChannels(AsInput(layout, dtype), {6, 1, 9});
    MergedProblem problem(parts);
    NotingBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts, algorithm));
    EXPECT_TRUE(stage.fallbacks.empty());
    ASSERT_TRUE(RunToEnd(&backend, stage, problem.Buffers()).ok());
    problem.ExpectCorrect(kExact);
    EXPECT_EQ(backend.algorithms, std::vector<std::string>{algorithm});
    EXPECT_EQ(backend.copies, 6);  // filters and results
  }
}

TEST_P(MergedTypesTest, AppliesEachBiasAndTheActivation) {
  const auto [layout, dtype] = GetParam();
  for (const Activation activation : {Activation::kNone, Activation::kRelu, Activation::kRelu6,
                                      Activation::kLeakyRelu, Activation::kElu}) {
    SCOPED_TRACE(ToString(activation));
    Convolution c = AsInput(layout, dtype);
    c.has_bias = true;
    c.activation = activation;
    const auto parts = WithOutputChannels(c, {5, 3});
    MergedProblem problem(parts);
    NotingBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts));
    ASSERT_TRUE(RunToEnd(&backend, stage, problem.Buffers()).ok());
    problem.ExpectCorrect(kRounded);
    EXPECT_EQ(backend.algorithms.size(), 1u);
  }
}

INSTANTIATE_TEST_SUITE_P(LayoutsAndTypes, MergedTypesTest,
                         testing::Combine(testing::Values(Layout::kNHWC, Layout::kNCHW),
                                          testing::Values(DataType::kFloat, DataType::kHalf,
                                                          DataType::kBFloat16)));

TEST(MergedLanesTest, GivesTheSameInEveryGeometry) {
  for (const Convolution& c : Geometries()) {
    if (c.group_count > 1) continue;
    SCOPED_TRACE(ToString(c));
    const auto parts = WithOutputChannels(c, {3, 4});
    MergedProblem problem(parts);
    NotingBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts));
    ASSERT_TRUE(RunToEnd(&backend, stage, problem.Buffers()).ok());
    problem.ExpectCorrect(kExact);
    EXPECT_EQ(backend.algorithms.size(), 1u);
  }
}

// As TensorFlow would drive it, with delays: a copy that did not wait for the image's writer, or
// that the caller did not wait for, would show.
TEST(MergedLanesTest, RunsBesideOtherLanesInsideForkAndJoin) {
  const auto delay = [](const Convolution&) {
    std::this_thread::sleep_for(std::chrono::microseconds(300));
    return Status::Ok();
  };
  const auto parts = WithOutputChannels(AsInput(Layout::kNHWC, DataType::kFloat), {6, 2, 5, 3, 4});
  const Stage planned = WithOptions(StageOf(StepsOf(parts), {0, 1, 1, 2, 2}),
                                    {LaneOptions(), kMergedLane, kMergedLane});
  NotingBackend backend(delay);
  const PreparedStage stage = Prepared(&backend, planned);
  ASSERT_EQ(stage.merged.size(), 2u);
  for (int round = 0; round < 20; ++round) {
    MergedProblem problem(parts);
    const std::vector<unsigned char> image(problem.image(),
                                           problem.image() + problem.image_bytes());
    std::memset(problem.image(), 0xFF, image.size());
    std::vector<GuardedBuffer> workspaces;
    for (const size_t bytes : stage.lane_workspace_bytes) workspaces.emplace_back(bytes);
    const std::unique_ptr<HostStream> caller = NewCaller();
    caller->Enqueue([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::memcpy(problem.image(), image.data(), image.size());
      return Status::Ok();
    });
    const StageBuffers buffers =
        problem.Bind({workspaces[0].data(), workspaces[1].data(), workspaces[2].data()});
    ASSERT_TRUE(RunStage(&backend, stage, buffers, caller.get()).ok());
    caller->Enqueue([&] {
      problem.ExpectCorrect(kExact);
      return Status::Ok();
    });
    caller->Synchronize();
  }
  EXPECT_EQ(backend.algorithms.size(), 60u);  // three launches in each round
}

TEST(MergedLanesTest, ConvolutionsThatDoNotFitTogetherAreNotMerged) {
  const Convolution c = AsInput(Layout::kNHWC, DataType::kFloat);
  const auto refusal_of = [&c](auto change) {
    std::vector<Convolution> parts = WithOutputChannels(c, {6, 2});
    change(&parts[1]);
    CompleteSame(&parts[1]);
    return RefusalOf(MergedStage(parts));
  };
  EXPECT_EQ(refusal_of([](Convolution*) {}), "");
  const std::string differ = "differ in output channels only";
  for (const std::string& refusal :
       {refusal_of([](Convolution* part) { part->filter_width = 1; }),
        refusal_of([](Convolution* part) { part->stride_height = 2; }),
        refusal_of([](Convolution* part) { part->dilation_width = 2; }),
        refusal_of([](Convolution* part) { part->image_width = 7; }),
        refusal_of([](Convolution* part) { part->dtype = DataType::kHalf; }),
        refusal_of([](Convolution* part) { part->layout = Layout::kNCHW; }),
        refusal_of([](Convolution* part) { part->has_bias = true; }),
        refusal_of([](Convolution* part) { part->activation = Activation::kRelu; })}) {
    EXPECT_NE(refusal.find("that of convolution 'a': "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(differ), std::string::npos) << refusal;
  }
  Convolution grouped = c, gradient = c;
  grouped.group_count = 2;
  gradient.kind = ConvolutionKind::kBackwardInput;
  for (const Convolution& other : {grouped, gradient}) {
    const std::string refusal = RefusalOf(MergedStage({other, other}));
    EXPECT_NE(refusal.find("forward convolutions without groups"), std::string::npos) << refusal;
  }
}

TEST(MergedLanesTest, StepsOfDifferentAlgorithmsAreNotMerged) {
  Stage stage = MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}));
  stage.steps[1].algorithm = "DIRECT";
  EXPECT_NE(RefusalOf(stage).find("got '' and 'DIRECT'"), std::string::npos);
}

TEST(MergedLanesTest, AnAlgorithmThatCannotRunTheWiderConvolutionLeavesTheLaneUnmerged) {
  const Stage stage = MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}), "FFT");
  EXPECT_NE(RefusalOf(stage).find("got FFT"), std::string::npos);
}

TEST(MergedLanesTest, TheWorkspaceLimitIsForTheJoinedTensorsToo) {
  const Stage stage = MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}), "IM2COL_GEMM");
  HostBackend backend(SerialFor);
  const PreparedStage ample = Prepared(&backend, stage);
  const size_t bytes = ample.lane_workspace_bytes[0];
  EXPECT_EQ(bytes, ample.merged[0].merge.workspace_bytes());
  EXPECT_GT(bytes, ample.merged[0].merge.merged.joined_bytes);
  EXPECT_EQ(RefusalOf(stage, bytes), "");
  EXPECT_NE(RefusalOf(stage, bytes - 1).find("the limit is"), std::string::npos);
  EXPECT_NE(RefusalOf(stage, 100).find("leave too little of the limit of 100"), std::string::npos);
}

// So that a merged lane takes no memory for what it does not run.
TEST(MergedLanesTest, StepsByThemselvesTakeNoMoreWorkspaceThanMerged) {
  class WideTakesLess : public HostBackend {
   public:
    WideTakesLess() : HostBackend(SerialFor) {}
    Status Prepare(const Convolution& convolution, const std::string& algorithm,
                   const PrepareOptions& options,
                   std::shared_ptr<const PreparedConvolution>* prepared) override {
      const bool is_wide = convolution.output_channels == 8;
      return HostBackend::Prepare(convolution, is_wide ? "DIRECT" : algorithm, options, prepared);
    }
  } backend;
  Convolution c = MakeConvolution();
  c.image_channels = 64;  // patches are larger than joined filters and outputs
  c.image_height = c.image_width = 12;
  CompleteSame(&c);
  const PreparedStage stage =
      Prepared(&backend, MergedStage(WithOutputChannels(c, {6, 2}), "IM2COL_GEMM"));
  EXPECT_TRUE(stage.fallbacks.empty());
  ASSERT_EQ(stage.merged.size(), 1u);
  EXPECT_EQ(stage.lane_workspace_bytes[0], stage.merged[0].merge.workspace_bytes());
  EXPECT_EQ(stage.merged[0].fallbacks_unmerged.size(), 2u);
  EXPECT_EQ(stage.steps[0].convolution->algorithm(), "DIRECT");
}

TEST(MergedLanesTest, ImagesThatAreNotOneBufferAreConvolvedByThemselvesAndCounted) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2, 3});
  MergedProblem problem(parts);
  GuardedBuffer other_image(problem.image_bytes());
  std::memcpy(other_image.data(), problem.image(), problem.image_bytes());
  std::vector<ConvolutionBuffers> buffers = problem.Buffers();
  buffers[2].inputs[0] = other_image.data();
  NotingBackend backend;
  const PreparedStage stage = Prepared(&backend, MergedStage(parts, "DIRECT"));
  const int64_t before = CountFallbacks(
      "a lane ran unmerged: that of convolution 'a': Its convolutions read different images");
  ASSERT_TRUE(RunToEnd(&backend, stage, buffers).ok());
  problem.ExpectCorrect(kExact);
  EXPECT_EQ(backend.algorithms.size(), 3u);
  EXPECT_EQ(backend.copies, 0);
  EXPECT_EQ(
      CountFallbacks(
          "a lane ran unmerged: that of convolution 'a': Its convolutions read different images"),
      before + 1);
}

TEST(MergedLanesTest, WhatHasNothingToComputeIsLeftOut) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 0, 3});
  MergedProblem problem(parts);
  NotingBackend backend;
  const PreparedStage stage = Prepared(&backend, MergedStage(parts));
  EXPECT_TRUE(stage.fallbacks.empty());
  ASSERT_EQ(stage.merged.size(), 1u);
  EXPECT_EQ(stage.merged[0].steps, (std::vector<size_t>{0, 2}));
  ASSERT_TRUE(RunToEnd(&backend, stage, problem.Buffers()).ok());
  problem.ExpectCorrect(kExact);
  EXPECT_EQ(backend.algorithms.size(), 1u);
}

TEST(MergedLanesTest, EmptyBatchesAndEmptyImagesAreNoFallback) {
  Convolution no_images = MakeConvolution(), no_pixels = MakeConvolution();
  no_images.batch = 0;
  no_pixels.image_height = 0;
  no_pixels.pad_top = no_pixels.pad_bottom = 2;
  CompleteFromPads(&no_pixels);
  ASSERT_GT(no_pixels.output_elements(), 0);
  for (const Convolution& c : {no_images, no_pixels}) {
    const auto parts = WithOutputChannels(c, {6, 2});
    MergedProblem problem(parts);
    NotingBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts));
    EXPECT_TRUE(stage.fallbacks.empty());
    EXPECT_TRUE(stage.merged.empty());
    ASSERT_TRUE(RunToEnd(&backend, stage, problem.Buffers()).ok());
    problem.ExpectCorrect(kExact);
    EXPECT_TRUE(backend.algorithms.empty());
  }
}

TEST(MergedLanesTest, LanesBeyondTheLimitAreMergedAndRunAfterOthers) {
  const auto parts = WithOutputChannels(MakeConvolution(), std::vector<int64_t>(kMaxLanes + 2, 2));
  std::vector<int> step_lanes(kMaxLanes + 2, kMaxLanes);
  for (int i = 0; i <= kMaxLanes; ++i) step_lanes[i] = i;
  Stage planned = StageOf(StepsOf(parts), step_lanes);
  planned.lanes[kMaxLanes].merged = true;
  MergedProblem problem(parts);
  NotingBackend backend;
  const PreparedStage stage = Prepared(&backend, planned);
  ASSERT_EQ(stage.merged.size(), 1u);
  EXPECT_GE(stage.lane_workspace_bytes[0], stage.merged[0].merge.workspace_bytes());
  ASSERT_TRUE(RunToEnd(&backend, stage, problem.Buffers()).ok());
  problem.ExpectCorrect(kExact);
  EXPECT_EQ(backend.algorithms.size(), static_cast<size_t>(kMaxLanes) + 1);
}

TEST(MergedLanesTest, AJoinedFilterIsReadInPlaceOfTheFilters) {
  for (const DataType dtype : {DataType::kFloat, DataType::kHalf}) {
    const auto parts = WithOutputChannels(AsInput(Layout::kNHWC, dtype), {6, 2});
    MergedProblem problem(parts);
    NotingBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts));
    const PreparedMerge& merge = stage.merged[0].merge;
    std::vector<ConvolutionBuffers> buffers = problem.Buffers();
    // The host reads filters as float.
    EXPECT_EQ(merge.joined_filter_bytes(), merge.merged.wide.filter_elements() * sizeof(float));
    GuardedBuffer joined(merge.joined_filter_bytes()), workspace(merge.workspace_bytes());
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend.Acquire(&group).ok());
    ASSERT_TRUE(EnqueueJoinedFilter(&backend, merge, {buffers[0].inputs[1], buffers[1].inputs[1]},
                                    workspace.data(), joined.data(), group.get(), group->stream())
                    .ok());
    static_cast<HostStream*>(group->stream())->Synchronize();
    backend.Release(std::move(group));
    EXPECT_TRUE(joined.IsIntact());
    EXPECT_TRUE(workspace.IsIntact());
    buffers[0].inputs[1] = buffers[1].inputs[1] = nullptr;  // a launch that read them would crash
    backend.copies = 0;
    ASSERT_TRUE(RunToEnd(&backend, stage, buffers, {joined.data()}).ok());
    problem.ExpectCorrect(kExact);
    EXPECT_EQ(backend.copies, 2);  // of results alone
  }
}

TEST(MergedLanesTest, RefusesJoinedFiltersForSomeMergedLanes) {
  NotingBackend backend;
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  MergedProblem problem(parts);
  const PreparedStage stage = Prepared(&backend, MergedStage(parts));
  EXPECT_TRUE(IsError(RunToEnd(&backend, stage, problem.Buffers(), {nullptr, nullptr}),
                      StatusCode::kInvalidArgument, {"all of 1 merged lanes, got 2"}));
}

TEST(MergedLanesTest, ACopyThatFailsNamesItsLane) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  for (int fail_copy = 0; fail_copy < 4; ++fail_copy) {
    MergedProblem problem(parts);
    NotingBackend backend;
    backend.fail_copy = fail_copy;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts, "DIRECT"));
    EXPECT_EQ(RunToEnd(&backend, stage, problem.Buffers()).message(),
              "Convolution 'a + b' with algorithm DIRECT: no copy");
  }
}

}  // namespace
}  // namespace tf_interop
