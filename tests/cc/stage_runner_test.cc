// The stream contract of the runner, on the host backend, with delays that make every missing
// dependency show.
#include "cc_kernels/core/stage_runner.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/is_error.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

void SleepUpTo(int microseconds) {
  thread_local std::mt19937 random(std::random_device{}());
  std::this_thread::sleep_for(
      std::chrono::microseconds(std::uniform_int_distribution<int>(0, microseconds)(random)));
}

Status RandomDelay(const Convolution&) {
  SleepUpTo(300);
  return Status::Ok();
}

// Leaves out one half of the stream contract, as a broken runner would.
class BrokenBackend : public HostBackend {
 public:
  enum class Missing { kNothing, kFork, kJoin };
  BrokenBackend(Missing missing, HostLaunchHook hook)
      : HostBackend(SerialFor, std::move(hook)), missing_(missing) {}

  void set_caller(Stream caller) { caller_ = caller; }
  Status Wait(Stream stream, Event* event) override {
    const bool is_join = stream == caller_;
    if (missing_ == Missing::kFork && !is_join) return Status::Ok();
    if (missing_ == Missing::kJoin && is_join) return Status::Ok();
    return HostBackend::Wait(stream, event);
  }

 private:
  const Missing missing_;
  Stream caller_ = nullptr;
};

constexpr int64_t kPixels = 64;
constexpr int kLanes = 3;

Stage CopyLanes(int count) { return StageOfLanes(count, CopyConvolution(kPixels), "DIRECT"); }

// One round as TensorFlow would drive it: work on the caller's stream writes the inputs, the stage
// runs, and later work on the caller's stream reads the results and reuses the inputs' memory at
// once. Returns how many elements were wrong.
int CountWrongElements(HostBackend* backend, HostStream* caller, float value) {
  StageMemory memory(kLanes, CopyConvolution(kPixels), StageMemory::kPoison);
  const PreparedStage stage = Prepared(backend, CopyLanes(kLanes));
  caller->Enqueue([&memory, value] {
    SleepUpTo(1000);
    std::fill(memory.image.begin(), memory.image.end(), value);
    return Status::Ok();
  });
  const StageBuffers buffers = memory.Bind(stage.lane_workspace_bytes);
  EXPECT_TRUE(RunStage(backend, stage, buffers, caller).ok());
  std::atomic<int> wrong{0};
  caller->Enqueue([&] {
    std::fill(memory.image.begin(), memory.image.end(), StageMemory::kPoison);
    wrong = memory.CountWrong(value);
    return Status::Ok();
  });
  caller->Synchronize();
  // Lanes that were not joined still write to memory of this function.
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return wrong;
}

int CountWrongElements(BrokenBackend::Missing missing, int rounds) {
  BrokenBackend backend(missing, RandomDelay);
  const std::unique_ptr<HostStream> caller = NewCaller();
  backend.set_caller(caller.get());
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    wrong += CountWrongElements(&backend, caller.get(), static_cast<float>(round + 1));
  }
  return wrong;
}

TEST(StageRunnerTest, LanesReadWhatTheCallerWroteAndAreJoined) {
  EXPECT_EQ(CountWrongElements(BrokenBackend::Missing::kNothing, 100), 0);
}

// What these two do is the very thing that a sanitizer reports.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
TEST(StageRunnerTest, AMissingForkShows) {
  EXPECT_GT(CountWrongElements(BrokenBackend::Missing::kFork, 20), 0);
}

TEST(StageRunnerTest, AMissingJoinShows) {
  EXPECT_GT(CountWrongElements(BrokenBackend::Missing::kJoin, 20), 0);
}
#endif

TEST(StageRunnerTest, TwoThreadsShareABackend) {
  HostBackend backend(SerialFor, RandomDelay);
  std::atomic<int> wrong{0};
  const auto drive = [&](float offset) {
    const std::unique_ptr<HostStream> caller = NewCaller();
    for (int round = 0; round < 100; ++round) {
      wrong += CountWrongElements(&backend, caller.get(), offset + static_cast<float>(round));
    }
  };
  std::thread first(drive, 1.0f), second(drive, 1000.0f);
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0);
}

TEST(StageRunnerTest, LanesRunAtTheSameTime) {
  std::atomic<int> running{0}, most{0};
  HostBackend backend(SerialFor, [&](const Convolution&) {
    const int now = ++running;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
    }
    // Long enough that all lanes are inside together, whatever the scheduler does.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    --running;
    return Status::Ok();
  });
  const std::unique_ptr<HostStream> caller = NewCaller();
  EXPECT_EQ(CountWrongElements(&backend, caller.get(), 5.0f), 0);
  EXPECT_EQ(most, kLanes);
}

