// Stages on cuDNN where an engine, memory or cuDNN itself fails.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/launch_recovery.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/cudnn_backend_fixture.h"

namespace tf_interop {
namespace {

class CudnnFaultsTest : public CudnnBackendTest {
 protected:
  static std::vector<StageStep> Steps(const std::string& first, const std::string& second) {
    return {{"left", MakeConvolution(), first, 0}, {"right", MakeFused(), second, 1}};
  }

  // Prepares and runs a stage of two lanes, and compares its results where it succeeds.
  Status Run(const std::vector<StageStep>& steps, size_t limit = kAmpleWorkspace) {
    PreparedStage stage;
    TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend_, steps, limit, &stage));
    fallbacks_ = stage.fallbacks;
    std::vector<Problem> problems;
    std::vector<Buffer> results, workspaces;
    std::vector<ConvolutionBuffers> buffers;
    std::vector<void*> places;
    for (const StageStep& step : steps) problems.emplace_back(step.convolution);
    for (Problem& problem : problems) results.push_back(problem.MakeResult());
    for (size_t i = 0; i < steps.size(); ++i) buffers.push_back(problems[i].Buffers(&results[i]));
    for (const size_t bytes : stage.lane_workspace_bytes) workspaces.emplace_back(bytes);
    for (Buffer& workspace : workspaces) places.push_back(workspace.data());
    std::vector<Buffer> of_sequences;
    const Status status = RunStageOrRecover(
        backend_, stage, buffers, places, {}, caller_,
        [&](Recovery recovery, PreparedStage* sequence, void** workspace) -> Status {
          TF_INTEROP_RETURN_IF_ERROR(
              PrepareRecovery(backend_, steps, recovery, kAmpleWorkspace, sequence));
          *workspace = of_sequences.emplace_back(sequence->lane_workspace_bytes[0]).data();
          return Status::Ok();
        });
    FakeCudaSynchronize(caller_);
    for (size_t i = 0; status.ok() && i < steps.size(); ++i) {
      problems[i].ExpectCorrect(&results[i], kTolerance);
    }
    return status;
  }

  std::vector<std::string> fallbacks_;
};

