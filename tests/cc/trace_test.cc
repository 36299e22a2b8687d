// What the runner tells a profiler, on the host backend.
#include "cc_kernels/core/trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/host/host_stream.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/merged_problem.h"

namespace tf_interop {
namespace {

// Keeps every span, with the thread that it began and ended on.
class RecordingTracer : public Tracer {
 public:
  struct Recorded {
    TraceLabel label;
    std::thread::id thread;
    bool is_over = false;
  };

  explicit RecordingTracer(bool is_active) : is_active_(is_active) { SetTracer(this); }
  ~RecordingTracer() override { SetTracer(nullptr); }
  bool IsActive() const override { return is_active_; }
  std::unique_ptr<TraceSpan> Begin(const TraceLabel& label) override {
    std::lock_guard<std::mutex> lock(mutex_);
    recorded_.push_back({label, std::this_thread::get_id()});
    return std::make_unique<Span>(this, recorded_.size() - 1);
  }
  std::vector<Recorded> recorded() {
    std::lock_guard<std::mutex> lock(mutex_);
    return recorded_;
  }

 private:
  class Span : public TraceSpan {
   public:
    Span(RecordingTracer* tracer, size_t index) : tracer_(tracer), index_(index) {}
    ~Span() override {
      std::lock_guard<std::mutex> lock(tracer_->mutex_);
      Recorded& recorded = tracer_->recorded_[index_];
      EXPECT_EQ(recorded.thread, std::this_thread::get_id());
      recorded.is_over = true;
    }

   private:
    RecordingTracer* const tracer_;
    const size_t index_;
  };

  const bool is_active_;
  std::mutex mutex_;
  std::vector<Recorded> recorded_;
};

Convolution SmallConvolution() {
  Convolution c;
  c.batch = 1;
  c.image_height = c.image_width = c.output_height = c.output_width = 4;
  c.image_channels = c.output_channels = 2;
  c.filter_height = c.filter_width = 1;
  return c;
}

// Runs the stage to its end and checks its results.
void RunToTheEnd(const Stage& planned) {
  std::vector<Convolution> parts;
  for (const Step& step : planned.steps) parts.push_back(step.convolution);
  MergedProblem<> problem(parts);
  HostBackend backend(SerialFor);
  const PreparedStage stage = Prepared(&backend, planned);
  std::vector<GuardedBuffer> workspaces;
  std::vector<void*> pointers;
  for (const size_t bytes : stage.lane_workspace_bytes) {
    pointers.push_back(workspaces.emplace_back(bytes).data());
  }
  const std::unique_ptr<HostStream> caller = NewCaller();
  const Status status = RunStage(&backend, stage, problem.Bind(pointers), caller.get());
  ASSERT_TRUE(status.ok()) << status.message();
  caller->Synchronize();
  EXPECT_TRUE(caller->TakeError().ok());
  problem.ExpectCorrect(Tolerance());
}

TEST(Trace, NamesEachLaunchWhereItIsMadeAndWhereItRuns) {
  RecordingTracer tracer(/*is_active=*/true);
  std::vector<Step> steps = StepsOf({SmallConvolution(), SmallConvolution()}, "DIRECT");
  steps[1].algorithm = "EIGEN_SPATIAL";
  RunToTheEnd(StageOf(steps, {0, 1}));
  std::set<std::thread::id> lane_threads;
  for (const int lane : {0, 1}) {
    std::set<std::thread::id> threads;
    for (const RecordingTracer::Recorded& each : tracer.recorded()) {
      if (each.label.lane != lane) continue;
      EXPECT_EQ(each.label.convolutions, lane == 0 ? "a" : "b");
      EXPECT_EQ(each.label.algorithm, lane == 0 ? "DIRECT" : "EIGEN_SPATIAL");
      EXPECT_TRUE(each.is_over);
      threads.insert(each.thread);
    }
    EXPECT_EQ(threads.size(), 2u);
    EXPECT_EQ(threads.erase(std::this_thread::get_id()), 1u);
    lane_threads.insert(threads.begin(), threads.end());
  }
  EXPECT_EQ(lane_threads.size(), 2u) << "one lane on its own stream, one on the caller's";
  // The launch and the computation of each; fork and join have no name.
  EXPECT_EQ(tracer.recorded().size(), 4u);
}

TEST(Trace, NamesAllConvolutionsOfAMergedLane) {
  RecordingTracer tracer(/*is_active=*/true);
  RunToTheEnd(MergedStage(WithOutputChannels(SmallConvolution(), {2, 3})));
  ASSERT_FALSE(tracer.recorded().empty());
  for (const RecordingTracer::Recorded& each : tracer.recorded()) {
    EXPECT_EQ(each.label.convolutions, "a + b");
    EXPECT_EQ(each.label.algorithm, "IM2COL_GEMM");
  }
}

TEST(Trace, RecordsNothingWhileTheTracerIsNotActive) {
  RecordingTracer tracer(/*is_active=*/false);
  RunToTheEnd(StageOfLanes(1, SmallConvolution()));
  EXPECT_TRUE(tracer.recorded().empty());
}

TEST(Trace, MakesLabelsOnlyWhereSomethingIsRecorded) {
  int made = 0;
  const auto make = [&] {
    ++made;
    return TraceLabel();
  };
  {
    const TraceScope scope(make);
  }
  {
    RecordingTracer tracer(/*is_active=*/false);
    const TraceScope scope(make);
  }
  EXPECT_EQ(made, 0);
  RecordingTracer tracer(/*is_active=*/true);
  {
    const TraceScope scope(make);
  }
  EXPECT_EQ(made, 1);
}

TEST(Trace, InnermostScopeIsTheCurrentLabel) {
  RecordingTracer tracer(/*is_active=*/true);
  EXPECT_EQ(CurrentTraceLabel(), nullptr);
  {
    const TraceScope outer([] { return TraceLabel{0, "outer", ""}; });
    {
      const TraceScope inner([] { return TraceLabel{1, "inner", ""}; });
      EXPECT_EQ(CurrentTraceLabel()->convolutions, "inner");
    }
    EXPECT_EQ(CurrentTraceLabel()->convolutions, "outer");
  }
  EXPECT_EQ(CurrentTraceLabel(), nullptr);
}

}  // namespace
}  // namespace tf_interop
