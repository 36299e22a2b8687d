// Stages on the cudnn backend, over stand-ins for libcuda and libcudnn: forked and joined, with
// priorities, merged, and after failures.
#include <cuda.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/timeline.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

constexpr int kUnlimited = 1 << 30;

// The last owner returns the stream group to the pool.
using Lease = std::shared_ptr<StreamGroup>;

CUstream StreamOf(const Lease& group) { return static_cast<CUstream>(group->stream()); }

class PriorityTest : public CudnnTest {
 protected:
  Lease AcquireOk(int priority) {
    std::unique_ptr<StreamGroup> group;
    EXPECT_TRUE(IsOk(backend_->Acquire(priority, &group)));
    return Lease(group.release(), [backend = backend_](StreamGroup* leased) {
      backend->Release(std::unique_ptr<StreamGroup>(leased));
    });
  }
};

TEST_F(PriorityTest, IsClampedToWhatTheDeviceHas) {
  auto highest = AcquireOk(-100);
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(highest)), -5);
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(AcquireOk(-2))), -2);
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(AcquireOk(7))), 0);
  const Stream stream = highest->stream();
  highest.reset();
  EXPECT_NE(AcquireOk(-4)->stream(), stream);
  EXPECT_EQ(AcquireOk(-5)->stream(), stream);
}

// The result of the last convolution is filled with zeros.
std::vector<Convolution> ThreeConvolutions() {
  Convolution gradient = MakeConvolution(ConvolutionKind::kBackwardFilter);
  gradient.batch = 0;
  return {MakeConvolution(), MakeConvolution(), gradient};
}

// Runs each convolution on its own lane, as TensorFlow would, and compares the results.
void RunOnLanes(Backend* backend, CUstream caller, const std::vector<Convolution>& cs,
                const std::vector<LaneOptions>& lanes) {
  Problem problem(cs);
  const PreparedStage stage =
      Prepared(backend, WithOptions(SideBySide(cs), lanes), {kAmpleWorkspace});
  EXPECT_TRUE(IsOk(RunOnFakes(backend, stage, &problem, caller)));
}

TEST_F(PriorityTest, StagesAreForkedAndJoined) {
  FakeCuda().lane_delay_us = 100;
  const int streams = FakeCudaCounts().live_streams;
  const std::vector<LaneOptions> lanes = {{-5}, {0}, {0}};
  RunOnLanes(backend_, caller_, ThreeConvolutions(), lanes);
  EXPECT_EQ(FakeCudaCounts().live_streams, streams + 3) << "one for each lane";
  EXPECT_EQ(FakeCudaPriorityOf(StreamOf(AcquireOk(-5))), -5);
  EXPECT_EQ(FakeCudaCounts().live_streams, streams + 3) << "streams were not reused";
  InThreads(4, [&](int) {
    CUstream caller = FakeCudaMakeStream(context_);
    for (int round = 0; round < 20; ++round) {
      RunOnLanes(backend_, caller, ThreeConvolutions(), lanes);
    }
  });
}

// ---- Stages without priorities.

class CudnnStageTest : public CudnnTest {
 protected:
  // An engine that is neither cuDNN's own choice nor the one with the least workspace.
  std::string SpareEngine(const Convolution& c, const Formulation& formulation = {}) {
    const std::set<int64_t> taken = {EngineOf(PrepareOk(c)->algorithm()),
                                     EngineOf(PrepareOk(c, "", 0)->algorithm())};
    for (const std::string& name : Engines(c, formulation, 12)) {
      if (taken.count(EngineOf(name)) == 0) return name;
    }
    ADD_FAILURE() << "no spare engine for " << ToString(c);
    return "";
  }

