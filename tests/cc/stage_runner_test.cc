// The runner's stream contract, on the host backend, with delays that expose every missing
// dependency.
#include "cc_kernels/core/stage_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/merged_convolution.h"
#include "cc_kernels/core/timeline.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

Status RandomDelay(const ConvolutionBuffers&) {
  thread_local std::mt19937 random(std::random_device{}());
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, 300)(random)));
  return Status::Ok();
}

constexpr int kLanes = 3;

std::vector<Convolution> Convolutions(int count = kLanes, int64_t pixels = 64) {
  return std::vector<Convolution>(count, MakePointwise(pixels));
}

Stage Lanes(int count) { return SideBySide(Convolutions(count), "DIRECT"); }

// Runs rounds of three lanes that read one image. Returns the number of wrong elements.
int CountWrongElements(HostBackend* backend, HostStream* caller, int rounds) {
  const PreparedStage stage = Prepared(backend, Lanes(kLanes));
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    Problem problem(Convolutions(), /*share_image=*/true);
    EXPECT_TRUE(IsOk(RunBetween(backend, stage, &problem, caller)));
    // A lane that was not joined would still write to this function's memory.
    if (round == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    wrong += problem.CountWrong();
  }
  return wrong;
}

TEST(StageRunnerTest, LanesReadWhatTheCallerWroteAndAreJoinedOnTwoThreads) {
  SpyBackend backend(RandomDelay);
  InThreads(2, [&](int) { EXPECT_EQ(CountWrongElements(&backend, NewCaller().get(), 100), 0); });
}

TEST(StageRunnerTest, AFailingLaneIsJoinedAndItsErrorReachesTheCaller) {
  std::atomic<int> finished{0};
  const Stage planned = Lanes(3);
  Problem problem(planned);
  SpyBackend backend([&](const ConvolutionBuffers& buffers) -> Status {
    if (buffers.result == problem.buffers(1).result) return Internal("injected");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++finished;
    return Status::Ok();
  });
  const std::unique_ptr<HostStream> caller = NewCaller();
  ASSERT_TRUE(IsOk(RunBetween(&backend, Prepared(&backend, planned), &problem, caller.get())));
  EXPECT_EQ(finished, 2);
  EXPECT_EQ(caller->TakeError().message(), "injected");
}

// The second of two lanes cannot be launched. The one with its own stream is joined.
TEST(StageRunnerTest, ALaunchThatFailsOrThrowsHalfwayIsStillJoined) {
  for (const bool throws : {false, true}) {
    for (const int largest : {0, 1}) {
      SpyBackend backend(RandomDelay);
      backend.on_launch = [&](const PreparedConvolution&, const ConvolutionBuffers&, Stream) {
        if (backend.launched.size() < 2) return Status::Ok();
        if (throws) throw std::bad_alloc();
        return Internal("no launch");
      };
      Stage planned = Lanes(2);
      planned.steps[1 - largest].convolution = MakePointwise(32);
      const PreparedStage stage = Prepared(&backend, planned);
      Problem problem(planned);
      const std::unique_ptr<HostStream> caller = NewCaller();
      bool is_joined = false;
      const Status status = RunStage(&backend, stage, problem.Bind(stage.lane_workspace_bytes),
                                     caller.get(), &is_joined);
      EXPECT_EQ(status.message(), throws ? "Out of host memory while launching a stage."
                                         : "Convolution 'b' with algorithm DIRECT: no launch");
      EXPECT_TRUE(is_joined);
      EXPECT_EQ(backend.CountCalls('w'), 2u) << "the lane with a stream was forked and joined";
      caller->Synchronize();
      EXPECT_FALSE(std::isnan(problem.ResultOf(0)[0]));
    }
  }
}

TEST(HostStreamTest, AnErrorOfAStreamIsKeptUntilItIsTaken) {
  const auto stream = NewCaller();
  stream->Enqueue([] { return Internal("kept"); });
  stream->Enqueue([] { throw std::bad_alloc(); });
  stream->Synchronize();
  EXPECT_EQ(stream->TakeError().message(), "kept");
  EXPECT_TRUE(IsOk(stream->TakeError()));
}

std::string CallsOf(const Stage& planned) {
  SpyBackend backend;
  const std::unique_ptr<HostStream> caller = NewCaller();
  backend.caller = caller.get();
  Problem problem(planned);
  EXPECT_TRUE(IsOk(RunBetween(&backend, Prepared(&backend, planned), &problem, caller.get())));
  problem.ExpectCorrect();
  return backend.calls;
}