TEST(StageRunnerTest, AFailingLaneIsJoinedAndItsErrorReachesTheCaller) {
  std::atomic<int> finished{0};
  HostBackend backend(SerialFor, [&](const Convolution& c) -> Status {
    if (c.image_width == 7) return Internal("injected");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ++finished;
    return Status::Ok();
  });
  Stage planned = CopyLanes(3);
  planned.steps[1].convolution = CopyConvolution(7);
  const PreparedStage stage = Prepared(&backend, planned);
  StageMemory memory(3, CopyConvolution(kPixels), 1.0f);
  const std::unique_ptr<HostStream> caller = NewCaller();
  ASSERT_TRUE(
      RunStage(&backend, stage, memory.Bind(stage.lane_workspace_bytes), caller.get()).ok());
  caller->Synchronize();
  EXPECT_EQ(finished, 2);
  EXPECT_EQ(caller->TakeError().message(), "injected");
}

// A backend whose launches fail on the host's side, after `good` of them.
class FailingLaunch : public HostBackend {
 public:
  enum class Failure { kReturned, kThrown };
  explicit FailingLaunch(int good, Failure failure = Failure::kReturned)
      : HostBackend(SerialFor, RandomDelay), good_(good), failure_(failure) {}
  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override {
    if (good_-- <= 0) {
      if (failure_ == Failure::kThrown) throw std::bad_alloc();
      return Internal("no launch");
    }
    return HostBackend::Launch(prepared, buffers, workspace, group, stream);
  }
  Status Wait(Stream stream, Event* event) override {
    ++waits_;
    return HostBackend::Wait(stream, event);
  }
  int waits() const { return waits_; }

 private:
  int good_;
  const Failure failure_;
  int waits_ = 0;
};

// Runs two lanes of which one cannot be launched, after the other; returns why.
std::string RunHalfwayAndExpectJoined(FailingLaunch::Failure failure, int largest) {
  FailingLaunch backend(1, failure);
  Stage planned = CopyLanes(2);
  planned.steps[1 - largest].convolution = CopyConvolution(kPixels / 2);  // on a stream of its own
  const PreparedStage stage = Prepared(&backend, planned);
  StageMemory memory(2, CopyConvolution(kPixels), 5.0f);
  const std::unique_ptr<HostStream> caller = NewCaller();
  bool is_joined = false;
  const Status status =
      RunStage(&backend, stage, memory.Bind(stage.lane_workspace_bytes), caller.get(), &is_joined);
  EXPECT_TRUE(is_joined);
  EXPECT_EQ(backend.waits(), 2);  // the lane with a stream forked, and joined
  caller->Synchronize();
  EXPECT_EQ(memory.results[0][0], 5.0f);
  return status.message();
}

TEST(StageRunnerTest, ALaunchThatFailsHalfwayIsStillJoined) {
  for (const int largest : {0, 1}) {
    EXPECT_EQ(RunHalfwayAndExpectJoined(FailingLaunch::Failure::kReturned, largest),
              "Convolution '1' with algorithm DIRECT: no launch");
  }
}

TEST(StageRunnerTest, ALaunchThatThrowsHalfwayIsStillJoined) {
  for (const int largest : {0, 1}) {
    EXPECT_EQ(RunHalfwayAndExpectJoined(FailingLaunch::Failure::kThrown, largest),
              "Out of host memory while a stage was launched.");
  }
}

// Notes what goes to which stream, in order.
class NotingBackend : public HostBackend {
 public:
  NotingBackend() : HostBackend(SerialFor) {}
  Status Record(Event* event, Stream stream) override {
    calls.emplace_back('r', stream);
    return HostBackend::Record(event, stream);
  }
  Status Wait(Stream stream, Event* event) override {
    calls.emplace_back('w', stream);
    return HostBackend::Wait(stream, event);
  }
  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override {
    calls.emplace_back('l', stream);
    return HostBackend::Launch(prepared, buffers, workspace, group, stream);
  }
  // Letters of the calls, those on the caller's stream as capitals.
  std::string Written(Stream caller) const {
    std::string written;
    for (const auto& [letter, stream] : calls) {
      written += stream == caller ? static_cast<char>(std::toupper(letter)) : letter;
    }
    return written;
  }

