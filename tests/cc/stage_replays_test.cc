// CUDA graphs of stages, over the stand-ins for libcuda, which enforces the rules of capture, and
// libcudnn.
#include "cc_kernels/core/stage_replays.h"

#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/handle_pool.h"
#include "cc_kernels/core/timeline.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

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

  void ExpectStaysPlain(const PreparedStage& stage, const StageBuffers& buffers, Problem* problem) {
    for (int call = 0; call < 3; ++call) ExpectRuns(stage, buffers, problem);
    EXPECT_EQ(Captured(), 0);
    EXPECT_EQ(Replayed(), 0);
    EXPECT_EQ(Graphs(), 0);
  }

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

TEST_F(StageReplaysTest, NewAddressesAreCapturedUntilThereAreTooManyAndReplaysEarnCaptures) {
  Problem problem(SomeLanes());
  const PreparedStage stage = Prepared(backend_, SomeLanes(), options_);
  std::vector<StageBuffers> places;
  for (int64_t i = 0; i <= StageReplays::kFirstCaptures + 1; ++i) {
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
  for (int64_t call = 0; call < StageReplays::kReplaysForACapture; ++call) {
    ASSERT_TRUE(IsOk(RunStage(backend_, stage, places[0], caller_)));
  }
  FakeCudaSynchronize(caller_);
  ExpectRuns(stage, places[StageReplays::kFirstCaptures], &problem);
  EXPECT_EQ(Captured(), StageReplays::kFirstCaptures + 1);
  EXPECT_EQ(GivenUp(), 0);
  ExpectRuns(stage, places.back(), &problem);
  EXPECT_EQ(GivenUp(), 1);
  EXPECT_EQ(Graphs(), 0);
  const int64_t replayed = Replayed();
  ExpectRuns(stage, places[0], &problem);
  EXPECT_EQ(Replayed(), replayed);
  EXPECT_EQ(GivenUp(), 1) << "counted more than once";
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
    ExpectStaysPlain(stage, problem.Bind(stage.lane_workspace_bytes), &problem);
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

TEST_F(StageReplaysTest, ABackendThatCannotCaptureRunsPlainly) {
  HostBackend host;
  const Stage planned = StageOfLanes(2, MakeConvolution());
  Problem problem(planned);
  const PreparedStage stage = Prepared(&host, planned);
  for (int call = 0; call < 3; ++call) {
    problem.SpoilResults();
    ASSERT_TRUE(IsOk(RunBetween(&host, stage, &problem)));
    problem.ExpectCorrect();
  }
  EXPECT_EQ(Replayed(), 0);
  EXPECT_EQ(GivenUp(), 0);
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
  std::unique_ptr<CapturedWork> captured;
  ASSERT_TRUE(IsOk(backend_->BeginCapture(group->stream())));
  std::thread gives_back([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    of_another.reset();
  });
  {
    HandlePool::Lease lease;
    EXPECT_TRUE(IsOk(pool->Take(static_cast<CUstream>(group->stream()), &lease)));
    EXPECT_EQ(lease->handle, only);
  }
  gives_back.join();
  EXPECT_TRUE(IsOk(backend_->EndCapture(group->stream(), &captured)));
  backend_->Release(std::move(group));
}

}  // namespace
}  // namespace tf_interop