// The fork is recorded; then streams wait, lanes launch, and those with streams are joined.
TEST(StageRunnerTest, TheLaneWithMostWorkRunsOnTheCallersStreamWithoutEvents) {
  EXPECT_EQ(CallsOf(Lanes(3)), "RwwLllrWrW") << "the first of equals";
  Stage planned = Lanes(3);
  planned.steps[0].convolution = planned.steps[1].convolution = MakePointwise(32);
  EXPECT_EQ(CallsOf(planned), "RwwllLrWrW");
  // Two steps of 16 pixels are less than three.
  EXPECT_EQ(CallsOf(StageOf(StepsOf(Convolutions(5, 16)), {0, 0, 1, 1, 1})), "RwlLlLLrW");
  EXPECT_EQ(CallsOf(StageOf(Lanes(3).steps, {0, 0, 0})), "LLL") << "one lane has no events";
  EXPECT_EQ(CallsOf(WithOptions(Lanes(1), {{-1}})), "L") << "nobody to go before";
  EXPECT_EQ(CallsOf(WithOptions(Lanes(2), {{-1}, {0}})), "RwwllrWrW")
      << "nobody can choose the priority of the caller's stream";
}

// The caller may free the buffers after the call.
TEST(StageRunnerTest, LanesThatCannotBeJoinedHaveRunWhenTheCallReturns) {
  for (const bool device_is_lost : {false, true}) {
    SpyBackend backend([](const ConvolutionBuffers&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return Status::Ok();
    });
    const std::unique_ptr<HostStream> caller = NewCaller();
    backend.on_wait = [&](Stream stream) {
      return stream == caller.get() ? Internal("no join") : Status::Ok();
    };
    backend.on_synchronize = [&] { return device_is_lost ? Internal("lost") : Status::Ok(); };
    const PreparedStage stage = Prepared(&backend, Lanes(3));
    Problem problem(Convolutions());
    const int64_t waits = CountFallbacks("waited for on the host: no join");
    bool is_joined = device_is_lost;
    const Status status = RunStage(&backend, stage, problem.Bind(stage.lane_workspace_bytes),
                                   caller.get(), &is_joined);
    EXPECT_EQ(status.message(), device_is_lost ? "lost" : "");
    EXPECT_NE(is_joined, device_is_lost);
    EXPECT_EQ(CountFallbacks("waited for on the host: no join"), waits + 2);
    for (const size_t lane : {1, 2}) EXPECT_FALSE(std::isnan(problem.ResultOf(lane)[0]));
    caller->Synchronize();
    problem.ExpectCorrect();
  }
}

TEST(StageRunnerTest, TheBackendsOwnChoiceReplacesARefusedPinButNothingAnInvalidConvolution) {
  HostBackend backend;
  Stage invalid = Lanes(3);
  invalid.steps[1].convolution.output_width = 3;
  PreparedStage prepared;
  EXPECT_TRUE(IsError(PrepareStage(&backend, invalid, kAnyWorkspace, &prepared),
                      StatusCode::kInvalidArgument, {"'b'"}));
  const struct {
    const char* pin;
    size_t limit;
    const char* runs;
  } cases[] = {{"eng7", ~size_t{0}, "BUFFERED"}, {"BUFFERED", 8, "DIRECT"}};
  for (const auto& each : cases) {
    const PreparedStage stage =
        Prepared(&backend, StageOfLanes(1, MakeConvolution(), each.pin), {each.limit});
    EXPECT_EQ(AlgorithmsOf(stage)[0], each.runs);
    ASSERT_EQ(stage.fallbacks.size(), 1u);
    EXPECT_NE(stage.fallbacks[0].message().find(std::string("'a' with algorithm ") + each.pin),
              std::string::npos);
  }
}

TEST(StageRunnerTest, LanesAskForTheirPrioritiesAndThoseBeyondTheLimitRunWithOthers) {
  HostBackend backend;
  PreparedStage stage = Prepared(&backend, WithOptions(Lanes(3), {{0}, {-1}, {-2}}));
  for (int lane = 0; lane < 3; ++lane) EXPECT_EQ(stage.lane_priorities[lane], -lane);
  stage = Prepared(&backend, Lanes(kMaxLanes + 2));
  EXPECT_EQ(stage.lane_priorities.size(), static_cast<size_t>(kMaxLanes));
  EXPECT_EQ(stage.lane_workspace_bytes.size(), static_cast<size_t>(kMaxLanes));
  EXPECT_EQ(stage.steps[kMaxLanes + 1].lane, 1);
}