  std::vector<std::pair<char, Stream>> calls;
};

std::string CallsOf(const Stage& planned) {
  NotingBackend backend;
  const PreparedStage stage = Prepared(&backend, planned);
  StageMemory memory(planned.steps.size(), CopyConvolution(kPixels), 5.0f);
  const std::unique_ptr<HostStream> caller = NewCaller();
  EXPECT_TRUE(
      RunStage(&backend, stage, memory.Bind(stage.lane_workspace_bytes), caller.get()).ok());
  caller->Synchronize();
  return backend.Written(caller.get());
}

TEST(StageRunnerTest, TheLaneWithMostWorkRunsOnTheCallersStreamWithoutEvents) {
  // The fork is recorded first; then two streams wait, three lanes launch, and two are joined.
  EXPECT_EQ(CallsOf(CopyLanes(3)), "RwwLllrWrW") << "the first of equals";
  Stage planned = CopyLanes(3);
  planned.steps[0].convolution = planned.steps[1].convolution = CopyConvolution(kPixels / 2);
  EXPECT_EQ(CallsOf(planned), "RwwllLrWrW");
  // Two steps of 32 pixels are as much as one of 64, and three are more.
  EXPECT_EQ(CallsOf(StageOf(StageOfLanes(5, CopyConvolution(16)).steps, {0, 0, 1, 1, 1})),
            "RwlLlLLrW");
}

TEST(StageRunnerTest, AStageOfOneLaneHasNoEvents) {
  EXPECT_EQ(CallsOf(StageOf(CopyLanes(3).steps, {0, 0, 0})), "LLL");
  EXPECT_EQ(CallsOf(WithOptions(CopyLanes(1), {{-1, 8}})), "L") << "nothing to share SMs with";
}

TEST(StageRunnerTest, LanesWithOptionsAllHaveStreams) {
  EXPECT_EQ(CallsOf(WithOptions(CopyLanes(2), {{-1, 0}, {0, 0}})), "RwwllrWrW");
}

// Appends its name to what the call brings, on the lane, and may fail.
class NotingOperation : public Operation {
 public:
  explicit NotingOperation(std::string name, Status status = Status::Ok())
      : name_(std::move(name)), status_(std::move(status)) {}
  size_t workspace_bytes() const override { return 48; }
  Status Launch(void* argument, void* workspace, Stream stream) const override {
    static_cast<HostStream*>(stream)->Enqueue([=] {
      *static_cast<char*>(workspace) = 'x';
      static_cast<std::string*>(argument)->append(name_);
      return Status::Ok();
    });
    return status_;
  }

 private:
  const std::string name_;
  const Status status_;
};

Step OperationStep(const std::string& name, Status status = Status::Ok()) {
  return {name, {}, "", std::make_shared<NotingOperation>(name, std::move(status))};
}

TEST(StageRunnerTest, OperationsRunInTheOrderOfTheirLaneBesideConvolutions) {
  HostBackend backend(SerialFor, RandomDelay);
  Stage planned = CopyLanes(2);
  planned.steps.insert(planned.steps.end(), {OperationStep("a"), OperationStep("b")});
  planned.lanes[1].steps = {1, 2, 3};
  for (const Stage& stage : {planned, InSequence(planned)}) {
    const PreparedStage prepared = Prepared(&backend, stage);
    EXPECT_EQ(prepared.lane_workspace_bytes.back(), 48u);
    StageMemory memory(4, CopyConvolution(kPixels), 5.0f);
    StageBuffers buffers = memory.Bind(prepared.lane_workspace_bytes);
    std::string noted;
    buffers.argument = &noted;
    const std::unique_ptr<HostStream> caller = NewCaller();
    ASSERT_TRUE(RunStage(&backend, prepared, buffers, caller.get()).ok());
    caller->Synchronize();
    EXPECT_EQ(noted, "ab");
    EXPECT_EQ(memory.results[1], memory.image);
  }
}

