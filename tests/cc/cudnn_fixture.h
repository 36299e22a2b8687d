// A cudnn backend on the stand-ins for libcuda and libcudnn (fake_cudnn.h: the real one, computing
// on the host) that has prepared nothing yet.
#ifndef TF_INTEROP_TESTS_CC_CUDNN_FIXTURE_H_
#define TF_INTEROP_TESTS_CC_CUDNN_FIXTURE_H_

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/backend.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/problem.h"
#include "tests/cc/stage_fixture.h"

namespace tf_interop {

inline constexpr size_t kAmpleWorkspace = size_t{64} << 20;

// Leaky slopes and exponentials are rounded, and a split epilogue rounds halves in between.
inline constexpr Tolerance kTolerance = {1e-6, 2e-3};

// The path of a stand-in. Stand-ins are linked into this program for their controls, and the
// library under test opens the same files by path.
template <typename Function>
std::string PathOf(Function* function) {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(function), &info) != 0 ? info.dli_fname : "";
}

// Resets the stand-ins, and makes the library open them.
inline void UseFakes() {
  FakeCuda() = FakeCudaSwitches();
  FakeCudnn() = FakeCudnnSwitches();
  setenv("TF_INTEROP_LIBCUDA", PathOf(&FakeCudaMakeContext).c_str(), 1);
  setenv("TF_INTEROP_LIBCUDNN", PathOf(&FakeCudnn).c_str(), 1);
}

// Runs a stage as TensorFlow does, and compares every result.
inline Status RunOnFakes(Backend* backend, const PreparedStage& stage, Problem* problem,
                         const StageBuffers& buffers, CUstream caller) {
  const Status status =
      RunBetween(backend, stage, problem, buffers, caller, FakeCudaQueueOf(caller));
  if (status.ok()) problem->ExpectCorrect(kTolerance);
  return status;
}

inline Status RunOnFakes(Backend* backend, const PreparedStage& stage, Problem* problem,
                         CUstream caller) {
  return RunOnFakes(backend, stage, problem, problem->Bind(stage.lane_workspace_bytes), caller);
}

using Names = std::vector<std::string>;

inline bool Holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline Algorithm Parsed(const std::string& name) {
  Algorithm algorithm;
  EXPECT_TRUE(IsOk(ParseAlgorithm(name, &algorithm)));
  return algorithm;
}

inline int64_t EngineOf(const std::string& name) {
  return std::get<EngineTag>(Parsed(name).tag).index;
}

class CudnnTest : public testing::Test {
 protected:
  void SetUp() override {
    UseFakes();
    if (!FakeCudnnIsThere()) GTEST_SKIP() << "no cuDNN; scripts/test_core.sh installs it";
    UseNewContext();
    FakeCudnnCounts().races = 0;
    FakeCudnnCounts().destroyed_outside_contexts = 0;
  }

  void TearDown() override {
    if (caller_ == nullptr) return;
    FakeCudaSynchronize(caller_);
    EXPECT_EQ(FakeCudaCurrentContext(), nullptr) << "a context was left current";
    EXPECT_EQ(FakeCudnnCounts().races, 0);
    EXPECT_EQ(FakeCudnnCounts().destroyed_outside_contexts, 0);
  }

  // Switches to a backend that has prepared nothing.
  void UseNewContext() {
    context_ = FakeCudaMakeContext();
    caller_ = FakeCudaMakeStream(context_);
    ASSERT_TRUE(IsOk(FindCudnnBackend(caller_, &backend_)));
  }

  PrepareOptions WithLimit(size_t bytes) const {
    PrepareOptions options = options_;
    options.workspace_limit_bytes = bytes;
    return options;
  }

  std::shared_ptr<const PreparedConvolution> PrepareOk(const Convolution& c,
                                                       const std::string& algorithm = "",
                                                       size_t limit = kAmpleWorkspace) {
    std::shared_ptr<const PreparedConvolution> prepared;
    EXPECT_TRUE(IsOk(backend_->Prepare(c, algorithm, WithLimit(limit), &prepared))) << ToString(c);
    return prepared;
  }

  Status PrepareError(const Convolution& c, const std::string& algorithm = "",
                      size_t limit = kAmpleWorkspace) {
    std::shared_ptr<const PreparedConvolution> prepared;
    const Status status = backend_->Prepare(c, algorithm, WithLimit(limit), &prepared);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(prepared, nullptr);
    return status;
  }

  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace) {
    return backend_->Launch(prepared, buffers, workspace, caller_);
  }

  Status TransformFilter(const PreparedConvolution& prepared, const void* filter,
                         void* transformed) {
    return backend_->TransformFilter(prepared, filter, transformed, caller_);
  }

  // Launches on the caller's stream and compares every element.
  void ExpectMatches(const Convolution& c, const PreparedConvolution& prepared,
                     bool transforms = false) {
    SCOPED_TRACE(ToString(c) + " " + prepared.algorithm());
    Problem problem(c);
    ASSERT_TRUE(IsOk(LaunchOn(caller_, backend_, prepared, &problem, transforms)));
    FakeCudaSynchronize(caller_);
    problem.ExpectCorrect(kTolerance);
  }

  // Prepares and launches; returns the algorithm that ran.
  std::string RunAndExpectMatch(const Convolution& c, const std::string& algorithm = "") {
    const auto prepared = PrepareOk(c, algorithm);
    if (!prepared) return "";
    ExpectMatches(c, *prepared);
    return prepared->algorithm();
  }

  Names List(const Convolution& c, AlgorithmScope scope) {
    Names names;
    EXPECT_TRUE(IsOk(backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names)));
    return names;
  }

  Status ListError(const Convolution& c, AlgorithmScope scope) {
    Names names;
    const Status status = backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names);
    EXPECT_TRUE(names.empty());
    return status;
  }

  // The first `most` engines that are listed in `formulation` and can be prepared.
  Names Engines(const Convolution& c, const Formulation& formulation = {}, size_t most = 1) {
    Names found;
    for (const std::string& name : List(c, AlgorithmScope::kAll)) {
      const Algorithm algorithm = Parsed(name);
      if (algorithm.formulation.value_or(Formulation()) == formulation && found.size() < most &&
          std::holds_alternative<EngineTag>(algorithm.tag) && Prepares(c, name)) {
        found.push_back(name);
      }
    }
    EXPECT_EQ(found.size(), most) << ToString(c) << " as " << ToString(formulation);
    found.resize(most);
    return found;
  }

  bool Prepares(const Convolution& c, const std::string& algorithm) {
    std::shared_ptr<const PreparedConvolution> prepared;
    return backend_->Prepare(c, algorithm, options_, &prepared).ok();
  }

  CUcontext context_ = nullptr;
  CUstream caller_ = nullptr;
  Backend* backend_ = nullptr;
  PrepareOptions options_ = {kAmpleWorkspace};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CUDNN_FIXTURE_H_
