// Stages on the cudnn backend, over stand-ins for libcuda and libcudnn: forked and joined, with
// priorities, merged, and after failures.
#include <cuda.h>
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/handle_pool.h"
#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/stage_replays.h"
#include "cc_kernels/core/timeline.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

// The last owner returns the stream group to the pool.
using Lease = std::shared_ptr<StreamGroup>;

CUstream StreamOf(const Lease& group) { return static_cast<CUstream>(group->stream); }

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
  const Stream stream = highest->stream;
  highest.reset();
  EXPECT_NE(AcquireOk(-4)->stream, stream);
  EXPECT_EQ(AcquireOk(-5)->stream, stream);
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

// ---- CUDA graphs of stages. The stand-in for libcuda enforces the rules of capture.

class StageReplaysTest : public CudnnTest {
 protected:
  void SetUp() override {
    unsetenv("TF_INTEROP_CUDA_GRAPHS");  // on by default
    CudnnTest::SetUp();
    before_ = ReadCounters();
    no_graph_before_ = CountFallbacks(kNoGraph);
    graphs_before_ = FakeCudaCounts().live_graphs;
    FakeCudaCounts().graph_races = 0;
  }

  void TearDown() override {
    unsetenv("TF_INTEROP_CUDA_GRAPHS");
    CudnnTest::TearDown();
    EXPECT_EQ(FakeCudaCounts().graph_races, 0);
  }

  // A lane of two steps, a lane of one, and a lane whose result is zero.
  static Stage SomeLanes() {
    Convolution nothing_to_read = MakeConvolution(ConvolutionKind::kBackwardFilter);
    nothing_to_read.batch = 0;
    return StageOf(StepsOf({MakeConvolution(), MakeFused(), MakeConvolution(), nothing_to_read}),
                   {0, 0, 1, 2});
  }

  // Also compares the results.
  void ExpectRuns(const PreparedStage& stage, const StageBuffers& buffers, Problem* problem) {
    problem->SpoilResults();
    EXPECT_TRUE(IsOk(RunOnFakes(backend_, stage, problem, buffers, caller_)));
  }

  int64_t Captured() const { return ReadCounters().stages_captured - before_.stages_captured; }
  int64_t Replayed() const { return ReadCounters().stages_replayed - before_.stages_replayed; }
  int64_t GivenUp() const { return CountFallbacks(kNoGraph) - no_graph_before_; }
  int Graphs() const { return FakeCudaCounts().live_graphs - graphs_before_; }

 private:
  Counters before_;
  int64_t no_graph_before_ = 0;
  int graphs_before_ = 0;
};

TEST_F(StageReplaysTest, TheFirstCallIsPlainTheSecondCapturesAndOthersReplay) {
  const auto parts = WithOutputChannels(MakeFused(), {6, 1, 9, 17});
  struct {
    Stage stage;
    Problem problem;
  } cases[] = {
      {SomeLanes(), Problem(SomeLanes())},
      {WithOptions(SomeLanes(), {{-1}, {-5}, {0}}), Problem(SomeLanes())},
      {WithOptions(StageOf(StepsOf(parts), {0, 0, 0, 1}), {kMergedLane}), Problem(parts, true)},
  };
  int64_t calls = 0;
  for (auto& [planned, problem] : cases) {
    const PreparedStage stage = Prepared(backend_, planned, options_);
    const StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
    const int graph_launches = FakeCudaCounts().graph_launches;
    ExpectRuns(stage, buffers, &problem);
    EXPECT_EQ(FakeCudaCounts().graph_launches, graph_launches);
    ExpectRuns(stage, buffers, &problem);
    const int executions = FakeCudnnCounts().executions;
    const int records = FakeCudaCounts().records, waits = FakeCudaCounts().waits;
    EXPECT_GT(records, 0);
    for (int replay = 0; replay < 3; ++replay) ExpectRuns(stage, buffers, &problem);
    EXPECT_EQ(FakeCudnnCounts().executions, executions) << "cuDNN was called again";
    EXPECT_EQ(FakeCudaCounts().records, records) << "the stage was forked or joined";
    EXPECT_EQ(FakeCudaCounts().waits, waits);
    EXPECT_EQ(FakeCudaCounts().graph_launches, graph_launches + 4);
    EXPECT_EQ(Graphs(), 1);
    EXPECT_EQ(Captured(), ++calls);
    EXPECT_EQ(Replayed(), 4 * calls);
  }
  EXPECT_EQ(Graphs(), 0) << "graphs outlive their stages";
  EXPECT_EQ(GivenUp(), 0);
}

