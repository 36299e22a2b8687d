// Stages of small convolutions, and a host backend that records its calls.
#ifndef TF_INTEROP_TESTS_CC_STAGE_FIXTURE_H_
#define TF_INTEROP_TESTS_CC_STAGE_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cctype>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/host/backend.h"
#include "cc_kernels/core/host/stream.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/problem.h"

namespace tf_interop {

constexpr PrepareOptions kAnyWorkspace = {~size_t{0}};

// Steps "a", "b", "c" and so on.
inline std::vector<Step> StepsOf(const std::vector<Convolution>& cs,
                                 const std::string& algorithm = "") {
  std::vector<Step> steps;
  for (const Convolution& c : cs) {
    steps.push_back({std::string(1, static_cast<char>('a' + steps.size())), c, algorithm});
  }
  return steps;
}

// `step_lanes` is the lane of each step.
inline Stage StageOf(std::vector<Step> steps, const std::vector<int>& step_lanes) {
  Stage stage;
  stage.steps = std::move(steps);
  for (size_t i = 0; i < step_lanes.size(); ++i) {
    const auto lane = static_cast<size_t>(step_lanes[i]);
    if (lane >= stage.lanes.size()) stage.lanes.resize(lane + 1);
    stage.lanes[lane].steps.push_back(i);
  }
  return stage;
}

// Puts each convolution on its own lane.
inline Stage SideBySide(const std::vector<Convolution>& cs, const std::string& algorithm = "") {
  std::vector<int> lanes;
  for (size_t i = 0; i < cs.size(); ++i) lanes.push_back(static_cast<int>(i));
  return StageOf(StepsOf(cs, algorithm), lanes);
}

// One lane for each of `count` convolutions.
inline Stage StageOfLanes(int count, const Convolution& c, const std::string& algorithm = "") {
  return SideBySide(std::vector<Convolution>(count, c), algorithm);
}

// TfiLaneOptions with defaults.
struct LaneOptions {
  int priority = 0;
  bool merged = false;
};
inline constexpr LaneOptions kMergedLane = {0, true};

inline Stage WithOptions(Stage stage, const std::vector<LaneOptions>& lanes) {
  for (size_t i = 0; i < lanes.size(); ++i) {
    stage.lanes[i].priority = lanes[i].priority;
    stage.lanes[i].merged = lanes[i].merged;
  }
  return stage;
}

// `c` once for each number of output channels.
inline std::vector<Convolution> WithOutputChannels(const Convolution& c,
                                                   const std::vector<int64_t>& channels) {
  std::vector<Convolution> parts(channels.size(), c);
  for (size_t i = 0; i < parts.size(); ++i) parts[i].output_channels = channels[i];
  return parts;
}

// Puts all parts on one merged lane.
inline Stage MergedStage(const std::vector<Convolution>& parts, const std::string& algorithm = "") {
  const std::vector<int> one_lane(parts.size(), 0);
  return WithOptions(StageOf(StepsOf(parts, algorithm), one_lane), {kMergedLane});
}

inline PreparedStage Prepared(Backend* backend, const Stage& stage,
                              const PrepareOptions& options = kAnyWorkspace) {
  PreparedStage prepared;
  EXPECT_TRUE(IsOk(PrepareStage(backend, stage, options, &prepared)));
  return prepared;
}

inline std::vector<std::string> AlgorithmsOf(const PreparedStage& stage) {
  std::vector<std::string> algorithms;
  for (const PreparedStep& step : stage.steps) algorithms.push_back(step.convolution->algorithm());
  return algorithms;
}

// These tests count for no device.
inline Counters ReadCounters() { return ReadCountersByDevice()[""]; }

// How often fallbacks whose reasons contain `words` were counted.
inline int64_t CountFallbacks(const std::string& words) {
  int64_t count = 0;
  for (const auto& [reason, times] : ReadCounters().fallbacks) {
    if (reason.find(words) != std::string::npos) count += times;
  }
  return count;
}

inline std::unique_ptr<HostStream> NewCaller() { return std::make_unique<HostStream>(); }

// Runs a stage as TensorFlow would: its first image appears on the caller's stream just before, and
// vanishes just after. `queue` is the queue of `caller`.
inline Status RunBetween(Backend* backend, const PreparedStage& stage, Problem* problem,
                         const StageBuffers& buffers, Stream caller, HostStream* queue) {
  problem->HideImage();
  queue->Enqueue([problem] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    problem->ShowImage();
  });
  const Status status = RunStage(backend, stage, buffers, caller);
  queue->Enqueue([problem] { problem->HideImage(); });
  queue->Synchronize();
  problem->ShowImage();
  return status;
}

