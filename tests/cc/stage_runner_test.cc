// The stream contract of the runner, on the host backend, with delays that make every missing
// dependency show.
#include "cc_kernels/core/stage_runner.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/host/host_stream.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

constexpr size_t kNoLimit = ~size_t{0};

// A 1x1 convolution of one channel with filter 1: it copies its image, so that every element of the
// result says what the lane has read.
Convolution CopyConvolution(int64_t pixels) {
  Convolution c;
  c.batch = 1;
  c.image_height = c.output_height = 1;
  c.image_width = c.output_width = pixels;
  c.image_channels = c.output_channels = 1;
  c.filter_height = c.filter_width = 1;
  return c;
}

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
constexpr float kPoison = -1.0f;

// One round as TensorFlow would drive it: work on the caller's stream writes the inputs, the stage
// runs, and later work on the caller's stream reads the results and reuses the inputs' memory at
// once. Returns how many elements were wrong.
int CountWrongElements(HostBackend* backend, HostStream* caller, float value) {
  std::vector<float> image(kPixels, kPoison), filter(1, 1.0f);
  std::vector<std::vector<float>> results(kLanes, std::vector<float>(kPixels, kPoison));
  std::vector<StageStep> steps;
  std::vector<ConvolutionBuffers> buffers;
  for (int lane = 0; lane < kLanes; ++lane) {
    steps.push_back({"conv" + std::to_string(lane), CopyConvolution(kPixels), "DIRECT", lane});
    buffers.push_back({{image.data(), filter.data(), nullptr}, results[lane].data()});
  }
  PreparedStage stage;
  EXPECT_TRUE(PrepareStage(backend, steps, kNoLimit, &stage).ok());

  caller->Enqueue([&image, value] {
    SleepUpTo(1000);
    std::fill(image.begin(), image.end(), value);
    return Status::Ok();
  });
  EXPECT_TRUE(RunStage(backend, stage, buffers, {nullptr, nullptr, nullptr}, caller).ok());
  std::atomic<int> wrong{0};
  caller->Enqueue([&] {
    std::fill(image.begin(), image.end(), kPoison);
    for (const auto& result : results) {
      wrong += static_cast<int>(
          std::count_if(result.begin(), result.end(), [&](float x) { return x != value; }));
    }
    return Status::Ok();
  });
  caller->Synchronize();
  // Lanes that were not joined still write to memory of this function.
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return wrong;
}

int CountWrongElements(BrokenBackend::Missing missing, int rounds) {
  BrokenBackend backend(missing, RandomDelay);
  std::unique_ptr<HostStream> caller;
  EXPECT_TRUE(HostStream::Create(&caller).ok());
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
    std::unique_ptr<HostStream> caller;
    ASSERT_TRUE(HostStream::Create(&caller).ok());
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
  std::unique_ptr<HostStream> caller;
  ASSERT_TRUE(HostStream::Create(&caller).ok());
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
  std::vector<float> image(16, 1.0f), filter(1, 1.0f), results(48, 0.0f);
  std::vector<StageStep> steps = {{"a", CopyConvolution(16), "", 0},
                                  {"bad", CopyConvolution(7), "", 1},
                                  {"c", CopyConvolution(16), "", 2}};
  std::vector<ConvolutionBuffers> buffers;
  for (int i = 0; i < 3; ++i) {
    buffers.push_back({{image.data(), filter.data(), nullptr}, results.data() + 16 * i});
  }
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend, steps, kNoLimit, &stage).ok());
  std::unique_ptr<HostStream> caller;
  ASSERT_TRUE(HostStream::Create(&caller).ok());
  ASSERT_TRUE(RunStage(&backend, stage, buffers, {nullptr, nullptr, nullptr}, caller.get()).ok());
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

// Runs two lanes of which the second cannot be launched; returns why.
std::string RunHalfwayAndExpectJoined(FailingLaunch::Failure failure) {
  FailingLaunch backend(1, failure);
  std::vector<float> image(16, 1.0f), filter(1, 1.0f), first(16, 0.0f), second(16, 0.0f);
  PreparedStage stage;
  EXPECT_TRUE(PrepareStage(&backend,
                           {{"a", CopyConvolution(16), "DIRECT", 0},
                            {"b", CopyConvolution(16), "DIRECT", 1}},
                           kNoLimit, &stage)
                  .ok());
  std::unique_ptr<HostStream> caller;
  EXPECT_TRUE(HostStream::Create(&caller).ok());
  const Status status = RunStage(&backend, stage,
                                 {{{image.data(), filter.data(), nullptr}, first.data()},
                                  {{image.data(), filter.data(), nullptr}, second.data()}},
                                 {nullptr, nullptr}, caller.get());
  EXPECT_EQ(backend.waits(), 4);  // two lanes forked, two joined
  caller->Synchronize();
  EXPECT_EQ(first, std::vector<float>(16, 1.0f));
  return status.message();
}

