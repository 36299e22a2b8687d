// Measurements on the host backend: timed sections, errors against double precision, determinism,
// lanes against sequences, and failures.
#include "cc_kernels/core/measure/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

using Names = std::vector<std::string>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Counts device memory and traces, and can refuse memory or report that the host was late.
class CountingDevice : public HostMeasuringDevice {
 public:
  explicit CountingDevice(SpyBackend* backend) : HostMeasuringDevice(backend), spy(backend) {}
  ~CountingDevice() override { EXPECT_EQ(live, 0) << "device memory was not freed"; }

  Status Allocate(size_t bytes, void** data) override {
    if (refuse_from-- <= 0) return ResourceExhausted("no memory");
    TF_INTEROP_RETURN_IF_ERROR(HostMeasuringDevice::Allocate(bytes, data));
    sizes.push_back(bytes);
    ++live;
    return Status::Ok();
  }
  void Free(void* data) override {
    --live;
    HostMeasuringDevice::Free(data);
  }
  bool IsBefore(const TimeMark&) const override { return late_sections-- <= 0; }
  Status StartTrace() override {
    sections_at_trace = sections();
    return start_trace;
  }
  Status StopTrace(std::vector<TracedKernel>* kernels) override {
    ++traces;
    *kernels = {TracedKernel()};
    return stop_trace;
  }

  // A timed section has a mark at each end.
  size_t sections() const { return spy->CountCalls('m') / 2; }

  SpyBackend* const spy;
  Status start_trace, stop_trace;
  int traces = 0, live = 0;
  size_t sections_at_trace = 0;
  int refuse_from = std::numeric_limits<int>::max();
  mutable int late_sections = 0;
  std::vector<size_t> sizes;  // of all allocations so far
};

class TimingTest : public testing::Test {
 protected:
  TimingTest() {
    options_.warmup_ms = 0;
    options_.repetitions = 3;
    options_.cold_bytes = 0;
  }

  // Keeps no problem.
  Status Measure(const Convolution& c, const std::string& algorithm, Measurement* measured) {
    KeptProblem kept;
    return MeasureConvolution(&device_, c, algorithm, options_, &kept, measured);
  }
  Measurement Measured(const Convolution& c, const std::string& algorithm = "") {
    Measurement measured;
    EXPECT_TRUE(IsOk(Measure(c, algorithm, &measured)));
    return measured;
  }
  StageMeasurement Measured(const StageRequest& request) {
    StageMeasurement measured;
    EXPECT_TRUE(IsOk(MeasureStage(&device_, request, options_, &measured)));
    return measured;
  }
  // Also checks that nothing runs and no group is kept.
  void ExpectRefused(const StageRequest& request, StatusCode code, const std::string& words) {
    StageMeasurement measured;
    EXPECT_TRUE(IsError(MeasureStage(&device_, request, options_, &measured), code, {words}));
    EXPECT_EQ(device_.sections(), 0u);
    EXPECT_EQ(backend_.leased, 0);
  }
  // Calls run(number) in each run.
  void OnRun(const std::function<Status(int)>& run) {
    run_ = run;
    backend_.on_launch = [this](const PreparedConvolution&, const ConvolutionBuffers&,
                                Stream stream) {
      return EnqueueOn(stream, [this] { return run_(runs_++); });
    };
  }
  static Status Sleep(int milliseconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return Status::Ok();
  }

  const Convolution c_ = MakeConvolution();
  MeasureOptions options_;
  SpyBackend backend_;
  CountingDevice device_{&backend_};
  std::function<Status(int)> run_;
  std::atomic<int> runs_{0};
};

TEST_F(TimingTest, ResolvingRunsNothing) {
  options_.allow_tf32 = false;
  backend_.on_prepare = [&](const Convolution&, const PrepareOptions& options, std::string*) {
    EXPECT_FALSE(options.allow_tf32);
    return Status::Ok();
  };
  std::shared_ptr<const PreparedConvolution> resolved;
  ASSERT_TRUE(IsOk(ResolveAlgorithm(&device_, c_, "", options_, &resolved)));
  EXPECT_EQ(resolved->algorithm(), "BUFFERED");
  EXPECT_TRUE(backend_.launched.empty());
}

