// What a stage does with less and less memory for its workspaces.
#include "cc_kernels/core/memory_ladder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/host/host_backend.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

constexpr size_t kNoLimit = ~size_t{0};

std::vector<StageStep> Steps(int count) {
  std::vector<StageStep> steps;
  for (int i = 0; i < count; ++i) {
    steps.push_back({std::to_string(i), MakeConvolution(), "IM2COL_GEMM", i});
  }
  return steps;
}

size_t Sum(const std::vector<size_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), size_t{0});
}

// A stage with a lane for each of `count` convolutions, where `available` bytes are left.
struct Outcome {
  Status status;
  PreparedStage stage;
  std::vector<size_t> asked;  // the sum of each attempt, in order
  std::string counted;        // the reason of the one fallback that was counted
};

Outcome RunLadder(int count, size_t available) {
  HostBackend backend(SerialFor);
  const std::vector<StageStep> steps = Steps(count);
  Outcome outcome;
  EXPECT_TRUE(PrepareStage(&backend, steps, kNoLimit, &outcome.stage).ok());
  const auto before = ReadCounters().fallbacks;
  outcome.status = PrepareWithLessMemory(
      &backend, steps, kNoLimit,
      [&](const std::vector<size_t>& bytes, bool) {
        outcome.asked.push_back(Sum(bytes));
        return Sum(bytes) <= available;
      },
      &outcome.stage);
  for (const auto& [reason, times] : ReadCounters().fallbacks) {
    const auto known = before.find(reason);
    if (known != before.end() && known->second == times) continue;
    EXPECT_EQ(outcome.counted, "") << "one rung is taken";
    outcome.counted = reason;
  }
  return outcome;
}

// What one convolution needs in its workspace.
size_t OfOne() {
  HostBackend backend(SerialFor);
  PreparedStage stage;
  EXPECT_TRUE(PrepareStage(&backend, Steps(1), kNoLimit, &stage).ok());
  EXPECT_GT(stage.lane_workspace_bytes[0], 0u);
  return stage.lane_workspace_bytes[0];
}

std::vector<std::string> AlgorithmsOf(const PreparedStage& stage) {
  std::vector<std::string> algorithms;
  for (const PreparedStep& step : stage.steps) {
    algorithms.push_back(step.convolution->algorithm());
  }
  return algorithms;
}

TEST(MemoryLadderTest, HalfTheLanesRunBehindTheOthers) {
  const Outcome outcome = RunLadder(6, 3 * OfOne());
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
  ASSERT_EQ(outcome.stage.lane_workspace_bytes.size(), 3u);
  std::vector<int> lanes;
  for (const PreparedStep& step : outcome.stage.steps) lanes.push_back(step.lane);
  EXPECT_EQ(lanes, (std::vector<int>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(AlgorithmsOf(outcome.stage), std::vector<std::string>(6, "IM2COL_GEMM"));
  EXPECT_NE(outcome.counted.find("fewer lanes"), std::string::npos) << outcome.counted;
}

TEST(MemoryLadderTest, LanesAreHalvedDownToTwo) {
  const Outcome outcome = RunLadder(16, 2 * OfOne());
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.asked, (std::vector<size_t>{8 * OfOne(), 4 * OfOne(), 2 * OfOne()}));
  EXPECT_EQ(outcome.stage.lane_workspace_bytes.size(), 2u);
}

TEST(MemoryLadderTest, TwoLanesTakeAlgorithmsThatNeedLess) {
  const Outcome outcome = RunLadder(3, 2 * OfOne() - 1);
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.stage.lane_workspace_bytes.size(), 2u);
  EXPECT_EQ(AlgorithmsOf(outcome.stage), std::vector<std::string>(3, "DIRECT"));
  EXPECT_NE(outcome.counted.find("algorithms that need less"), std::string::npos);
}

// Needs workspace even where it is asked for the least, as cuDNN does for transposed filters: that
// of the plan's algorithm is `kLeast` more.
class Needing : public HostBackend {
 public:
  static constexpr size_t kLeast = 1000;
  static constexpr size_t kPinned = 1500;
  Needing() : HostBackend(SerialFor) {}
  Status Prepare(const Convolution& convolution, const std::string&, size_t limit,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    std::shared_ptr<const PreparedConvolution> host;
    TF_INTEROP_RETURN_IF_ERROR(HostBackend::Prepare(convolution, "DIRECT", kNoLimit, &host));
    *prepared = std::make_shared<Padded>(host, limit == 0 ? kLeast : kPinned);
    return Status::Ok();
  }

 private:
  struct Padded : PreparedConvolution {
    Padded(std::shared_ptr<const PreparedConvolution> host, size_t bytes)
        : host(std::move(host)), bytes(bytes) {}
    size_t workspace_bytes() const override { return bytes; }
    const std::string& algorithm() const override { return host->algorithm(); }
    const std::shared_ptr<const PreparedConvolution> host;
    const size_t bytes;
  };
};

