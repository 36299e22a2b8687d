// The host backend's two algorithms, and its streams.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/host/backend.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

// Runs `c` alone and compares every element.
void ExpectMatches(HostBackend* backend, const Convolution& c, const std::string& algorithm) {
  Problem problem(c);
  const PreparedStage stage = Prepared(backend, StageOfLanes(1, c, algorithm));
  EXPECT_EQ(AlgorithmsOf(stage)[0], algorithm);
  EXPECT_EQ(stage.lane_workspace_bytes[0] > 0, algorithm == "BUFFERED");
  EXPECT_TRUE(IsOk(RunBetween(backend, stage, &problem)));
  problem.ExpectCorrect();
}

TEST(HostBackendTest, ComputesEveryKindLayoutTypeAndEpilogue) {
  HostBackend backend;
  std::vector<Convolution> cases = WithEveryKindAndLayout(
      {MakeConvolution(), MakeVolume()},
      {DataType::kFloat, DataType::kHalf, DataType::kBFloat16, DataType::kDouble});
  for (const Convolution& c : WithEveryEpilogue({MakeConvolution()})) cases.push_back(c);
  for (const Convolution& c : cases) {
    for (const char* algorithm : {"BUFFERED", "DIRECT"}) ExpectMatches(&backend, c, algorithm);
  }
}

TEST(HostBackendTest, ReadsAFilterThatWasTransformedOnce) {
  HostBackend backend;
  for (const Convolution& c : WithEveryKindAndLayout({MakeConvolution()})) {
    const PreparedStage stage = Prepared(&backend, StageOfLanes(1, c));
    const PreparedConvolution& prepared = *stage.steps[0].convolution;
    const bool transforms =
        c.dtype == DataType::kHalf && c.kind != ConvolutionKind::kBackwardFilter;
    EXPECT_EQ(prepared.transformed_filter_bytes() > 0, transforms) << ToString(c);
    if (!transforms) continue;
    Problem problem(c);
    StageBuffers buffers = problem.Bind(stage.lane_workspace_bytes);
    GuardedBuffer& transformed = problem.NewBuffer(prepared.transformed_filter_bytes());
    const void*& filter = buffers.steps[0].inputs[c.kind == ConvolutionKind::kForward ? 1 : 0];
    const std::unique_ptr<HostStream> caller = NewCaller();
    EXPECT_TRUE(IsOk(backend.TransformFilter(prepared, filter, transformed.data(), caller.get())));
    filter = nullptr;  // a launch that read it would crash
    buffers.steps[0].transformed_filter = transformed.data();
    EXPECT_TRUE(IsOk(RunStage(&backend, stage, buffers, caller.get())));
    caller->Synchronize();
    problem.ExpectCorrect();
  }
}

TEST(HostBackendTest, StreamsBeyondTheLimitOfThreadsRunWhereTheyAreUsed) {
  HostBackend backend;
  std::vector<std::unique_ptr<StreamGroup>> groups(100);
  for (auto& group : groups) ASSERT_TRUE(IsOk(backend.Acquire(StreamGroupOptions(), &group)));
  auto* const last = static_cast<HostStream*>(groups.back()->stream());
  EXPECT_FALSE(last->has_thread());
  bool has_run = false;
  last->Enqueue([&has_run] {
    has_run = true;
    return Internal("kept until it is taken");
  });
  EXPECT_TRUE(has_run);
  EXPECT_FALSE(last->TakeError().ok());
  Problem problem(std::vector<Convolution>(3, MakeConvolution()), /*share_image=*/true);
  const PreparedStage stage = Prepared(&backend, StageOfLanes(3, MakeConvolution()));
  EXPECT_TRUE(IsOk(RunBetween(&backend, stage, &problem, last))) << "in order";
  problem.ExpectCorrect();
  for (auto& group : groups) backend.Release(std::move(group));
}

// ThreadSanitizer does not support threads in the child of a process that has threads.
#if !defined(__SANITIZE_THREAD__)
TEST(HostBackendTest, AForkedChildMakesItsOwnStreams) {
  HostBackend backend;
  const auto count_wrong = [&backend] {
    Problem problem(std::vector<Convolution>(3, MakeConvolution()));
    const PreparedStage stage = Prepared(&backend, StageOfLanes(3, MakeConvolution()));
    return RunBetween(&backend, stage, &problem).ok() ? problem.CountWrong() : -1;
  };
  ASSERT_EQ(count_wrong(), 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends the child with a signal
    _exit(count_wrong() == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif

}  // namespace
}  // namespace tf_interop
