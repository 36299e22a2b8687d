// What the runner tells a profiler, on the host backend.
#include "cc_kernels/core/trace.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/cc/stage_fixture.h"

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

// Runs the stage to its end and checks its results.
void RunToTheEnd(const Stage& planned, bool share_image = false) {
  std::vector<Convolution> parts;
  for (const Step& step : planned.steps) parts.push_back(step.convolution);
  Problem problem(parts, share_image);
  HostBackend backend;
  const PreparedStage stage = Prepared(&backend, planned);
  const std::unique_ptr<HostStream> caller = NewCaller();
  ASSERT_TRUE(
      IsOk(RunStage(&backend, stage, problem.Bind(stage.lane_workspace_bytes), caller.get())));
  caller->Synchronize();
  EXPECT_TRUE(IsOk(caller->TakeError()));
  problem.ExpectCorrect();
}

TEST(Trace, NamesEachLaunchWhereItIsMadeAndWhereItRuns) {
  RecordingTracer tracer(/*is_active=*/true);
  std::vector<Step> steps = StepsOf({MakeConvolution(), MakeConvolution()}, "DIRECT");
  steps[1].algorithm = "BUFFERED";
  RunToTheEnd(StageOf(steps, {0, 1}));
  std::set<std::thread::id> lane_threads;
  for (const int lane : {0, 1}) {
    std::set<std::thread::id> threads;
    for (const RecordingTracer::Recorded& each : tracer.recorded()) {
      if (each.label.lane != lane) continue;
      EXPECT_EQ(each.label.convolutions, lane == 0 ? "a" : "b");
      EXPECT_EQ(each.label.algorithm, lane == 0 ? "DIRECT" : "BUFFERED");
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
  RunToTheEnd(MergedStage(WithOutputChannels(MakeConvolution(), {2, 3})), /*share_image=*/true);
  ASSERT_FALSE(tracer.recorded().empty());
  for (const RecordingTracer::Recorded& each : tracer.recorded()) {
    EXPECT_EQ(each.label.convolutions, "a + b");
    EXPECT_EQ(each.label.algorithm, "BUFFERED");
  }
}

TEST(Trace, MakesLabelsOnlyWhereSomethingIsRecorded) {
  int made = 0;
  const auto scope = [&made] {
    const TraceScope scope([&made] {
      ++made;
      return TraceLabel();
    });
  };
  scope();
  {
    RecordingTracer tracer(/*is_active=*/false);
    scope();
    RunToTheEnd(StageOfLanes(1, MakeConvolution()));
    EXPECT_TRUE(tracer.recorded().empty());
  }
  EXPECT_EQ(made, 0);
  RecordingTracer tracer(/*is_active=*/true);
  scope();
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