TEST_F(StageReplaysTest, NewAddressesAreCapturedUntilThereAreTooManyAndCallsEarnCaptures) {
  Problem problem(SomeLanes());
  const PreparedStage stage = Prepared(backend_, SomeLanes(), options_);
  std::vector<StageBuffers> places;
  for (int64_t i = 0; i <= StageReplays::kFirstCaptures; ++i) {
    places.push_back(problem.Bind(stage.lane_workspace_bytes));
  }
  ExpectRuns(stage, places[0], &problem);
  for (int64_t i = 0; i < StageReplays::kFirstCaptures; ++i) {
    ExpectRuns(stage, places[i], &problem);
    // These stay in use, so their graph is kept.
    ExpectRuns(stage, places[0], &problem);
    EXPECT_EQ(Captured(), i + 1);
  }
  EXPECT_EQ(Graphs(), static_cast<int>(StageReplays::kMostKept));
  const int64_t replayed = Replayed();
  ExpectRuns(stage, places.back(), &problem);
  EXPECT_EQ(Captured(), StageReplays::kFirstCaptures);
  EXPECT_EQ(Replayed(), replayed);
  // Calls with the old addresses are replayed, those with new ones are not.
  ExpectRuns(stage, places[0], &problem);
  EXPECT_EQ(Replayed(), replayed + 1);
  for (int64_t call = 0; call < StageReplays::kCallsForACapture; ++call) {
    ASSERT_TRUE(IsOk(RunStage(backend_, stage, places[0], caller_)));
  }
  FakeCudaSynchronize(caller_);
  ExpectRuns(stage, places.back(), &problem);
  EXPECT_EQ(Captured(), StageReplays::kFirstCaptures + 1);
  EXPECT_EQ(GivenUp(), 0);
}

TEST_F(StageReplaysTest, EveryPointerIsPartOfTheKey) {
  int memory = 0;
  const StageBuffers one = {std::vector<ConvolutionBuffers>(2), {nullptr}, {nullptr}};
  StageBuffers other = one;
  const auto expect_other_key = [&](auto& pointer) {
    EXPECT_TRUE(other == one);
    pointer = &memory;
    EXPECT_FALSE(other == one);
    pointer = nullptr;
  };
  for (const void*& input : other.steps[1].inputs) expect_other_key(input);
  expect_other_key(other.steps[1].result);
  expect_other_key(other.steps[1].transformed_filter);
  expect_other_key(other.lane_workspaces[0]);
  expect_other_key(other.joined_filters[0]);
}

TEST_F(StageReplaysTest, WhateverFailsRunsPlainlyAndIsNotTriedAgain) {
  const Stage planned = SomeLanes();
  const int64_t engine =
      EngineOf(Prepared(backend_, planned, options_).steps[2].convolution->algorithm());
  const struct {
    std::function<void()> fail;
    std::string reason;
    int64_t captured;
  } cases[] = {
      {[&] { FakeCudnn().engines_that_spoil_captures = {engine}; }, "cuEventRecord", 0},
      {[] { FakeCuda().fail_instantiation = true; }, "cuGraphInstantiateWithFlags", 0},
      {[] { FakeCuda().fail_graph_launch = true; }, "cuGraphLaunch", 1},
      {[] { FakeCudaCounts().streams_left = 0; }, "cuStreamCreateWithPriority", 0},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.reason);
    UseNewContext();
    const int64_t not_joined = CountFallbacks("joined");
    const int64_t given_up = GivenUp(), captured = Captured(), replayed = Replayed();
    Problem problem(planned);
    const PreparedStage stage = Prepared(backend_, planned, options_);
    const StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
    ExpectRuns(stage, buffers, &problem);
    each.fail();
    ExpectRuns(stage, buffers, &problem);
    EXPECT_EQ(Captured() - captured, each.captured);
    EXPECT_EQ(CountFallbacks(kNoGraph + (": " + each.reason)), 1);
    EXPECT_EQ(Graphs(), 0);
    FakeCuda() = FakeCudaSwitches();
    FakeCudnn() = FakeCudnnSwitches();
    FakeCudaCounts().streams_left = 1 << 30;
    ExpectRuns(stage, buffers, &problem);
    EXPECT_EQ(GivenUp() - given_up, 1);
    EXPECT_EQ(Captured() - captured, each.captured);
    EXPECT_EQ(Replayed(), replayed);
    EXPECT_EQ(CountFallbacks("joined"), not_joined) << "nothing ran, so nothing needed joining";
  }
}