TEST(MemoryLadderTest, EveryRungNeedsLessThanTheOneBefore) {
  Needing backend;
  const std::vector<StageStep> steps = Steps(5);
  std::vector<size_t> asked;
  std::vector<bool> last;
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend, steps, kNoLimit, &stage).ok());
  const Status status = PrepareWithLessMemory(
      &backend, steps, kNoLimit,
      [&](const std::vector<size_t>& bytes, bool is_last) {
        asked.push_back(Sum(bytes));
        last.push_back(is_last);
        return false;
      },
      &stage);
  EXPECT_EQ(asked, (std::vector<size_t>{4500, 3000, 2000, 1500, 1000}));
  EXPECT_EQ(last, (std::vector<bool>{false, false, false, false, true}));
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("1000 bytes"), std::string::npos) << status.message();
}

// A lane's joined filters and outputs are the first to go: its algorithms stay.
TEST(MemoryLadderTest, MergedLanesRunUnmergedFirst) {
  for (const int lane_count : {1, 2}) {
    HostBackend backend(SerialFor);
    std::vector<StageStep> steps = Steps(lane_count + 1);
    std::vector<LaneOptions> lanes(lane_count);
    for (int i = 0; i <= lane_count; ++i) steps[i].lane = i == 0 ? 0 : i - 1;
    lanes[0].merged = true;
    PreparedStage stage;
    ASSERT_TRUE(PrepareStage(&backend, steps, lanes, kNoLimit, &stage).ok());
    ASSERT_EQ(stage.merged.size(), 1u);
    const size_t planned = Sum(stage.lane_workspace_bytes);
    const size_t unmerged = lane_count * OfOne();
    ASSERT_LT(unmerged, planned);
    ASSERT_TRUE(PrepareWithLessMemory(
                    &backend, steps, kNoLimit,
                    [&](const std::vector<size_t>& bytes, bool) { return Sum(bytes) <= unmerged; },
                    &stage)
                    .ok());
    EXPECT_TRUE(stage.merged.empty());
    EXPECT_EQ(stage.lane_workspace_bytes.size(), static_cast<size_t>(lane_count));
    EXPECT_EQ(AlgorithmsOf(stage), std::vector<std::string>(lane_count + 1, "IM2COL_GEMM"));
    EXPECT_EQ(ReadCounters().fallbacks.count("no memory for the workspaces of a stage: its merged "
                                             "lanes ran unmerged"),
              1u);
  }
}

TEST(MemoryLadderTest, AStageOfOneLaneTakesWhatNeedsLeast) {
  const Outcome outcome = RunLadder(1, 0);
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.asked, std::vector<size_t>{0});
  EXPECT_NE(outcome.counted.find("in sequence, with algorithms that need least"),
            std::string::npos);
}

TEST(MemoryLadderTest, EveryRungGivesTheRightNumbers) {
  for (const size_t available : {3 * OfOne(), 2 * OfOne(), OfOne(), size_t{0}}) {
    HostBackend backend(SerialFor);
    const Convolution c = MakeConvolution();
    std::vector<StageStep> steps = Steps(5);
    PreparedStage stage;
    ASSERT_TRUE(PrepareStage(&backend, steps, kNoLimit, &stage).ok());
    std::vector<std::vector<char>> workspaces;
    std::vector<void*> places;
    const auto get = [&](const std::vector<size_t>& bytes, bool) {
      if (Sum(bytes) > available) return false;
      workspaces.clear(), places.clear();
      for (const size_t each : bytes) places.push_back(workspaces.emplace_back(each).data());
      return true;
    };
    ASSERT_TRUE(PrepareWithLessMemory(&backend, steps, kNoLimit, get, &stage).ok());
    std::vector<float> image(c.image_elements(), 1.0f), filter(c.filter_elements(), 0.5f);
    std::vector<std::vector<float>> results(5, std::vector<float>(c.output_elements(), -1.0f));
    std::vector<ConvolutionBuffers> buffers;
    for (auto& result : results) {
      buffers.push_back({{image.data(), filter.data(), nullptr}, result.data()});
    }
    std::unique_ptr<HostStream> caller;
    ASSERT_TRUE(HostStream::Create(&caller).ok());
    ASSERT_TRUE(RunStage(&backend, stage, buffers, places, caller.get()).ok());
    caller->Synchronize();
    ReferenceTensors reference = MakeReferenceTensors(c);
    std::fill(reference.image.begin(), reference.image.end(), 1.0);
    std::fill(reference.filter.begin(), reference.filter.end(), 0.5);
    RunReference(c, &reference);
    for (const auto& result : results) {
      EXPECT_TRUE(std::equal(result.begin(), result.end(), reference.output.begin(),
                             [](float a, double b) { return a == static_cast<float>(b); }));
    }
  }
}

}  // namespace
}  // namespace tf_interop