TEST_F(TimingTest, CachesAreColdOrWarmAndALateHostGetsALongerHeadStart) {
  options_.cold_bytes = 1 << 10;
  options_.trace_kernels = false;
  const struct {
    bool warm_caches;
    int late_sections, repetitions;
    double warmup_ms;
    std::string calls;  // the first two launches are for error and determinism
  } cases[] = {
      {false, 0, 2, 0, "llfmlmfmlm"},
      {true, 0, 2, 0, "llflmlmflmlm"},
      {false, 2, 2, 0, "llfmlmffmlmffffmlmffffmlm"},
      // The warm-up ends after one turn, and the timed runs start again with one fill.
      {false, 1, 1, 1e-3, "llfmlmffmlmfmlm"},
  };
  for (const auto& each : cases) {
    options_.warm_caches = each.warm_caches;
    options_.repetitions = each.repetitions;
    options_.warmup_ms = each.warmup_ms;
    device_.late_sections = each.late_sections;
    backend_.calls.clear();
    Measured(c_);
    EXPECT_EQ(backend_.calls, each.calls);
  }
  device_.late_sections = 100;
  backend_.calls.clear();
  options_.warmup_ms = 0;
  options_.repetitions = 2;
  Measured(c_);
  EXPECT_EQ(device_.sections(), 7u + 1);  // with 1, 2, 4, … 64 fills, and once again with 64
}

TEST_F(TimingTest, SeesWhatIsNotDeterministicAndWhatIsNotWritten) {
  float noise = 0;
  backend_.on_launch = [&](const PreparedConvolution&, const ConvolutionBuffers& buffers,
                           Stream stream) {
    auto* const image = static_cast<float*>(const_cast<void*>(buffers.inputs[0]));
    return EnqueueOn(stream, [image, by = ++noise] { image[0] += by; });
  };
  const Measurement noisy = Measured(c_);
  EXPECT_FALSE(noisy.is_deterministic);
  EXPECT_GT(noisy.relative_error, 1e-3);
  backend_.computes = false;
  EXPECT_EQ(Measured(c_).relative_error, kInfinity);
  options_.reference_multiply_adds = 0;  // so that few elements are compared
  EXPECT_EQ(Measured(c_).relative_error, kInfinity);
}

TEST_F(TimingTest, SomeElementsOfALargeConvolutionAreCompared) {
  float factor = 1;
  int64_t elements = 0;
  // Changes the second operand.
  backend_.on_launch = [&](const PreparedConvolution&, const ConvolutionBuffers& buffers,
                           Stream stream) {
    auto* const operand = static_cast<float*>(const_cast<void*>(buffers.inputs[1]));
    return EnqueueOn(stream, [=] {
      std::transform(operand, operand + elements, operand, [=](float x) { return factor * x; });
    });
  };
  for (const Convolution& c :
       WithEveryKindAndLayout({MakeConvolution(), MakeVolume()}, {DataType::kFloat})) {
    SCOPED_TRACE(ToString(c));
    elements = InputElements(c)[1];
    for (const double share : {0.9, 1e-9}) {
      options_.reference_multiply_adds = share * c.multiply_adds();
      for (const float each : {1.0f, 1.5f}) {
        factor = each;
        KeptProblem kept;
        Measurement measured;
        ASSERT_TRUE(IsOk(MeasureConvolution(&device_, c, "", options_, &kept, &measured)));
        EXPECT_EQ(kept.expected.size(), kept.places.size());
        EXPECT_EQ(kept.places.size() == 1, share < 0.5);
        EXPECT_NEAR(measured.relative_error, each - 1, 1e-5);
      }
    }
  }
}

TEST_F(TimingTest, TracesOneRunAfterTheTimedOnesAndGoesOnWithoutATrace) {
  Measurement measured = Measured(c_);
  EXPECT_EQ(measured.kernels.size(), 1u);
  EXPECT_EQ(measured.trace_error, "");
  EXPECT_EQ(device_.sections_at_trace, 3u);
  EXPECT_EQ(backend_.launched.size(), 2u + 3 + 1);
  options_.trace_kernels = false;
  EXPECT_TRUE(Measured(c_).kernels.empty());
  EXPECT_EQ(device_.traces, 1);

  options_.trace_kernels = true;
  device_.stop_trace = Unavailable("records were dropped");
  measured = Measured(c_);
  EXPECT_EQ(measured.trace_error, "records were dropped");
  EXPECT_TRUE(measured.kernels.empty());
  device_.start_trace = Unavailable("another tool");
  measured = Measured(c_);
  EXPECT_EQ(measured.trace_error, "another tool");
  EXPECT_EQ(device_.traces, 2);
  EXPECT_GT(measured.time.median_us, 0);
}

TEST_F(TimingTest, AKeptProblemChangesNothing) {
  const Convolution other = MakeConvolution(ConvolutionKind::kBackwardInput);
  KeptProblem kept;
  for (const Convolution& convolution : {c_, c_, other, other, c_}) {
    Measurement again;
    ASSERT_TRUE(IsOk(MeasureConvolution(&device_, convolution, "", options_, &kept, &again)));
    EXPECT_EQ(again.relative_error, Measured(convolution).relative_error);
  }
}