TEST_F(CudnnFaultsTest, AnEngineThatFailsInOneLaneIsReplaced) {
  // cuDNN's own choice, and what needs least.
  for (const int engine : {3, 0}) {
    FakeCudnn().engines_failing_execution = {engine};
    const std::string failing = "eng" + std::to_string(engine);
    for (const auto& steps : {Steps(failing, "eng1"), Steps("eng1", failing)}) {
      const Status status = Run(steps);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST_F(CudnnFaultsTest, ASecondAttemptReadsNoFilterThatWasTransformedForTheFirst) {
  // In NCHW the filter is transformed to another layout than in NHWC.
  const std::vector<StageStep> steps = {{"left", MakeConvolution(), "nchw+eng1", 0}};
  PreparedStage stage;
  ASSERT_TRUE(PrepareStage(backend_, steps, kAmpleWorkspace, &stage).ok());
  const PreparedConvolution& prepared = *stage.steps[0].convolution;
  Problem problem(steps[0].convolution);
  Buffer result = problem.MakeResult();
  Buffer workspace(prepared.workspace_bytes()), filter(prepared.transformed_filter_bytes());
  std::vector<ConvolutionBuffers> buffers = {problem.Buffers(&result)};
  std::unique_ptr<StreamGroup> group;
  ASSERT_TRUE(backend_->Acquire(&group).ok());
  ASSERT_TRUE(
      backend_->TransformFilter(prepared, buffers[0].inputs[1], filter.data(), group.get(), caller_)
          .ok());
  backend_->Release(std::move(group));
  buffers[0].transformed_filter = filter.data();
  FakeCudnn().engines_failing_execution = {1};
  std::vector<Buffer> of_sequences;
  const Status status = RunStageOrRecover(
      backend_, stage, buffers, {workspace.data()}, {}, caller_,
      [&](Recovery recovery, PreparedStage* sequence, void** place) -> Status {
        TF_INTEROP_RETURN_IF_ERROR(
            PrepareRecovery(backend_, steps, recovery, kAmpleWorkspace, sequence));
        EXPECT_EQ(sequence->steps[0].convolution->algorithm().find("nchw"), std::string::npos);
        *place = of_sequences.emplace_back(sequence->lane_workspace_bytes[0]).data();
        return Status::Ok();
      });
  ASSERT_TRUE(status.ok()) << status.message();
  FakeCudaSynchronize(caller_);
  problem.ExpectCorrect(&result, kTolerance);
}

TEST_F(CudnnFaultsTest, AnErrorThatStaysNamesNodeAlgorithmAndCudnnsMessage) {
  FakeCudnn().fail_execution = true;
  const Status status = Run(Steps("eng1", "eng2"));
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  for (const char* part : {"'left' with algorithm eng1", "CUDNN_STATUS_EXECUTION_FAILED",
                           "execution switched off", "run anew in sequence"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  // What comes behind it works again.
  FakeCudnn().fail_execution = false;
  EXPECT_TRUE(Run(Steps("eng1", "eng2")).ok());
}

TEST_F(CudnnFaultsTest, AnEngineThatCannotBeFinalizedIsReplaced) {
  FakeCudnn().unsupported_engines = {3};
  const Status status = Run(Steps("eng3", "eng1"));
  EXPECT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(fallbacks_.size(), 1u);
  EXPECT_NE(fallbacks_[0].find("'left' with algorithm eng3"), std::string::npos) << fallbacks_[0];
}

TEST_F(CudnnFaultsTest, AnEngineThatMayGiveOtherBitsIsReplacedWhereThatMatters) {
  FakeCudnn().nondeterministic_engines = {3};
  backend_->set_deterministic(true);
  const Status status = Run(Steps("eng3", "eng1"));
  EXPECT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(fallbacks_.size(), 1u);
  EXPECT_NE(fallbacks_[0].find("enable_op_determinism"), std::string::npos) << fallbacks_[0];
}

// TensorFlow's own convolutions do not count transposed filters against the limit.
TEST_F(CudnnFaultsTest, ALimitBelowWhatTransposingTakesIsNoError) {
  const Status status = Run(Steps("", "eng1"), /*limit=*/100);
  EXPECT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(fallbacks_.size(), 3u);  // the pin, and both choices within the limit
  EXPECT_NE(fallbacks_[0].find("'left'"), std::string::npos) << fallbacks_[0];
  EXPECT_NE(fallbacks_[0].find("at most 100 bytes of workspace"), std::string::npos)
      << fallbacks_[0];
}

TEST_F(CudnnFaultsTest, PlansOfShapesThatChangeForEverAreForgotten) {
  const auto prepare = [&](int64_t batch) {
    Convolution c = MakeConvolution();
    c.batch = batch;
    return PrepareOk(c);
  };
  constexpr int64_t kMost = CudnnBackend::kMostPrepared;
  for (int64_t batch = 1; batch <= kMost; ++batch) prepare(batch);
  const int live = FakeCudnnCounts().live_descriptors;
  std::weak_ptr<const PreparedConvolution> first = prepare(1);  // the last used of all
  std::weak_ptr<const PreparedConvolution> second = prepare(2);
  for (int64_t batch = kMost + 1; batch <= 2 * kMost - 2; ++batch) prepare(batch);
  EXPECT_FALSE(first.expired());
  prepare(1);
  prepare(2 * kMost - 1);
  EXPECT_FALSE(first.expired());
  EXPECT_TRUE(second.expired());
  EXPECT_LE(FakeCudnnCounts().live_descriptors, live);
  // It can be had again.
  const int plans = FakeCudnnCounts().plans_finalized;
  EXPECT_NE(prepare(2), nullptr);
  EXPECT_GT(FakeCudnnCounts().plans_finalized, plans);
}

}  // namespace
}  // namespace tf_interop