// Binds new workspaces.
inline Status RunBetween(HostBackend* backend, const PreparedStage& stage, Problem* problem,
                         HostStream* caller = NewCaller().get()) {
  return RunBetween(backend, stage, problem, problem->Bind(stage.lane_workspace_bytes), caller,
                    caller);
}

// Calls work(0) … work(count - 1) concurrently, each on its own thread.
template <typename Work>
void InThreads(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&work, i] { work(i); });
  for (std::thread& thread : threads) thread.join();
}

// Records its calls. Each `on_…` may refuse a call or change its arguments.
class SpyBackend : public HostBackend {
 public:
  // `hook`, if any, runs on the lane's thread before each convolution.
  using Hook = std::function<Status(const ConvolutionBuffers&)>;
  explicit SpyBackend(Hook hook = nullptr) : hook_(std::move(hook)) {}

  std::function<Status(const Convolution&, const PrepareOptions&, std::string* algorithm)>
      on_prepare;
  std::function<Status(const PreparedConvolution&, const ConvolutionBuffers&, Stream)> on_launch;
  std::function<Status(Stream)> on_wait;
  std::function<Status()> on_copy, on_synchronize;
  std::function<Status()> on_acquire;

  bool computes = true;  // if false, launches write nothing

  // A letter for each record, wait, launch, copy, mark and fill; a capital for those on `caller`.
  std::string calls;
  Stream caller = nullptr;
  std::vector<std::string> launched;  // the algorithms
  std::vector<const void*> images;    // of all launches
  std::atomic<int> leased{0};         // groups not yet released

  size_t CountCalls(char letter) const {
    size_t count = 0;
    for (const char call : calls) count += std::tolower(call) == letter;
    return count;
  }

  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 const PrepareOptions& options,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    std::string asked = algorithm;
    if (on_prepare) TF_INTEROP_RETURN_IF_ERROR(on_prepare(convolution, options, &asked));
    return HostBackend::Prepare(convolution, asked, options, prepared);
  }
  Status Acquire(int priority, std::unique_ptr<StreamGroup>* group) override {
    if (on_acquire) TF_INTEROP_RETURN_IF_ERROR(on_acquire());
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Acquire(priority, group));
    ++leased;
    return Status::Ok();
  }
  void Release(std::unique_ptr<StreamGroup> group) override {
    --leased;
    HostBackend::Release(std::move(group));
  }
  Status Mark(Stream stream, const std::shared_ptr<const TimeMark>& since,
              std::shared_ptr<const TimeMark>* mark) override {
    Note('m', stream);
    return HostBackend::Mark(stream, since, mark);
  }
  Status FillZero(void* data, size_t bytes, Stream stream) override {
    Note('f', stream);
    return HostBackend::FillZero(data, bytes, stream);
  }
  Status Record(Event event, Stream stream) override {
    Note('r', stream);
    return HostBackend::Record(event, stream);
  }
  Status Wait(Stream stream, Event event) override {
    Note('w', stream);
    if (on_wait) TF_INTEROP_RETURN_IF_ERROR(on_wait(stream));
    return HostBackend::Wait(stream, event);
  }
  Status Synchronize(Stream stream) override {
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Synchronize(stream));
    return on_synchronize ? on_synchronize() : Status::Ok();
  }
  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, Stream stream) override {
    Note('l', stream);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      launched.push_back(prepared.algorithm());
      images.push_back(buffers.inputs[0]);
    }
    if (hook_) TF_INTEROP_RETURN_IF_ERROR(EnqueueOn(stream, [=] { return hook_(buffers); }));
    if (on_launch) TF_INTEROP_RETURN_IF_ERROR(on_launch(prepared, buffers, stream));
    return computes ? HostBackend::Launch(prepared, buffers, workspace, stream) : Status::Ok();
  }
  Status CopyRows(const void* source, size_t source_pitch, void* destination,
                  size_t destination_pitch, size_t row_bytes, size_t rows, Stream stream) override {
    if (on_copy) TF_INTEROP_RETURN_IF_ERROR(on_copy());
    Note('c', stream);
    return HostBackend::CopyRows(source, source_pitch, destination, destination_pitch, row_bytes,
                                 rows, stream);
  }

 private:
  void Note(char letter, Stream stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls += stream == caller ? static_cast<char>(std::toupper(letter)) : letter;
  }

  const Hook hook_;
  std::mutex mutex_;  // two callers may share a backend
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_STAGE_FIXTURE_H_