TEST(StageRunnerTest, LanesRunInSequenceWithoutEnoughGroups) {
  const std::vector<LaneOptions> plain(3), priorities = {{-1}, {0}, {0}};
  const struct {
    std::vector<LaneOptions> lanes;
    int groups;  // of the backend
    int64_t sequences;
  } cases[] = {{plain, 2, 0}, {plain, 1, 1}, {priorities, 3, 0}, {priorities, 2, 1}};
  for (const auto& each : cases) {
    SpyBackend backend(RandomDelay);
    backend.on_acquire = [&] {
      return backend.leased < each.groups ? Status::Ok() : ResourceExhausted("scarce groups");
    };
    const int64_t sequences = CountFallbacks("ran in sequence: scarce groups");
    Problem problem(Convolutions());
    const Status status =
        RunBetween(&backend, Prepared(&backend, WithOptions(Lanes(3), each.lanes)), &problem);
    EXPECT_TRUE(IsOk(status));
    problem.ExpectCorrect();
    EXPECT_EQ(CountFallbacks("ran in sequence: scarce groups") - sequences, each.sequences);
    EXPECT_EQ(backend.leased, 0);
  }
}

TEST(StageRunnerTest, AnIdleProfilerCostsNoLabels) {
  static constexpr Tracer kIdle = {[] { return false; },
                                   [](const TraceLabel&) -> std::shared_ptr<void> {
                                     ADD_FAILURE() << "a span was begun";
                                     return nullptr;
                                   }};
  process_tracer = &kIdle;
  const TraceScope scope([] {
    ADD_FAILURE() << "a label was made";
    return TraceLabel();
  });
  HostBackend backend;
  EXPECT_EQ(CountWrongElements(&backend, NewCaller().get(), 1), 0);
  process_tracer = nullptr;
}

// ---- Merged lanes: which are merged, why others are not, and their results.

TEST(MergedConvolutionTest, ComputesTheResultsOfTheSingleConvolutions) {
  std::vector<Convolution> cases = EveryEpilogue();
  for (const Convolution& c : Geometries()) {
    if (c.group_count == 1) cases.push_back(c);
  }
  for (const Layout layout : {Layout::kNHWC, Layout::kNCHW}) {
    cases.push_back(MakeFused(layout, DataType::kBFloat16));
  }
  for (const Convolution& c : cases) {
    const auto parts = WithOutputChannels(c, {6, 1, 9});
    Problem problem(parts, /*share_image=*/true);
    SpyBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts, "DIRECT"));
    EXPECT_TRUE(stage.fallbacks.empty());
    EXPECT_TRUE(IsOk(RunBetween(&backend, stage, &problem)));
    problem.ExpectCorrect();
    EXPECT_EQ(backend.launched, std::vector<std::string>{"DIRECT"});
    EXPECT_EQ(backend.CountCalls('c'), c.has_bias ? 9u : 6u) << "filters, biases and results";
  }
}