TEST(StageRunnerTest, AnOperationThatFailsIsNamedAndIsNeverMerged) {
  HostBackend backend(SerialFor);
  Stage planned = CopyLanes(1);
  planned.steps.push_back(OperationStep("bad", Internal("no kernel")));
  planned.lanes[0].steps = {0, 1};
  planned.lanes[0].merged = true;
  const PreparedStage prepared = Prepared(&backend, planned);
  EXPECT_TRUE(prepared.merged.empty());
  EXPECT_EQ(prepared.unmerged.size(), 1u);
  StageMemory memory(2, CopyConvolution(kPixels), 5.0f);
  StageBuffers buffers = memory.Bind(prepared.lane_workspace_bytes);
  std::string noted;
  buffers.argument = &noted;
  const std::unique_ptr<HostStream> caller = NewCaller();
  const Status status = RunStage(&backend, prepared, buffers, caller.get());
  caller->Synchronize();
  EXPECT_TRUE(IsError(status, StatusCode::kInternal, {"'bad'"}));
}

TEST(StageRunnerTest, APinThatCannotRunFallsBackAndIsNoted) {
  HostBackend backend(SerialFor);
  const PreparedStage stage = Prepared(&backend, StageOfLanes(1, CopyConvolution(kPixels), "eng7"));
  EXPECT_EQ(AlgorithmsOf(stage), std::vector<std::string>{"IM2COL_GEMM"});
  ASSERT_EQ(stage.fallbacks.size(), 1u);
  EXPECT_NE(stage.fallbacks[0].find("'0' with algorithm eng7"), std::string::npos);
}

// Three taps, so that the product of matrices needs a workspace.
Convolution WideConvolution(int64_t pixels) {
  Convolution c = CopyConvolution(pixels);
  c.filter_width = 3;
  c.pad_left = c.pad_right = 1;
  return c;
}

TEST(StageRunnerTest, APinOverTheWorkspaceLimitFallsBack) {
  HostBackend backend(SerialFor);
  const PreparedStage stage =
      Prepared(&backend, StageOfLanes(1, WideConvolution(16), "IM2COL_GEMM"), {8});
  EXPECT_EQ(AlgorithmsOf(stage), std::vector<std::string>{"DIRECT"});
  EXPECT_EQ(stage.fallbacks.size(), 1u);
}

TEST(StageRunnerTest, StepsOfALaneShareItsWorkspace) {
  HostBackend backend(SerialFor);
  Stage planned = StageOf(StageOfLanes(3, WideConvolution(16)).steps, {0, 0, 1});
  planned.steps[0].convolution = WideConvolution(64);
  const PreparedStage stage = Prepared(&backend, planned);
  ASSERT_EQ(stage.lane_workspace_bytes.size(), 2u);
  EXPECT_GT(stage.lane_workspace_bytes[0], stage.lane_workspace_bytes[1]);
  EXPECT_GT(stage.lane_workspace_bytes[1], 0u);
}

TEST(StageRunnerTest, LanesBeyondTheLimitRunAfterOthers) {
  HostBackend backend(SerialFor);
  const PreparedStage stage = Prepared(&backend, CopyLanes(3 * kMaxLanes));
  EXPECT_EQ(stage.lane_workspace_bytes.size(), static_cast<size_t>(kMaxLanes));
  EXPECT_EQ(stage.steps[kMaxLanes + 1].lane, 1);
}

TEST(StageRunnerTest, StreamsBeyondTheLimitOfThreadsRunWhereTheyAreUsed) {
  HostBackend backend(SerialFor);
  std::vector<std::unique_ptr<StreamGroup>> groups(1000);
  for (auto& group : groups) ASSERT_TRUE(backend.Acquire(&group).ok());
  auto* const last = static_cast<HostStream*>(groups.back()->stream());
  EXPECT_FALSE(last->has_thread());
  bool has_run = false;
  last->Enqueue([&has_run] {
    has_run = true;
    return Internal("kept until it is taken");
  });
  EXPECT_TRUE(has_run);
  EXPECT_FALSE(last->TakeError().ok());
  // A stage whose streams have no threads runs in order.
  EXPECT_EQ(CountWrongElements(&backend, last, 3.0f), 0);
  for (auto& group : groups) backend.Release(std::move(group));
}

TEST(StageRunnerTest, LanesAskForWhatTheirOptionsSay) {
  HostBackend backend(SerialFor);
  const PreparedStage stage =
      Prepared(&backend, WithOptions(CopyLanes(3), {{-2, 0}, {0, 24}, {1, 0}}));
  ASSERT_EQ(stage.lane_groups.size(), 3u);
  const int priorities[] = {-2, 0, 1};
  for (int lane = 0; lane < 3; ++lane) {
    EXPECT_EQ(stage.lane_groups[lane].priority, priorities[lane]);
    EXPECT_EQ(stage.lane_groups[lane].partition, (std::vector<int>{0, 24, 0}));
    EXPECT_EQ(stage.lane_groups[lane].partition_index, lane);
  }
}

