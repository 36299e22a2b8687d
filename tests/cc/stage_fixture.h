// Stages of small convolutions on the host backend, with the memory that they work on.
#ifndef TF_INTEROP_TESTS_CC_STAGE_FIXTURE_H_
#define TF_INTEROP_TESTS_CC_STAGE_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/host/host_stream.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/all_counters.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {

constexpr PrepareOptions kAnyWorkspace = {~size_t{0}};

// A 1x1 convolution of one channel: with filter 1 it copies its image, so that every element of the
// result says what the lane has read.
inline Convolution CopyConvolution(int64_t pixels) {
  Convolution c;
  c.batch = 1;
  c.image_height = c.output_height = 1;
  c.image_width = c.output_width = pixels;
  c.image_channels = c.output_channels = 1;
  c.filter_height = c.filter_width = 1;
  return c;
}

// Steps with the lane of each.
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

// A stage with a lane for each of `count` convolutions "0", "1", …
inline Stage StageOfLanes(int count, const Convolution& c, const std::string& algorithm = "") {
  Stage stage;
  for (int i = 0; i < count; ++i) {
    stage.steps.push_back({std::to_string(i), c, algorithm, nullptr});
    stage.lanes.push_back({{static_cast<size_t>(i)}});
  }
  return stage;
}

// What the lanes of a test's stage ask for, in short.
struct LaneOptions {
  int priority = 0;
  int sm_count = 0;
  bool merged = false;
};
inline constexpr LaneOptions kMergedLane = {0, 0, true};

// `lanes` is empty where no lane asks for anything.
inline Stage WithOptions(Stage stage, const std::vector<LaneOptions>& lanes) {
  for (size_t i = 0; i < lanes.size(); ++i) {
    stage.lanes[i].priority = lanes[i].priority;
    stage.lanes[i].sm_count = lanes[i].sm_count;
    stage.lanes[i].merged = lanes[i].merged;
  }
  return stage;
}

inline PreparedStage Prepared(Backend* backend, const Stage& stage,
                              const PrepareOptions& options = kAnyWorkspace) {
  PreparedStage prepared;
  const Status status = PrepareStage(backend, stage, options, &prepared);
  EXPECT_TRUE(status.ok()) << status.message();
  return prepared;
}

inline std::unique_ptr<HostStream> NewCaller() {
  std::unique_ptr<HostStream> caller;
  EXPECT_TRUE(HostStream::Create(&caller).ok());
  return caller;
}

inline std::vector<std::string> AlgorithmsOf(const PreparedStage& stage) {
  std::vector<std::string> algorithms;
  for (const PreparedStep& step : stage.steps) algorithms.push_back(step.convolution->algorithm());
  return algorithms;
}

// How often something with these words was counted as a fallback.
inline int64_t CountFallbacks(const std::string& words) {
  int64_t count = 0;
  for (const auto& [reason, times] : ReadCounters().fallbacks) {
    if (reason.find(words) != std::string::npos) count += times;
  }
  return count;
}

// What steps that read one image and have filters of one size work on. Results begin poisoned.
class StageMemory {
 public:
  static constexpr float kPoison = -1.0f;

  StageMemory(size_t step_count, const Convolution& c, float image_value, float filter_value = 1.0f)
      : image(c.image_elements(), image_value),
        filter(c.filter_elements(), filter_value),
        results(step_count, std::vector<float>(c.output_elements(), kPoison)) {}

  // With workspaces of these sizes.
  StageBuffers Bind(const std::vector<size_t>& lane_bytes) {
    StageBuffers buffers;
    for (auto& result : results) {
      buffers.steps.push_back({{image.data(), filter.data(), nullptr}, result.data()});
    }
    AddWorkspaces(lane_bytes, &buffers.lane_workspaces);
    return buffers;
  }

  // Those of before stay.
  void AddWorkspaces(const std::vector<size_t>& lane_bytes, std::vector<void*>* workspaces) {
    workspaces->clear();
    for (const size_t bytes : lane_bytes) {
      workspaces->push_back(
          workspaces_.emplace_back(std::make_unique<std::vector<char>>(bytes))->data());
    }
  }

  int CountWrong(float value) const {
    int wrong = 0;
    for (const auto& result : results) {
      wrong += static_cast<int>(
          std::count_if(result.begin(), result.end(), [&](float x) { return x != value; }));
    }
    return wrong;
  }

  std::vector<float> image, filter;
  std::vector<std::vector<float>> results;

 private:
  std::vector<std::unique_ptr<std::vector<char>>> workspaces_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_STAGE_FIXTURE_H_
