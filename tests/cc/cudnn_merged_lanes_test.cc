// Lanes whose convolutions run as one wider convolution, on stand-ins for libcuda and libcudnn: one
// plan for all of them, and copies in order on the stream of the lane.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/transformed_filters.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/is_error.h"
#include "tests/cc/merged_problem.h"

namespace tf_interop {
namespace {

class CudnnMergedLanesTest : public CudnnBackendTest {
 protected:
  // As TensorFlow runs it: the image appears on the caller's stream just before, and vanishes on it
  // just after.
  Status RunOnce(const PreparedStage& stage, MergedProblem<>* problem) {
    const std::vector<unsigned char> image(problem->image(),
                                           problem->image() + problem->image_bytes());
    std::memset(problem->image(), 0xFF, image.size());
    std::vector<Buffer> workspaces;
    std::vector<void*> pointers;
    for (const size_t bytes : stage.lane_workspace_bytes) workspaces.emplace_back(bytes);
    for (Buffer& workspace : workspaces) pointers.push_back(workspace.data());
    FakeCudaEnqueue(caller_, [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      std::memcpy(problem->image(), image.data(), image.size());
    });
    const Status status = RunStage(backend_, stage, problem->Bind(pointers), caller_);
    FakeCudaEnqueue(caller_, [&] { std::memset(problem->image(), 0xFF, image.size()); });
    FakeCudaSynchronize(caller_);
    std::memcpy(problem->image(), image.data(), image.size());
    for (const Buffer& workspace : workspaces) EXPECT_TRUE(workspace.IsIntact());
    return status;
  }
};

TEST_F(CudnnMergedLanesTest, OnePlanComputesAllConvolutionsOfTheLane) {
  FakeCuda().lane_delay_us = 100;
  for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
    for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kBFloat16}) {
      const Convolution c = MakeFused(layout, dtype);
      SCOPED_TRACE(ToString(c));
      // The last has most work, and so the caller's stream.
      const auto parts = WithOutputChannels(c, {6, 1, 9, 17});
      MergedProblem problem(parts);
      const PreparedStage stage = Prepared(
          backend_, WithOptions(StageOf(StepsOf(parts), {0, 0, 0, 1}), {kMergedLane}), options_);
      EXPECT_TRUE(stage.fallbacks.empty());
      const int executions = FakeCudnnCounts().executions;
      const Status status = RunOnce(stage, &problem);
      ASSERT_TRUE(status.ok()) << status.message();
      problem.ExpectCorrect(kTolerance);
      EXPECT_EQ(FakeCudnnCounts().executions, executions + 2);
    }
  }
  EXPECT_EQ(FakeCudaRowCopiesOn(caller_), 0) << "copies belong on the stream of the lane";
}

TEST_F(CudnnMergedLanesTest, AStageOfOneMergedLaneRunsOnTheCallersStream) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2, 3});
  MergedProblem problem(parts);
  const PreparedStage stage = Prepared(backend_, MergedStage(parts), options_);
  ASSERT_TRUE(RunOnce(stage, &problem).ok());
  problem.ExpectCorrect(kTolerance);
  EXPECT_EQ(FakeCudaRowCopiesOn(caller_), 6);  // of filters and results
}

TEST_F(CudnnMergedLanesTest, TheAlgorithmOfTheStepsIsPinnedForTheWiderConvolution) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  for (const std::string algorithm : {"eng2", "GEMM"}) {
    MergedProblem problem(parts);
    const PreparedStage stage = Prepared(backend_, MergedStage(parts, algorithm), options_);
    EXPECT_TRUE(stage.fallbacks.empty());
    ASSERT_EQ(stage.merged.size(), 1u);
    EXPECT_EQ(stage.merged[0].merge.convolution->algorithm(), algorithm);
    ASSERT_TRUE(RunOnce(stage, &problem).ok());
    problem.ExpectCorrect(kTolerance);
  }
}