TEST(StageRunnerTest, LanesBeyondTheLimitRunWithTheOptionsOfThoseInFront) {
  std::vector<LaneOptions> lanes(kMaxLanes + 2);
  for (int lane = 0; lane < kMaxLanes + 2; ++lane) lanes[lane] = {-lane, lane};
  HostBackend backend(SerialFor);
  const PreparedStage stage = Prepared(&backend, WithOptions(CopyLanes(kMaxLanes + 2), lanes));
  ASSERT_EQ(stage.lane_groups.size(), static_cast<size_t>(kMaxLanes));
  EXPECT_EQ(stage.lane_groups[1].priority, -1);
  EXPECT_EQ(stage.lane_groups[1].partition.size(), static_cast<size_t>(kMaxLanes));
}

// `change` makes a stage of three lanes one that is refused.
void ExpectRefused(const std::string& part, const std::function<void(Stage*)>& change) {
  HostBackend backend(SerialFor);
  Stage stage = CopyLanes(3);
  change(&stage);
  PreparedStage prepared;
  const Status status = PrepareStage(&backend, stage, kAnyWorkspace, &prepared);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST(StageRunnerTest, RefusesStagesThatAreNone) {
  ExpectRefused("got -1 in lane 1", [](Stage* stage) { stage->lanes[1].sm_count = -1; });
  ExpectRefused("got none in lane 2", [](Stage* stage) { stage->lanes[2].steps.clear(); });
  ExpectRefused("got step 0 in lane 1", [](Stage* stage) { stage->lanes[1].steps = {0, 1}; });
  ExpectRefused("got step 3 in lane 2", [](Stage* stage) { stage->lanes[2].steps = {2, 3}; });
  ExpectRefused("got 2 of them", [](Stage* stage) { stage->lanes.pop_back(); });
  ExpectRefused("ascending order", [](Stage* stage) {
    stage->lanes.pop_back();
    stage->lanes[1].steps = {2, 1};
  });
  ExpectRefused("'1'", [](Stage* stage) { stage->steps[1].convolution.output_width = 3; });
}

// A backend that has `plain` groups without options at once and, of a partition, those of the lanes
// before `granted`. Counts the groups that are out.
class ScarceBackend : public HostBackend {
 public:
  ScarceBackend(int plain, int granted)
      : HostBackend(SerialFor, RandomDelay), plain_(plain), granted_(granted) {}
  Status Acquire(const StreamGroupOptions& options, std::unique_ptr<StreamGroup>* group) override {
    const bool has_partition = !options.partition.empty();
    if (has_partition && options.partition_index >= granted_) return Internal("scarce partition");
    if (!has_partition && out_ >= plain_) return ResourceExhausted("scarce groups");
    ++out_;
    StreamGroupOptions without = options;
    without.partition.clear();
    return HostBackend::Acquire(without, group);
  }
  void Release(std::unique_ptr<StreamGroup> group) override {
    --out_;
    HostBackend::Release(std::move(group));
  }
  int out() const { return out_; }

 private:
  const int plain_, granted_;
  int out_ = 0;
};

struct LaneOptionsRun {
  Status status;
  int wrong_elements = 0;
  int64_t refusals = 0;  // for a reason with the given words in it
};

LaneOptionsRun RunWithOptions(HostBackend* backend, const std::vector<LaneOptions>& lanes,
                              const std::string& reason) {
  const auto count_refusals = [&reason] {
    int64_t count = 0;
    for (const auto& [why, times] : ReadCounters().refused_lane_options) {
      if (why.find(reason) != std::string::npos) count += times;
    }
    return count;
  };
  const int count = static_cast<int>(lanes.size());
  const PreparedStage stage = Prepared(backend, WithOptions(CopyLanes(count), lanes));
  StageMemory memory(lanes.size(), CopyConvolution(kPixels), 7.0f);
  const std::unique_ptr<HostStream> caller = NewCaller();
  LaneOptionsRun run;
  const int64_t before = count_refusals();
  run.status = RunStage(backend, stage, memory.Bind(stage.lane_workspace_bytes), caller.get());
  run.refusals = count_refusals() - before;
  caller->Synchronize();
  run.wrong_elements = memory.CountWrong(7.0f);
  return run;
}

TEST(StageRunnerTest, LanesRunWithoutOptionsThatTheBackendRefuses) {
  HostBackend backend(SerialFor, RandomDelay);
  const LaneOptionsRun run =
      RunWithOptions(&backend, {{0, 8}, {0, 0}, {-1, 0}}, "no SMs to divide");
  EXPECT_TRUE(run.status.ok()) << run.status.message();
  EXPECT_EQ(run.wrong_elements, 0);
  EXPECT_EQ(run.refusals, 1);
}

TEST(StageRunnerTest, PrioritiesAloneAreNotRefusedOnTheHost) {
  HostBackend backend(SerialFor, RandomDelay);
  const LaneOptionsRun run = RunWithOptions(&backend, {{-1, 0}, {0, 0}}, "");
  EXPECT_TRUE(run.status.ok()) << run.status.message();
  EXPECT_EQ(run.wrong_elements, 0);
  EXPECT_EQ(run.refusals, 0);
}

TEST(StageRunnerTest, LanesOfAPartitionThatIsRefusedHalfwayAreReturned) {
  ScarceBackend backend(/*plain=*/3, /*granted=*/2);
  const LaneOptionsRun run = RunWithOptions(&backend, {{0, 8}, {0, 8}, {0, 0}}, "scarce partition");
  EXPECT_TRUE(run.status.ok()) << run.status.message();
  EXPECT_EQ(run.wrong_elements, 0);
  EXPECT_EQ(run.refusals, 1);
  EXPECT_EQ(backend.out(), 0);
}

TEST(StageRunnerTest, AStageThatHasTooFewGroupsRunsInSequenceAndIsCounted) {
  for (const std::vector<LaneOptions>& lanes :
       {std::vector<LaneOptions>{{0, 8}, {0, 8}, {0, 0}}, std::vector<LaneOptions>(3)}) {
    ScarceBackend backend(/*plain=*/2, /*granted=*/1);
    const int64_t before = CountFallbacks("ran in sequence: scarce groups");
    const LaneOptionsRun run = RunWithOptions(&backend, lanes, "scarce partition");
    EXPECT_TRUE(run.status.ok()) << run.status.message();
    EXPECT_EQ(run.wrong_elements, 0);
    EXPECT_EQ(CountFallbacks("ran in sequence: scarce groups"), before + 1);
    EXPECT_EQ(backend.out(), 0);
  }
}

TEST(StageRunnerTest, AStageThatHasNoGroupFailsAndKeepsNone) {
  ScarceBackend backend(/*plain=*/0, /*granted=*/1);
  const LaneOptionsRun run = RunWithOptions(&backend, {{0, 8}, {0, 8}, {0, 0}}, "scarce partition");
  EXPECT_EQ(run.status.message(), "scarce groups");
  EXPECT_EQ(backend.out(), 0);
}

TEST(StageRunnerTest, EmptyBatchesGiveEmptyResultsAndZeroGradients) {
  HostBackend backend(SerialFor);
  Convolution forward = CopyConvolution(4), gradient = CopyConvolution(4);
  forward.batch = gradient.batch = 0;
  gradient.kind = ConvolutionKind::kBackwardFilter;
  Stage planned = StageOfLanes(2, forward);
  planned.steps[1].convolution = gradient;
  const PreparedStage stage = Prepared(&backend, planned);
  std::vector<float> filter_gradient(1, 5.0f);
  const StageBuffers buffers = {
      {{}, {{}, filter_gradient.data()}}, {nullptr, nullptr}, {}, nullptr};
  const std::unique_ptr<HostStream> caller = NewCaller();
  ASSERT_TRUE(RunStage(&backend, stage, buffers, caller.get()).ok());
  caller->Synchronize();
  EXPECT_EQ(filter_gradient[0], 0.0f);
}

// ThreadSanitizer does not support threads in the child of a process that has threads.
#if !defined(__SANITIZE_THREAD__)
TEST(StageRunnerTest, AForkedChildMakesItsOwnStreams) {
  HostBackend backend(SerialFor);
  {
    const std::unique_ptr<HostStream> caller = NewCaller();
    ASSERT_EQ(CountWrongElements(&backend, caller.get(), 1.0f), 0);
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends the child with a signal
    std::unique_ptr<HostStream> caller;
    const bool ok =
        HostStream::Create(&caller).ok() && CountWrongElements(&backend, caller.get(), 2.0f) == 0;
    _exit(ok ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

}  // namespace
}  // namespace tf_interop