TEST(MergedConvolutionTest, ConvolutionsThatDoNotFitTogetherAreNotMergedAndNameTheirLane) {
  using C = Convolution;
  const auto with = [](void (*change)(C*)) {
    std::vector<Convolution> parts = WithOutputChannels(MakeConvolution(), {6, 2});
    change(&parts[1]);
    CompleteSame(&parts[1]);
    return MergedStage(parts);
  };
  const auto both = [](void (*change)(C*)) {
    Convolution c = MakeConvolution();
    change(&c);
    CompleteSame(&c);
    return MergedStage({c, c});
  };
  Stage algorithms = MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}));
  algorithms.steps[1].algorithm = "DIRECT";
  const Stage pinned = MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}), "BUFFERED");
  HostBackend host;
  const PreparedStage ample = Prepared(&host, pinned);
  const size_t bytes = ample.merged[0].merge.workspace_bytes();
  EXPECT_EQ(bytes, ample.lane_workspace_bytes[0]);
  EXPECT_GT(bytes, ample.merged[0].merge.joined_bytes);
  const std::string differ = "differ only in output channels";
  const std::string ungrouped = "forward convolutions without groups";
  const struct {
    Stage stage;
    std::string reason;  // why it is not merged; "" if it is
    size_t limit = kAnyWorkspace.workspace_limit_bytes;
  } cases[] = {
      {with([](C*) {}), ""},
      {with([](C* c) { c->filter_width = 1; }), differ},
      {with([](C* c) { c->stride_height = 2; }), differ},
      {with([](C* c) { c->dilation_width = 2; }), differ},
      {with([](C* c) { c->image_width = 7; }), differ},
      {with([](C* c) { c->dtype = DataType::kHalf; }), differ},
      {with([](C* c) { c->layout = Layout::kNCHW; }), differ},
      {with([](C* c) { c->has_bias = true; }), differ},
      {with([](C* c) { c->activation = Activation::kRelu; }), differ},
      {both([](C* c) { c->group_count = 2; }), ungrouped},
      {both([](C* c) { c->kind = ConvolutionKind::kBackwardInput; }), ungrouped},
      // A pitch above CUDA's limit, and too many channels.
      {both([](C* c) { c->image_height = c->image_width = 30000, c->layout = Layout::kNCHW; }),
       "bytes to merge, got"},
      {both([](C* c) { c->image_channels = 1, c->output_channels = 1 << 30; }), "output_channels"},
      {algorithms, "got '' and 'DIRECT'"},
      {MergedStage(WithOutputChannels(MakeConvolution(), {6, 2}), "FFT"), "got FFT"},
      {pinned, "", bytes},
      {pinned, "the limit is", bytes - 1},
      {pinned, "too little of the limit of 100", 100},
  };
  for (const auto& each : cases) {
    const PreparedStage prepared = Prepared(&host, each.stage, {each.limit});
    const std::string reason = prepared.unmerged.empty() ? "" : prepared.unmerged.front().message();
    EXPECT_EQ(prepared.merged.empty(), !each.reason.empty());
    EXPECT_NE(reason.find(each.reason), std::string::npos) << reason;
    EXPECT_EQ(reason.empty(), each.reason.empty()) << reason;
    EXPECT_TRUE(reason.empty() || reason.find("the lane of convolution 'a': ") == 0) << reason;
  }
}

TEST(MergedConvolutionTest, EmptyConvolutionsAreLeftOutAndAreNoFallback) {
  Convolution no_images = MakeConvolution(), no_pixels = MakeConvolution();
  no_images.batch = 0;
  no_pixels.image_height = 0;
  no_pixels.pad_top = no_pixels.pad_bottom = 2;
  CompleteFromPads(&no_pixels);
  ASSERT_GT(no_pixels.output_elements(), 0);
  const struct {
    std::vector<Convolution> parts;
    std::vector<size_t> merged;
  } cases[] = {{WithOutputChannels(MakeConvolution(), {6, 0, 3}), {0, 2}},
               {WithOutputChannels(no_images, {6, 2}), {}},
               {WithOutputChannels(no_pixels, {6, 2}), {}}};
  for (const auto& [parts, merged] : cases) {
    Problem problem(parts, /*share_image=*/true);
    SpyBackend backend;
    const PreparedStage stage = Prepared(&backend, MergedStage(parts));
    EXPECT_TRUE(stage.fallbacks.empty());
    EXPECT_EQ(stage.merged.empty(), merged.empty());
    EXPECT_TRUE(merged.empty() || stage.merged[0].steps == merged);
    EXPECT_TRUE(IsOk(RunBetween(&backend, stage, &problem)));
    problem.ExpectCorrect();
    EXPECT_EQ(backend.launched.size(), merged.empty() ? 0u : 1u);
  }
}

TEST(MergedConvolutionTest, ACopyThatFailsNamesItsLane) {
  const auto parts = WithOutputChannels(MakeConvolution(), {6, 2});
  for (size_t failing = 0; failing < 4; ++failing) {
    Problem problem(parts, /*share_image=*/true);
    SpyBackend backend;
    backend.on_copy = [&] {
      return backend.CountCalls('c') == failing ? Internal("no copy") : Status::Ok();
    };
    const PreparedStage stage = Prepared(&backend, MergedStage(parts, "DIRECT"));
    EXPECT_EQ(RunBetween(&backend, stage, &problem).message(),
              "Convolution 'a + b' with algorithm DIRECT: no copy");
  }
}

}  // namespace
}  // namespace tf_interop