  // Prepares and runs a stage, and compares its results if it succeeds.
  Status Run(const Stage& stage, size_t limit = kAmpleWorkspace) {
    PreparedStage prepared;
    TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend_, stage, WithLimit(limit), &prepared));
    fallbacks_ = prepared.fallbacks;
    Problem problem(stage);
    return RunPrepared(stage, prepared, problem.Bind(prepared.lane_workspace_bytes), &problem);
  }

  Status RunPrepared(const Stage& stage, const PreparedStage& prepared, const StageBuffers& buffers,
                     Problem* problem) {
    LadderCalls calls;
    calls.get_workspaces = [problem](const std::vector<size_t>& bytes, std::vector<void*>* places) {
      *places = problem->NewWorkspaces(bytes);
      return true;
    };
    calls.run_stock = [] { return Internal("There is no stock kernel here."); };
    const Status status =
        RunOrDescend(backend_, stage, options_, prepared, buffers, caller_, calls);
    FakeCudaSynchronize(caller_);
    if (status.ok()) problem->ExpectCorrect(kTolerance);
    return status;
  }

  std::vector<Status> fallbacks_;
};

// The stand-in for CUDA uses the host's clock. tests/programs/trace_test.py tests the contents of a
// timeline.
TEST_F(CudnnStageTest, ATimelineHasTheTimesOfTheDevicesClock) {
  TimelineCalls calls;
  RecordTimeline(1);
  const int64_t begin_ns = NowNs();
  for (int call = 0; call < 3; ++call) {
    const TimelineCall timed(&calls, "op");
    EXPECT_TRUE(IsOk(Run(StageOfLanes(2, MakeFused()))));
  }
  RecordTimeline(0);
  std::vector<std::pair<int64_t, int64_t>> times;  // of both lanes, and of the stage
  ReadTimeline([&](const std::string&, int, const TimelineSpan&, int64_t span_begin_ns,
                   int64_t span_end_ns) { times.emplace_back(span_begin_ns, span_end_ns); });
  ASSERT_EQ(times.size(), 3u);
  const auto [stage_begin_ns, stage_end_ns] = times.back();
  EXPECT_GE(stage_begin_ns, begin_ns);
  EXPECT_LE(stage_end_ns, NowNs());
  // The stand-ins compute for longer; a time in the wrong unit would be a thousandth of that.
  EXPECT_GT(stage_end_ns - stage_begin_ns, 10'000);
  for (const auto& [lane_begin_ns, lane_end_ns] : times) {
    EXPECT_LT(lane_begin_ns, lane_end_ns);
    // Floats of milliseconds are rounded.
    EXPECT_GE(lane_begin_ns, stage_begin_ns - 1000);
    EXPECT_LE(lane_end_ns, stage_end_ns + 1000);
  }
}

TEST_F(CudnnStageTest, ASecondAttemptDoesNotReadTheFilterTransformedForTheFirst) {
  // NCHW needs another filter layout than NHWC.
  const Stage stage =
      StageOfLanes(1, MakeConvolution(), SpareEngine(MakeConvolution(), {false, true}));
  const PreparedStage planned = Prepared(backend_, stage, options_);
  const PreparedConvolution& prepared = *planned.steps[0].convolution;
  Problem problem(stage);
  StageBuffers buffers = problem.Bind(planned.lane_workspace_bytes);
  void* const filter = problem.NewBuffer(prepared.transformed_filter_bytes()).data();
  ASSERT_TRUE(IsOk(TransformFilter(prepared, buffers.steps[0].inputs[1], filter)));
  buffers.steps[0].transformed_filter = filter;
  FakeCudnn().engines_failing_execution = {EngineOf(prepared.algorithm())};
  EXPECT_TRUE(IsOk(RunPrepared(stage, planned, buffers, &problem)));
}

// TensorFlow's own convolutions do not count transposed filters against the limit.
TEST_F(CudnnStageTest, ALimitBelowTheNeedsOfTransposingIsNoError) {
  EXPECT_TRUE(IsOk(Run(StageOfLanes(1, MakeFused(), SpareEngine(MakeFused())), /*limit=*/100)));
  ASSERT_EQ(fallbacks_.size(), 2u);
  EXPECT_NE(fallbacks_[0].message().find("at most 100 bytes of workspace"), std::string::npos);
}

// ---- Merged lanes: one plan for all steps, and copies in order on the lane's stream.

TEST_F(CudnnStageTest, OnePlanComputesAllConvolutionsOfAMergedLane) {
  FakeCuda().lane_delay_us = 100;
  for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
    for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kBFloat16}) {
      // The last has the most work, and so runs on the caller's stream.
      const auto parts = WithOutputChannels(MakeFused(layout, dtype), {6, 1, 9, 17});
      Problem problem(parts, /*share_image=*/true);
      const PreparedStage stage = Prepared(
          backend_, WithOptions(StageOf(StepsOf(parts), {0, 0, 0, 1}), {kMergedLane}), options_);
      EXPECT_TRUE(stage.fallbacks.empty());
      const int executions = FakeCudnnCounts().executions;
      ASSERT_TRUE(IsOk(RunOnFakes(backend_, stage, &problem, caller_)));
      EXPECT_EQ(FakeCudnnCounts().executions, executions + 2);
    }
  }
  EXPECT_EQ(FakeCudaRowCopiesOn(caller_), 0) << "copies belong on the lane's stream";
  FakeCuda().fail_copy = true;  // reported, and the lane is joined
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2, 3});
  Problem problem(parts, /*share_image=*/true);
  const Stage lanes = WithOptions(StageOf(StepsOf(parts), {0, 0, 1}), {kMergedLane});
  EXPECT_TRUE(IsError(RunOnFakes(backend_, Prepared(backend_, lanes, options_), &problem, caller_),
                      StatusCode::kInternal,
                      {"cuMemcpy2DAsync failed with CUDA_ERROR_LAUNCH_FAILED"}));
}