TEST_F(CudnnMergedLanesTest, AnEngineThatRefusesTheWiderConvolutionLeavesTheLaneUnmerged) {
  FakeCudnn().unsupported_engines = {2};
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  MergedProblem problem(parts);
  const PreparedStage stage = Prepared(backend_, MergedStage(parts, "eng2"), options_);
  EXPECT_TRUE(stage.merged.empty());
  EXPECT_EQ(stage.unmerged.size(), 1u);
  EXPECT_EQ(stage.fallbacks.size(), 2u);  // each step by itself
  const int executions = FakeCudnnCounts().executions;
  ASSERT_TRUE(RunOnce(stage, &problem).ok());
  problem.ExpectCorrect(kTolerance);
  EXPECT_EQ(FakeCudnnCounts().executions, executions + 2);
}

TEST_F(CudnnMergedLanesTest, RunsOnSmsOfItsOwn) {
#if CUDA_VERSION < 12050
  GTEST_SKIP() << "the headers of this CUDA have no green contexts";
#endif
  FakeCuda().lane_delay_us = 100;
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2, 3});
  const Stage lanes = StageOf(StepsOf(parts), {0, 0, 1});
  MergedProblem problem(parts);
  const PreparedStage stage =
      Prepared(backend_, WithOptions(lanes, {{0, 64, true}, {0, 8, false}}), options_);
  const Status status = RunOnce(stage, &problem);
  ASSERT_TRUE(status.ok()) << status.message();
  problem.ExpectCorrect(kTolerance);
}

TEST_F(CudnnMergedLanesTest, ACopyThatFailsIsReportedAndTheLaneIsJoined) {
  FakeCuda().fail_copy = true;
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2, 3});
  const Stage lanes = StageOf(StepsOf(parts), {0, 0, 1});
  MergedProblem problem(parts);
  EXPECT_TRUE(
      IsError(RunOnce(Prepared(backend_, WithOptions(lanes, {kMergedLane}), options_), &problem),
              StatusCode::kInternal, {"cuMemcpy2DAsync"}));
}

TEST_F(CudnnMergedLanesTest, ConstantFiltersAreJoinedOnce) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  MergedProblem problem(parts);
  const PreparedStage stage = Prepared(backend_, MergedStage(parts), options_);
  const PreparedMerge& merge = stage.merged[0].merge;
  ASSERT_GT(merge.convolution->transformed_filter_bytes(), 0u);
  std::vector<ConvolutionBuffers> buffers = problem.Buffers();
  Buffer workspace(stage.lane_workspace_bytes[0]);
  const TransformedFilterKey key = {{buffers[0].inputs[1], buffers[1].inputs[1]},
                                    {6, 2},
                                    merge.merged.wide,
                                    merge.convolution->algorithm(),
                                    true,
                                    backend_};
  TransformedFilters filters;
  const auto join = [&] {
    return filters.FindOrJoin(0, key, merge, workspace.data(), caller_, [](size_t bytes) {
      auto memory = std::make_shared<Buffer>(bytes);
      void* const data = memory->data();
      return FilterMemory{data, std::move(memory)};
    });
  };
  const auto joined = join();
  ASSERT_NE(joined, nullptr);
  EXPECT_EQ(join(), joined);
  EXPECT_EQ(FakeCudaRowCopiesOn(caller_), 2);
  const int transforms = FakeCudnnCounts().copies;
  buffers[0].inputs[1] = buffers[1].inputs[1] = nullptr;  // would be refused if it were read
  const Status status =
      RunStage(backend_, stage, {buffers, {workspace.data()}, {joined->data()}, nullptr}, caller_);
  ASSERT_TRUE(status.ok()) << status.message();
  FakeCudaSynchronize(caller_);
  problem.ExpectCorrect(kTolerance);
  EXPECT_EQ(FakeCudaRowCopiesOn(caller_), 4);  // and two of results
  EXPECT_EQ(FakeCudnnCounts().copies, transforms) << "the launch transformed a filter";
}

}  // namespace
}  // namespace tf_interop