TEST_F(StageReplaysTest, ThreadsShareTheGraphsOfAStage) {
  const Stage planned = SomeLanes();
  const PreparedStage stage = Prepared(backend_, planned, options_);
  // All live until the end; otherwise a late thread could get another's memory.
  std::deque<Problem> problems;
  for (int i = 0; i < 4; ++i) problems.emplace_back(planned);
  InThreads(4, [&](int thread) {
    CUstream caller = FakeCudaMakeStream(context_);
    Problem& problem = problems[thread];
    const StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
    for (int round = 0; round < 30; ++round) {
      problem.SpoilResults();
      ASSERT_TRUE(IsOk(RunStage(backend_, stage, buffers, caller)));
      FakeCudaSynchronize(caller);
      problem.ExpectCorrect(kTolerance);
    }
  });
  EXPECT_EQ(GivenUp(), 0);
  EXPECT_EQ(Captured(), 4) << "one for each thread's memory";
  EXPECT_GE(Replayed(), 4 * 30 - 4) << "all but the first";
}

TEST_F(StageReplaysTest, AGraphMayBeDestroyedWhileItRuns) {
  const Stage planned = SomeLanes();
  Problem problem(planned);
  {
    const PreparedStage stage = Prepared(backend_, planned, options_);
    const StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
    for (int call = 0; call < 2; ++call) ExpectRuns(stage, buffers, &problem);
    problem.SpoilResults();
    FakeCudaEnqueue(caller_, [] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    ASSERT_TRUE(IsOk(RunStage(backend_, stage, buffers, caller_)));
    EXPECT_EQ(Replayed(), 2);
  }
  EXPECT_EQ(Graphs(), 0);
  FakeCudaSynchronize(caller_);
  problem.ExpectCorrect(kTolerance);
}

TEST_F(StageReplaysTest, SomeStagesAreAlwaysPlain) {
  const Stage planned = SomeLanes();
  Problem problem(planned);
  const auto expect_plain = [&](const PreparedStage& stage) {
    const StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
    for (int call = 0; call < 3; ++call) ExpectRuns(stage, buffers, &problem);
    EXPECT_EQ(Captured(), 0);
    EXPECT_EQ(Replayed(), 0);
    EXPECT_EQ(Graphs(), 0);
  };
  const PreparedStage stage = Prepared(backend_, planned, options_);
  expect_plain(PreparedInSequence(stage));
  {  // A timeline records from the second call on.
    RecordTimeline(/*calls=*/1);
    TimelineCalls calls;
    (void)calls.Next();
    const TimelineCall recorded(&calls, "op");
    ASSERT_NE(TimelineCall::Current(), nullptr);
    expect_plain(stage);
  }
  RecordTimeline(0);
  setenv("TF_INTEROP_CUDA_GRAPHS", "0", 1);
  expect_plain(Prepared(backend_, planned, options_));
}

TEST_F(StageReplaysTest, ACapturedLaunchMakesNoHandleButWaitsForOne) {
  const CudaDriver* driver = nullptr;
  const CudnnLibrary* library = nullptr;
  ASSERT_TRUE(IsOk(CudaDriver::Get(&driver)));
  ASSERT_TRUE(IsOk(CudnnLibrary::Get(&library)));
  std::unique_ptr<StreamGroup> group;
  ASSERT_TRUE(IsOk(backend_->Acquire(/*priority=*/0, &group)));
  const BackendScope scope(backend_);
  static auto* const pool = new HandlePool(*driver, *library);
  HandlePool::Lease of_another;
  ASSERT_TRUE(IsOk(pool->Take(caller_, &of_another)));
  const cudnnHandle_t only = of_another->handle;
  CapturedWork captured;
  ASSERT_TRUE(IsOk(backend_->BeginCapture(group->stream)));
  std::thread gives_back([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    of_another.reset();
  });
  {
    HandlePool::Lease lease;
    EXPECT_TRUE(IsOk(pool->Take(static_cast<CUstream>(group->stream), &lease)));
    EXPECT_EQ(lease->handle, only);
  }
  gives_back.join();
  EXPECT_TRUE(IsOk(backend_->EndCapture(group->stream, &captured)));
  backend_->Release(std::move(group));
}

}  // namespace
}  // namespace tf_interop