TEST(StageRunnerTest, ALaunchThatFailsHalfwayIsStillJoined) {
  EXPECT_EQ(RunHalfwayAndExpectJoined(FailingLaunch::Failure::kReturned),
            "Convolution 'b' with algorithm DIRECT: no launch");
}

TEST(StageRunnerTest, ALaunchThatThrowsHalfwayIsStillJoined) {
  EXPECT_EQ(RunHalfwayAndExpectJoined(FailingLaunch::Failure::kThrown),
            "Out of host memory while a stage was launched.");
}

TEST(StageRunnerTest, APinThatCannotRunFallsBackAndIsNoted) {
  HostBackend backend(SerialFor);
  PreparedStage stage;
  ASSERT_TRUE(
      PrepareStage(&backend, {{"a", CopyConvolution(16), "eng7", 0}}, kNoLimit, &stage).ok());
  EXPECT_EQ(stage.steps[0].convolution->algorithm(), "IM2COL_GEMM");
  ASSERT_EQ(stage.fallbacks.size(), 1u);
  EXPECT_NE(stage.fallbacks[0].find("'a' with algorithm eng7"), std::string::npos);
}

TEST(StageRunnerTest, APinOverTheWorkspaceLimitFallsBack) {
  HostBackend backend(SerialFor);
  Convolution c = CopyConvolution(16);
  c.filter_width = 3;
  c.pad_left = c.pad_right = 1;
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend, {{"a", c, "IM2COL_GEMM", 0}}, 8, &stage).ok());
  EXPECT_EQ(stage.steps[0].convolution->algorithm(), "DIRECT");
  EXPECT_EQ(stage.fallbacks.size(), 1u);
}

TEST(StageRunnerTest, StepsOfALaneShareItsWorkspace) {
  HostBackend backend(SerialFor);
  Convolution small = CopyConvolution(16), large = CopyConvolution(64);
  for (Convolution* c : {&small, &large}) {
    c->filter_width = 3;
    c->pad_left = c->pad_right = 1;
  }
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend,
                           {{"a", large, "", 0}, {"b", small, "", 0}, {"c", small, "", 1}},
                           kNoLimit, &stage)
                  .ok());
  ASSERT_EQ(stage.lane_workspace_bytes.size(), 2u);
  EXPECT_GT(stage.lane_workspace_bytes[0], stage.lane_workspace_bytes[1]);
  EXPECT_GT(stage.lane_workspace_bytes[1], 0u);
}

std::vector<StageStep> CopySteps(int lanes) {
  std::vector<StageStep> steps;
  for (int lane = 0; lane < lanes; ++lane) {
    steps.push_back({"copy", CopyConvolution(kPixels), "", lane});
  }
  return steps;
}

TEST(StageRunnerTest, LanesBeyondTheLimitRunBehindOthers) {
  HostBackend backend(SerialFor);
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend, CopySteps(3 * kMaxLanes), kNoLimit, &stage).ok());
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
  PreparedStage stage;
  ASSERT_TRUE(
      PrepareStage(&backend, CopySteps(3), {{-2, 0}, {0, 24}, {1, 0}}, kNoLimit, &stage).ok());
  ASSERT_EQ(stage.lane_groups.size(), 3u);
  const int priorities[] = {-2, 0, 1};
  for (int lane = 0; lane < 3; ++lane) {
    EXPECT_EQ(stage.lane_groups[lane].priority, priorities[lane]);
    EXPECT_EQ(stage.lane_groups[lane].partition, (std::vector<int>{0, 24, 0}));
    EXPECT_EQ(stage.lane_groups[lane].partition_index, lane);
  }
}

TEST(StageRunnerTest, LanesWithoutOptionsAskForNothing) {
  HostBackend backend(SerialFor);
  PreparedStage stage;
  for (const std::vector<LaneOptions>& lanes :
       {std::vector<LaneOptions>(), std::vector<LaneOptions>(2)}) {
    ASSERT_TRUE(PrepareStage(&backend, CopySteps(2), lanes, kNoLimit, &stage).ok());
    EXPECT_EQ(stage.lane_groups, std::vector<StreamGroupOptions>(2));
  }
}

TEST(StageRunnerTest, LanesBeyondTheLimitRunWithTheOptionsOfThoseInFront) {
  std::vector<LaneOptions> lanes(kMaxLanes + 2);
  for (int lane = 0; lane < kMaxLanes + 2; ++lane) lanes[lane] = {-lane, lane};
  HostBackend backend(SerialFor);
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend, CopySteps(kMaxLanes + 2), lanes, kNoLimit, &stage).ok());
  ASSERT_EQ(stage.lane_groups.size(), static_cast<size_t>(kMaxLanes));
  EXPECT_EQ(stage.lane_groups[1].priority, -1);
  EXPECT_EQ(stage.lane_groups[1].partition.size(), static_cast<size_t>(kMaxLanes));
}

