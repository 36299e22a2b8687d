// Stages of which a step cannot be enqueued.
#include "cc_kernels/core/launch_recovery.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/host/host_backend.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

constexpr int64_t kPixels = 64;

// Copies its image.
Convolution CopyConvolution() {
  Convolution c;
  c.batch = 1;
  c.image_height = c.output_height = 1;
  c.image_width = c.output_width = kPixels;
  c.image_channels = c.output_channels = 1;
  c.filter_height = c.filter_width = 1;
  return c;
}

// Fails in the calls that it is told to.
class Failing : public HostBackend {
 public:
  using Decide = std::function<bool(const std::string& algorithm, int call)>;
  explicit Failing(Decide launch, bool joins = true)
      : HostBackend(SerialFor), launch_(std::move(launch)), joins_(joins) {}

  void set_caller(Stream caller) { caller_ = caller; }
  int waits_of_caller() const { return waits_of_caller_; }

  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace, StreamGroup* group, Stream stream) override {
    if (launch_(prepared.algorithm(), calls_++)) {
      // As a launch that got halfway: something is in the result.
      HostBackend::Launch(prepared, buffers, workspace, group, stream).ok();
      static_cast<HostStream*>(stream)->Enqueue([buffers] {
        static_cast<float*>(buffers.result)[3] = -7.0f;
        return Status::Ok();
      });
      return Internal("EXECUTION_FAILED");
    }
    return HostBackend::Launch(prepared, buffers, workspace, group, stream);
  }
  Status Wait(Stream stream, Event* event) override {
    if (stream == caller_) {
      ++waits_of_caller_;
      // It joins all the same, so that the test's memory outlives the lanes.
      if (!joins_) return HostBackend::Wait(stream, event).ok() ? Internal("no join") : Status();
    }
    return HostBackend::Wait(stream, event);
  }

 private:
  const Decide launch_;
  const bool joins_;
  Stream caller_ = nullptr;
  int calls_ = 0;
  int waits_of_caller_ = 0;
};

struct Outcome {
  Status status;
  int wrong_results = 0;
  int64_t recoveries = 0;
  int sequences = 0;  // prepared
};

int64_t CountRecoveries() {
  int64_t count = 0;
  for (const auto& [reason, times] : ReadCounters().fallbacks) {
    if (reason.find("ran anew in sequence") != std::string::npos) count += times;
  }
  return count;
}

Outcome RunThreeLanes(Failing* backend, const Status& of_sequence = Status::Ok()) {
  std::vector<float> image(kPixels, 5.0f), filter(1, 1.0f);
  std::vector<std::vector<float>> results(3, std::vector<float>(kPixels, -1.0f));
  std::vector<StageStep> steps;
  std::vector<ConvolutionBuffers> buffers;
  for (int lane = 0; lane < 3; ++lane) {
    steps.push_back(
        {std::string(1, static_cast<char>('a' + lane)), CopyConvolution(), "IM2COL_GEMM", lane});
    buffers.push_back({{image.data(), filter.data(), nullptr}, results[lane].data()});
  }
  PreparedStage stage;
  EXPECT_TRUE(PrepareStage(backend, steps, ~size_t{0}, &stage).ok());
  std::vector<std::vector<char>> workspaces;
  std::vector<void*> places;
  for (const size_t bytes : stage.lane_workspace_bytes) {
    places.push_back(workspaces.emplace_back(bytes).data());
  }
  std::unique_ptr<HostStream> caller;
  EXPECT_TRUE(HostStream::Create(&caller).ok());
  backend->set_caller(caller.get());
  Outcome outcome;
  const int64_t before = CountRecoveries();
  std::vector<std::vector<char>> of_sequences;
  outcome.status = RunStageOrRecover(
      backend, stage, buffers, places, {}, caller.get(),
      [&](Recovery recovery, PreparedStage* sequence, void** place) -> Status {
        ++outcome.sequences;
        TF_INTEROP_RETURN_IF_ERROR(of_sequence);
        TF_INTEROP_RETURN_IF_ERROR(PrepareRecovery(backend, steps, recovery, ~size_t{0}, sequence));
        *place = of_sequences.emplace_back(sequence->lane_workspace_bytes[0]).data();
        return Status::Ok();
      });
  caller->Synchronize();
  EXPECT_TRUE(caller->TakeError().ok());
  for (const auto& result : results) {
    if (result != std::vector<float>(kPixels, 5.0f)) ++outcome.wrong_results;
  }
  outcome.recoveries = CountRecoveries() - before;
  return outcome;
}

