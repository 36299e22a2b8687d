// Streams of the host backend. tests/op/op_matrix_test.py tests its results.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <vector>

#include "cc_kernels/core/host/backend.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {
namespace {

TEST(HostBackendTest, AnErrorOfAStreamIsKeptUntilItIsTaken) {
  const auto stream = NewCaller();
  stream->Enqueue([] { return Internal("kept"); });
  stream->Enqueue([] { throw std::bad_alloc(); });
  stream->Synchronize();
  EXPECT_EQ(stream->TakeError().message(), "kept");
  EXPECT_TRUE(IsOk(stream->TakeError()));
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
