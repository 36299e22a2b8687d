// The streams of the host backend; tests/op/op_matrix_test.py tests what it computes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "cc_kernels/core/host/backend.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

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
