// Stages on cuDNN where an engine, memory or cuDNN itself fails.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/ladder.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/is_error.h"

namespace tf_interop {
namespace {

class CudnnFaultsTest : public CudnnBackendTest {
 protected:
  static Stage Lanes(const std::string& first, const std::string& second) {
    return StageOf(
        {{"left", MakeConvolution(), first, nullptr}, {"right", MakeFused(), second, nullptr}},
        {0, 1});
  }

  // Prepares and runs a stage, and compares its results where it succeeds.
  Status Run(const Stage& stage, size_t limit = kAmpleWorkspace) {
    PreparedStage prepared;
    TF_INTEROP_RETURN_IF_ERROR(PrepareStage(backend_, stage, WithLimit(limit), &prepared));
    fallbacks_ = prepared.fallbacks;
    std::vector<Problem> problems;
    std::vector<Buffer> results;
    StageBuffers buffers;
    for (const Step& step : stage.steps) problems.emplace_back(step.convolution);
    for (Problem& problem : problems) results.push_back(problem.MakeResult());
    for (size_t i = 0; i < results.size(); ++i) {
      buffers.steps.push_back(problems[i].Buffers(&results[i]));
    }
    (void)calls_.get_workspaces(prepared.lane_workspace_bytes, false, &buffers.lane_workspaces);
    const Status status =
        RunOrDescend(backend_, stage, options_, prepared, buffers, caller_, calls_);
    FakeCudaSynchronize(caller_);
    for (size_t i = 0; status.ok() && i < results.size(); ++i) {
      problems[i].ExpectCorrect(&results[i], kTolerance);
    }
    return status;
  }

  std::vector<std::unique_ptr<Buffer>> workspaces_;
  LadderCalls calls_ = {
      [this](const std::vector<size_t>& lane_bytes, bool, std::vector<void*>* places) {
        places->clear();
        for (const size_t bytes : lane_bytes) {
          workspaces_.push_back(std::make_unique<Buffer>(bytes));
          places->push_back(workspaces_.back()->data());
        }
        return true;
      },
      nullptr};
  std::vector<std::string> fallbacks_;
};

TEST_F(CudnnFaultsTest, AnEngineThatFailsInOneLaneIsReplaced) {
  // cuDNN's own choice, and what needs least.
  for (const int engine : {3, 0}) {
    FakeCudnn().engines_failing_execution = {engine};
    const std::string failing = "eng" + std::to_string(engine);
    for (const Stage& stage : {Lanes(failing, "eng1"), Lanes("eng1", failing)}) {
      const Status status = Run(stage);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  }
}

TEST_F(CudnnFaultsTest, ASecondAttemptReadsNoFilterThatWasTransformedForTheFirst) {
  // In NCHW the filter is transformed to another layout than in NHWC.
  const Stage stage = StageOfLanes(1, MakeConvolution(), "nchw+eng1");
  const PreparedStage planned = Prepared(backend_, stage, options_);
  const PreparedConvolution& prepared = *planned.steps[0].convolution;
  Problem problem(MakeConvolution());
  Buffer result = problem.MakeResult();
  Buffer workspace(prepared.workspace_bytes()), filter(prepared.transformed_filter_bytes());
  StageBuffers buffers = {{problem.Buffers(&result)}, {workspace.data()}, {}, nullptr};
  ASSERT_TRUE(TransformFilter(prepared, buffers.steps[0].inputs[1], filter.data()).ok());
  buffers.steps[0].transformed_filter = filter.data();
  FakeCudnn().engines_failing_execution = {1};
  const Status status = RunOrDescend(backend_, stage, options_, planned, buffers, caller_, calls_);
  ASSERT_TRUE(status.ok()) << status.message();
  FakeCudaSynchronize(caller_);
  problem.ExpectCorrect(&result, kTolerance);
}

TEST_F(CudnnFaultsTest, AnErrorThatStaysNamesNodeAlgorithmAndCudnnsMessage) {
  FakeCudnn().fail_execution = true;
  EXPECT_TRUE(IsError(Run(Lanes("eng1", "eng2")), StatusCode::kInternal,
                      {"'left' with algorithm eng1", "CUDNN_STATUS_EXECUTION_FAILED",
                       "execution switched off", "run anew"}));
  // What comes after it works again.
  FakeCudnn().fail_execution = false;
  EXPECT_TRUE(Run(Lanes("eng1", "eng2")).ok());
}

TEST_F(CudnnFaultsTest, AnEngineThatCannotBeFinalizedIsReplaced) {
  FakeCudnn().unsupported_engines = {3};
  const Status status = Run(Lanes("eng3", "eng1"));
  EXPECT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(fallbacks_.size(), 1u);
  EXPECT_NE(fallbacks_[0].find("'left' with algorithm eng3"), std::string::npos) << fallbacks_[0];
}

TEST_F(CudnnFaultsTest, AnEngineThatMayGiveOtherBitsIsReplacedWhereThatMatters) {
  FakeCudnn().nondeterministic_engines = {3};
  options_.deterministic = true;
  const Status status = Run(Lanes("eng3", "eng1"));
  EXPECT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(fallbacks_.size(), 1u);
  EXPECT_NE(fallbacks_[0].find("enable_op_determinism"), std::string::npos) << fallbacks_[0];
}

// TensorFlow's own convolutions do not count transposed filters against the limit.
TEST_F(CudnnFaultsTest, ALimitBelowWhatTransposingTakesIsNoError) {
  const Status status = Run(Lanes("", "eng1"), /*limit=*/100);
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