TEST(StageRunnerTest, RefusesOptionsThatFitNoLane) {
  HostBackend backend(SerialFor);
  PreparedStage stage;
  const Status too_few = PrepareStage(&backend, CopySteps(3), {{0, 8}}, kNoLimit, &stage);
  EXPECT_EQ(too_few.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(too_few.message().find("all of 3 lanes, got 1"), std::string::npos);
  const Status negative = PrepareStage(&backend, CopySteps(2), {{0, 8}, {0, -1}}, kNoLimit, &stage);
  EXPECT_EQ(negative.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(negative.message().find("got -1 for lane 1"), std::string::npos);
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
    return HostBackend::Acquire(StreamGroupOptions(), group);
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
  std::vector<float> image(kPixels, 7.0f), filter(1, 1.0f);
  std::vector<std::vector<float>> results(lanes.size(), std::vector<float>(kPixels, kPoison));
  std::vector<ConvolutionBuffers> buffers;
  for (auto& result : results) {
    buffers.push_back({{image.data(), filter.data(), nullptr}, result.data()});
  }
  std::vector<StageStep> steps = CopySteps(static_cast<int>(lanes.size()));
  for (StageStep& step : steps) step.algorithm = "DIRECT";
  PreparedStage stage;
  EXPECT_TRUE(PrepareStage(backend, steps, lanes, kNoLimit, &stage).ok());
  std::unique_ptr<HostStream> caller;
  EXPECT_TRUE(HostStream::Create(&caller).ok());
  LaneOptionsRun run;
  const int64_t before = count_refusals();
  run.status = RunStage(backend, stage, buffers, std::vector<void*>(lanes.size()), caller.get());
  run.refusals = count_refusals() - before;
  caller->Synchronize();
  for (const auto& result : results) {
    run.wrong_elements += static_cast<int>(
        std::count_if(result.begin(), result.end(), [](float x) { return x != 7.0f; }));
  }
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
    const auto count_fallbacks = [] {
      int64_t count = 0;
      for (const auto& [why, times] : ReadCounters().fallbacks) {
        if (why.find("ran in sequence: scarce groups") != std::string::npos) count += times;
      }
      return count;
    };
    const int64_t before = count_fallbacks();
    const LaneOptionsRun run = RunWithOptions(&backend, lanes, "scarce partition");
    EXPECT_TRUE(run.status.ok()) << run.status.message();
    EXPECT_EQ(run.wrong_elements, 0);
    EXPECT_EQ(count_fallbacks(), before + 1);
    EXPECT_EQ(backend.out(), 0);
  }
}

TEST(StageRunnerTest, AStageThatHasNoGroupFailsAndKeepsNone) {
  ScarceBackend backend(/*plain=*/0, /*granted=*/1);
  const LaneOptionsRun run = RunWithOptions(&backend, {{0, 8}, {0, 8}, {0, 0}}, "scarce partition");
  EXPECT_EQ(run.status.message(), "scarce groups");
  EXPECT_EQ(backend.out(), 0);
}

TEST(StageRunnerTest, RefusesAGapInTheLanes) {
  HostBackend backend(SerialFor);
  PreparedStage stage;
  const Status status =
      PrepareStage(&backend, {{"a", CopyConvolution(4), "", 0}, {"b", CopyConvolution(4), "", 2}},
                   kNoLimit, &stage);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'b'"), std::string::npos);
}

TEST(StageRunnerTest, EmptyBatchesGiveEmptyResultsAndZeroGradients) {
  HostBackend backend(SerialFor);
  Convolution forward = CopyConvolution(4), gradient = CopyConvolution(4);
  forward.batch = gradient.batch = 0;
  gradient.kind = ConvolutionKind::kBackwardFilter;
  PreparedStage stage;
  ASSERT_TRUE(
      PrepareStage(&backend, {{"f", forward, "", 0}, {"g", gradient, "", 1}}, kNoLimit, &stage)
          .ok());
  std::vector<float> filter_gradient(1, 5.0f);
  std::unique_ptr<HostStream> caller;
  ASSERT_TRUE(HostStream::Create(&caller).ok());
  ASSERT_TRUE(RunStage(&backend, stage,
                       {{{nullptr, nullptr, nullptr}, nullptr},
                        {{nullptr, nullptr, nullptr}, filter_gradient.data()}},
                       {nullptr, nullptr}, caller.get())
                  .ok());
  caller->Synchronize();
  EXPECT_EQ(filter_gradient[0], 0.0f);
}

// ThreadSanitizer does not support threads in the child of a process that has threads.
#if !defined(__SANITIZE_THREAD__)
TEST(StageRunnerTest, AForkedChildMakesItsOwnStreams) {
  HostBackend backend(SerialFor);
  {
    std::unique_ptr<HostStream> caller;
    ASSERT_TRUE(HostStream::Create(&caller).ok());
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