TEST_F(CudnnStageTest, TheAlgorithmOfTheStepsIsPinnedForTheWiderConvolution) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  const Convolution wide = WithOutputChannels(MakeConvolution(), {8})[0];
  const Names engines = Engines(wide, {}, 2);
  UseNewContext();
  FakeCudnn().unsupported_engines = {EngineOf(engines[0])};
  for (const std::string& algorithm :
       {std::string(), engines[1], std::string("GEMM"), engines[0]}) {
    const bool is_refused = algorithm == engines[0];
    Problem problem(parts, /*share_image=*/true);
    const PreparedStage stage = Prepared(backend_, MergedStage(parts, algorithm), options_);
    EXPECT_EQ(stage.merged.size(), is_refused ? 0u : 1u);
    EXPECT_EQ(stage.unmerged.size(), is_refused ? 1u : 0u);
    EXPECT_EQ(stage.fallbacks.size(), is_refused ? 2u : 0u) << "each step by itself";
    if (!is_refused && !algorithm.empty()) {
      EXPECT_EQ(stage.merged[0].merge.convolution->algorithm(), algorithm);
    }
    const int copies = FakeCudaRowCopiesOn(caller_);
    EXPECT_TRUE(IsOk(RunOnFakes(backend_, stage, &problem, caller_)));
    EXPECT_EQ(FakeCudaRowCopiesOn(caller_) - copies, is_refused ? 0 : 4)
        << "the only lane is the caller's";
  }
}

TEST_F(CudnnStageTest, AMergedLaneReadsItsJoinedFilter) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  Problem problem(parts, /*share_image=*/true);
  const PreparedStage stage = Prepared(backend_, MergedStage(parts), options_);
  const PreparedMerge& merge = stage.merged[0].merge;
  ASSERT_GT(merge.convolution->transformed_filter_bytes(), 0u);
  StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
  const std::vector<const void*> addresses = {buffers.steps[0].inputs[1],
                                              buffers.steps[1].inputs[1]};
  void* const joined = problem.NewBuffer(merge.joined_filter_bytes()).data();
  ASSERT_TRUE(IsOk(EnqueueJoinedFilter(backend_, merge, addresses, buffers.lane_workspaces[0],
                                       joined, caller_)));
  EXPECT_EQ(FakeCudaRowCopiesOn(caller_), 2);
  const int transforms = FakeCudnnCounts().copies;
  // Null would be refused if it were read.
  buffers.steps[0].inputs[1] = buffers.steps[1].inputs[1] = nullptr;
  buffers.joined_filters = {joined};
  ASSERT_TRUE(IsOk(RunStage(backend_, stage, buffers, caller_)));
  FakeCudaSynchronize(caller_);
  problem.ExpectCorrect(kTolerance);
  EXPECT_EQ(FakeCudaRowCopiesOn(caller_), 4);  // and two of results
  EXPECT_EQ(FakeCudnnCounts().copies, transforms) << "the launch transformed a filter";
}

}  // namespace
}  // namespace tf_interop
