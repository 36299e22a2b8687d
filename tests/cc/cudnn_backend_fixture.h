// A cudnn backend on the stand-ins for libcuda and libcudnn, with nothing prepared.
#ifndef TF_INTEROP_TESTS_CC_CUDNN_BACKEND_FIXTURE_H_
#define TF_INTEROP_TESTS_CC_CUDNN_BACKEND_FIXTURE_H_

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/guarded_buffer.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {

inline constexpr size_t kAmpleWorkspace = size_t{64} << 20;

// Leaky slopes and exponentials are rounded; a split epilogue rounds to half in between.
inline constexpr Tolerance kTolerance = {1e-6, 2e-3};

// The stand-ins are linked into this program for their controls; the library under test opens the
// same files by path.
template <typename Function>
std::string PathOf(Function* function) {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(function), &info) != 0 ? info.dli_fname : "";
}

inline std::string FakeCudaPath() { return PathOf(&FakeCudaMakeContext); }
inline std::string FakeCudnnPath() { return PathOf(&FakeCudnn); }

using Buffer = GuardedBuffer;
using Problem = ConvolutionProblem<Buffer>;

inline Convolution MakeAsymmetric(ConvolutionKind kind = ConvolutionKind::kForward) {
  Convolution c = MakeConvolution(kind);
  c.stride_height = c.stride_width = 2;
  CompleteSame(&c);
  EXPECT_NE(c.pad_top, c.pad_bottom);
  return c;
}

class CudnnBackendTest : public testing::Test {
 protected:
  // Every test has a context, and so a backend with nothing prepared, of its own.
  void SetUp() override {
    FakeCuda() = FakeCudaSwitches();
    FakeCudnn() = FakeCudnnSwitches();
    setenv("TF_INTEROP_LIBCUDA", FakeCudaPath().c_str(), 1);
    setenv("TF_INTEROP_LIBCUDNN", FakeCudnnPath().c_str(), 1);
    context_ = FakeCudaMakeContext();
    caller_ = FakeCudaMakeStream(context_);
    const Status status = CudnnBackend::ForStream(caller_, &backend_);
    ASSERT_TRUE(status.ok()) << status.message();
    FakeCudnnCounts().handle_races = 0;
    FakeCudnnCounts().plan_races = 0;
    FakeCudnnCounts().destroyed_outside_contexts = 0;
  }

  void TearDown() override {
    FakeCudaSynchronize(caller_);
    EXPECT_EQ(FakeCudaCurrentContext(), nullptr) << "a context was left current";
    EXPECT_EQ(FakeCudnnCounts().handle_races, 0);
    EXPECT_EQ(FakeCudnnCounts().plan_races, 0);
    EXPECT_EQ(FakeCudnnCounts().destroyed_outside_contexts, 0);
  }

  std::shared_ptr<const PreparedConvolution> PrepareOk(const Convolution& c,
                                                       const std::string& algorithm = "",
                                                       size_t limit = kAmpleWorkspace) {
    std::shared_ptr<const PreparedConvolution> prepared;
    const Status status = backend_->Prepare(c, algorithm, limit, &prepared);
    EXPECT_TRUE(status.ok()) << ToString(c) << ": " << status.message();
    return prepared;
  }

  Status PrepareError(const Convolution& c, const std::string& algorithm = "",
                      size_t limit = kAmpleWorkspace) {
    std::shared_ptr<const PreparedConvolution> prepared;
    const Status status = backend_->Prepare(c, algorithm, limit, &prepared);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(prepared, nullptr);
    return status;
  }

  // Launches on the caller's stream and compares every element.
  void ExpectMatchesReference(const Convolution& c, const PreparedConvolution& prepared) {
    SCOPED_TRACE(ToString(c) + " " + prepared.algorithm());
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared.workspace_bytes());
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend_->Acquire(&group).ok());
    const Status status = backend_->Launch(prepared, problem.Buffers(&result), workspace.data(),
                                           group.get(), caller_);
    backend_->Release(std::move(group));
    ASSERT_TRUE(status.ok()) << status.message();
    FakeCudaSynchronize(caller_);
    problem.ExpectCorrect(&result, kTolerance);
    EXPECT_TRUE(workspace.IsIntact()) << "written beyond the workspace";
  }

  // Prepares and launches; returns the algorithm that ran.
  std::string RunAndExpectMatch(const Convolution& c) {
    const auto prepared = PrepareOk(c);
    if (!prepared) return "";
    ExpectMatchesReference(c, *prepared);
    return prepared->algorithm();
  }

  CUcontext context_ = nullptr;
  CUstream caller_ = nullptr;
  CudnnBackend* backend_ = nullptr;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CUDNN_BACKEND_FIXTURE_H_