TEST_F(TimingTest, TimesTheRepetitionsAndNotTheOtherRuns) {
  // The runs for error, determinism and warm-up are slow. Then come 4, 8, … 44 ms, with a median of
  // 24 ms and a spread of 16 ms, plus the excess of sleeping.
  OnRun([](int run) { return Sleep(run < 3 ? 100 : 4 + 4 * (run - 3)); });
  options_.warmup_ms = 1;
  options_.repetitions = 11;
  const Measurement measured = Measured(c_);
  EXPECT_EQ(runs_, 15);  // the last is for the trace
  EXPECT_EQ(device_.sections(), 12u);
  EXPECT_GE(measured.time.median_us, 24e3);
  EXPECT_GT(measured.time.spread_us, 0);
}

TEST_F(TimingTest, AFailureOnTheDeviceIsReportedAndMemoryIsFreed) {
  for (const int failing : {3, 5}) {  // of the timed runs, and the one that is traced
    runs_ = device_.traces = 0;
    OnRun([failing](int run) { return run == failing ? Internal("injected") : Status::Ok(); });
    Measurement measured;
    EXPECT_EQ(Measure(c_, "", &measured).message(), "injected");
    EXPECT_EQ(device_.live, 0);
    EXPECT_EQ(device_.traces, failing == 5) << "a started trace must end";
    Measured(c_);  // the next one succeeds
  }
  for (int allowed = 0; allowed < 4; ++allowed) {
    device_.refuse_from = allowed;
    Measurement measured;
    EXPECT_EQ(Measure(c_, "BUFFERED", &measured).code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(device_.live, 0) << allowed;
  }
}

// ---- Stages.

TEST_F(TimingTest, LanesOverlapAndSequencesRunTheirOwnAlgorithmsOneByOne) {
  std::atomic<int> running{0}, most{0};
  backend_.on_launch = [&](const PreparedConvolution& prepared, const ConvolutionBuffers&,
                           Stream stream) {
    return EnqueueOn(stream, [&, name = prepared.algorithm()] {
      const int now = ++running;
      if (now > most) most = now;
      const Status slept = Sleep(name == "DIRECT" ? 40 : 20);
      --running;
      return slept;
    });
  };
  Stage stage = StageOfLanes(2, c_, "DIRECT");
  Measured({InSequence(stage), {}});
  EXPECT_EQ(most, 1);
  backend_.calls.clear();
  stage.steps[1].algorithm = "BUFFERED";
  const StageMeasurement measured = Measured({stage, {"DIRECT", "DIRECT"}});
  EXPECT_EQ(most, 2);
  EXPECT_GE(measured.concurrent.median_us, 40e3);
  EXPECT_GE(measured.same_sequential.median_us, 60e3);
  EXPECT_GE(measured.sequential.median_us, 80e3);
  EXPECT_LT(measured.same_sequential.median_us, measured.sequential.median_us);
  EXPECT_EQ(measured.algorithms, (Names{"DIRECT", "BUFFERED"}));
  EXPECT_EQ(measured.sequential_algorithms, (Names{"DIRECT", "DIRECT"}));
  EXPECT_EQ(device_.sections(), 9u);  // three ways, three repetitions
}

TEST_F(TimingTest, OneMeasurementServesBothSequencesIfTheyAreTheSame) {
  Stage stage = StageOfLanes(2, c_);
  stage.steps[0].algorithm = "DIRECT";
  for (const Names& others : {Names(), Names{"DIRECT", "BUFFERED"}}) {
    backend_.calls.clear();
    const StageMeasurement measured = Measured({stage, others});
    EXPECT_EQ(device_.sections(), 6u);
    EXPECT_EQ(measured.sequential.median_us, measured.same_sequential.median_us);
    EXPECT_EQ(measured.sequential_algorithms, measured.algorithms);
  }
}

// The stage would run in sequence and look as if its lanes did not overlap.
TEST_F(TimingTest, AStageWhoseLanesDoNotGetTheirGroupsIsNotMeasured) {
  const Stage stage = StageOfLanes(3, c_);
  backend_.on_acquire = [this] {
    return backend_.leased == 1 ? ResourceExhausted("no more groups") : Status::Ok();
  };
  for (const Stage& each : {stage, WithOptions(stage, {{-1}, {0}, {0}})}) {
    ExpectRefused({each, {}}, StatusCode::kResourceExhausted, "no more groups");
  }
}

TEST_F(TimingTest, WorkspacesOfLanesAddUpAndASequenceMayNeedMore) {
  const size_t of_one = c_.result_elements() * sizeof(double);
  Convolution large = c_;
  large.batch *= 4;
  EXPECT_EQ(Measured({StageOf(StepsOf({large, c_, c_}), {0, 0, 1}), {}}).workspace_bytes,
            static_cast<int64_t>(4 * of_one + of_one));
  device_.sizes.clear();
  Stage stage = SideBySide({large, c_}, "DIRECT");
  EXPECT_EQ(Measured({stage, {"BUFFERED", "BUFFERED"}}).workspace_bytes, 0);
  EXPECT_EQ(std::count(device_.sizes.begin(), device_.sizes.end(), 4 * of_one), 1);
}

// Two convolutions of 6 and 2 output channels on one merged lane, and others on a second lane.
Stage Merging(const std::string& algorithm, int other_count = 0) {
  std::vector<Convolution> cs = WithOutputChannels(MakeConvolution(), {6, 2});
  cs.resize(2 + other_count, MakeConvolution());
  std::vector<int> lanes(2 + other_count, 1);
  lanes[0] = lanes[1] = 0;
  return WithOptions(StageOf(StepsOf(cs, algorithm), lanes), {kMergedLane});
}

TEST_F(TimingTest, AMergedLaneIsMeasuredAgainstItsConvolutionsInSequence) {
  options_.repetitions = 1;
  const Stage stage = Merging("BUFFERED");
  const StageMeasurement measured = Measured({stage, {"DIRECT", "DIRECT"}});
  EXPECT_EQ(backend_.launched, (Names{"BUFFERED", "BUFFERED", "BUFFERED", "DIRECT", "DIRECT"}));
  EXPECT_EQ(std::set<const void*>(backend_.images.begin(), backend_.images.end()).size(), 1u);
  EXPECT_EQ(measured.algorithms, (Names{"BUFFERED", "BUFFERED"}));
  EXPECT_EQ(measured.sequential_algorithms, (Names{"DIRECT", "DIRECT"}));
  EXPECT_EQ(measured.workspace_bytes,
            static_cast<int64_t>(Prepared(&backend_, stage).merged[0].merge.workspace_bytes()));
  backend_.images.clear();
  Measured({Merging("", 2), {}});  // convolutions of other lanes have their own images
  EXPECT_EQ(std::set<const void*>(backend_.images.begin(), backend_.images.end()).size(), 3u);
}

TEST_F(TimingTest, StepsWithTheSameNumberReadOneImage) {
  const auto count = [this](const Stage& stage, const std::vector<int>& images) {
    backend_.images.clear();
    Measured({stage, {}, images});
    return std::set<const void*>(backend_.images.begin(), backend_.images.end()).size();
  };
  const Convolution gradient = MakeConvolution(ConvolutionKind::kBackwardFilter);
  EXPECT_EQ(count(StageOfLanes(3, c_), {}), 3u);
  EXPECT_EQ(count(StageOfLanes(3, c_), {4, -1, 4}), 2u);
  EXPECT_EQ(count(SideBySide({c_, gradient, c_}), {0, 0, 0}), 1u);
  EXPECT_EQ(count(Merging("", 2), {1, 1, 1, 2}), 2u);
}

// The backend chooses for the sequence.
TEST_F(TimingTest, AnAlgorithmThatOnlyTheWiderConvolutionHasCanBeMeasured) {
  backend_.on_prepare = [](const Convolution& c, const PrepareOptions&, std::string* algorithm) {
    return *algorithm == "DIRECT" && c.output_channels < 8 ? Unsupported("narrow") : Status::Ok();
  };
  const StageMeasurement measured = Measured({Merging("DIRECT"), {}});
  EXPECT_EQ(measured.algorithms, (Names{"DIRECT", "DIRECT"}));
  EXPECT_EQ(measured.sequential_algorithms, (Names{"BUFFERED", "BUFFERED"}));
}

TEST_F(TimingTest, AStageThatCannotRunAsPinnedIsAFailureWithItsReason) {
  const Stage one = StageOfLanes(1, c_), two = StageOfLanes(2, c_);
  Stage algorithms = Merging("");
  algorithms.steps[1].algorithm = "DIRECT";
  const std::pair<StageRequest, std::string> cases[] = {
      {{algorithms, {}}, "a lane ran unmerged, the lane of convolution 'a': "},
      {{Merging("FFT"), {}}, "got FFT"},
      {{WithOptions(one, {kMergedLane}), {}}, "two or more convolutions to merge"},
      {{two, {"", "FFT"}}, "'b' with algorithm FFT"},
  };
  for (const auto& [request, words] : cases) {
    ExpectRefused(request, StatusCode::kUnsupported, words);
  }
  backend_.on_prepare = [](const Convolution&, const PrepareOptions&, std::string* algorithm) {
    return *algorithm == "DIRECT" ? ResourceExhausted("no memory for a plan") : Status::Ok();
  };
  ExpectRefused({StageOfLanes(1, c_, "DIRECT"), {}}, StatusCode::kResourceExhausted,
                "no memory for a plan");
}

}  // namespace
}  // namespace tf_interop