TEST(LaunchRecoveryTest, AStageThatFailsInAnyStepRunsAnewAndGivesTheRightNumbers) {
  for (int failing = 0; failing < 3; ++failing) {
    Failing backend([failing](const std::string&, int call) { return call == failing; });
    const Outcome outcome = RunThreeLanes(&backend);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
    EXPECT_EQ(outcome.wrong_results, 0);
    EXPECT_EQ(outcome.recoveries, 1);
    EXPECT_EQ(backend.waits_of_caller(), 3) << "all lanes are joined";
  }
}

TEST(LaunchRecoveryTest, ASequenceThatFailsHalfwayRunsAnewOnceMore) {
  Failing backend([](const std::string&, int call) { return call == 1 || call == 3; });
  const Outcome outcome = RunThreeLanes(&backend);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.message();
  EXPECT_EQ(outcome.wrong_results, 0);
  EXPECT_EQ(outcome.recoveries, 1);
  EXPECT_EQ(outcome.sequences, 2);
}

TEST(LaunchRecoveryTest, AMergedLaneThatFailsRunsAnewUnmergedWithoutItsJoinedFilter) {
  Failing backend([](const std::string&, int call) { return call == 0; });
  std::vector<float> image(kPixels, 5.0f), joined(2, 1e6f);
  const std::vector<std::vector<float>> filters = {{2.0f}, {3.0f}};
  std::vector<std::vector<float>> results(2, std::vector<float>(kPixels, -1.0f));
  std::vector<StageStep> steps;
  std::vector<ConvolutionBuffers> buffers;
  for (int i = 0; i < 2; ++i) {
    steps.push_back({std::to_string(i), CopyConvolution(), "IM2COL_GEMM", 0});
    buffers.push_back({{image.data(), filters[i].data(), nullptr}, results[i].data()});
  }
  LaneOptions merged;
  merged.merged = true;
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(&backend, steps, {merged}, ~size_t{0}, &stage).ok());
  ASSERT_EQ(stage.merged.size(), 1u);
  std::vector<char> workspace(stage.lane_workspace_bytes[0]), of_sequence;
  std::unique_ptr<HostStream> caller;
  ASSERT_TRUE(HostStream::Create(&caller).ok());
  const Status status =
      RunStageOrRecover(&backend, stage, buffers, {workspace.data()}, {joined.data()}, caller.get(),
                        [&](Recovery recovery, PreparedStage* sequence, void** place) -> Status {
                          TF_INTEROP_RETURN_IF_ERROR(
                              PrepareRecovery(&backend, steps, recovery, ~size_t{0}, sequence));
                          EXPECT_TRUE(sequence->merged.empty());
                          of_sequence.resize(sequence->lane_workspace_bytes[0]);
                          *place = of_sequence.data();
                          return Status::Ok();
                        });
  caller->Synchronize();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(results[0], std::vector<float>(kPixels, 10.0f));
  EXPECT_EQ(results[1], std::vector<float>(kPixels, 15.0f));
}

TEST(LaunchRecoveryTest, AStageThatSucceedsIsNotPreparedAnew) {
  Failing backend([](const std::string&, int) { return false; });
  const Outcome outcome = RunThreeLanes(&backend);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.sequences, 0);
  EXPECT_EQ(outcome.recoveries, 0);
}

TEST(LaunchRecoveryTest, AnErrorThatStaysNamesStepAlgorithmAndReasonOfBothAttempts) {
  Failing backend([](const std::string&, int call) { return call >= 1; });
  const Outcome outcome = RunThreeLanes(&backend);
  EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
  EXPECT_EQ(outcome.status.message(),
            "Convolution 'b' with algorithm IM2COL_GEMM: EXECUTION_FAILED The stage was run anew "
            "in sequence: Convolution 'a' with algorithm IM2COL_GEMM: EXECUTION_FAILED");
  EXPECT_EQ(outcome.recoveries, 0);
}

TEST(LaunchRecoveryTest, NothingRunsAnewBesideLanesThatAreNotJoined) {
  Failing backend([](const std::string&, int call) { return call == 2; }, /*joins=*/false);
  const Outcome outcome = RunThreeLanes(&backend);
  EXPECT_EQ(outcome.status.message(),
            "Convolution 'c' with algorithm IM2COL_GEMM: EXECUTION_FAILED");
  EXPECT_EQ(outcome.sequences, 0);
}

TEST(LaunchRecoveryTest, TheFirstErrorIsGivenWhereASequenceCannotBePrepared) {
  Failing backend([](const std::string&, int call) { return call == 0; });
  const Outcome outcome = RunThreeLanes(&backend, ResourceExhausted("no memory"));
  EXPECT_EQ(outcome.status.code(), StatusCode::kInternal);
  EXPECT_NE(outcome.status.message().find("'a' with algorithm IM2COL_GEMM: EXECUTION_FAILED"),
            std::string::npos);
  EXPECT_NE(outcome.status.message().find("no memory"), std::string::npos);
}

}  // namespace
}  // namespace tf_interop
