// A cudnn backend on the stand-ins for libcuda and libcudnn, with nothing prepared.
#ifndef TF_INTEROP_TESTS_CC_CUDNN_BACKEND_FIXTURE_H_
#define TF_INTEROP_TESTS_CC_CUDNN_BACKEND_FIXTURE_H_

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/guarded_buffer.h"
#include "tests/cc/reference_convolution.h"
#include "tests/cc/stage_fixture.h"

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

// A stage as TensorFlow runs it, each convolution on a lane of its own: the first operand appears
// on the caller's stream just before, and vanishes on it just after.
inline void RunStageOnce(CudnnBackend* backend, CUstream caller, const std::vector<Convolution>& cs,
                         const std::vector<LaneOptions>& lanes = {}) {
  Stage planned = StageOfLanes(static_cast<int>(cs.size()), cs[0]);
  for (size_t i = 0; i < cs.size(); ++i) planned.steps[i].convolution = cs[i];
  const PreparedStage stage = Prepared(backend, WithOptions(planned, lanes), {kAmpleWorkspace});

  std::vector<Problem> problems(cs.begin(), cs.end());
  std::vector<Buffer> results, workspaces;
  StageBuffers buffers;
  for (size_t i = 0; i < cs.size(); ++i) {
    results.push_back(problems[i].MakeResult());
    workspaces.emplace_back(stage.lane_workspace_bytes[i]);
  }
  for (size_t i = 0; i < cs.size(); ++i) {
    buffers.steps.push_back(problems[i].Buffers(&results[i]));
    buffers.lane_workspaces.push_back(workspaces[i].data());
  }
  // It is NaN until the caller's stream gets there.
  const size_t bytes = cs[0].image_elements() * SizeOf(cs[0].dtype);
  auto* image = static_cast<unsigned char*>(const_cast<void*>(buffers.steps[0].inputs[0]));
  const std::vector<unsigned char> content(image, image + bytes);
  std::memset(image, 0xFF, bytes);
  FakeCudaEnqueue(caller, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::memcpy(image, content.data(), bytes);
  });
  const Status run = RunStage(backend, stage, buffers, caller);
  EXPECT_TRUE(run.ok()) << run.message();
  FakeCudaEnqueue(caller, [&] { std::memset(image, 0xFF, bytes); });
  FakeCudaSynchronize(caller);
  for (size_t i = 0; i < cs.size(); ++i) {
    SCOPED_TRACE(ToString(cs[i]));
    problems[i].ExpectCorrect(&results[i], kTolerance);
  }
}

using Names = std::vector<std::string>;

inline constexpr ConvolutionKind kKinds[] = {
    ConvolutionKind::kForward, ConvolutionKind::kBackwardInput, ConvolutionKind::kBackwardFilter};

inline bool Holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline Names WithPrefix(const Names& names, const std::string& prefix) {
  Names found;
  for (const std::string& name : names) {
    if (name.rfind(prefix, 0) == 0) found.push_back(name);
  }
  return found;
}

inline Convolution MakeNchw(ConvolutionKind kind = ConvolutionKind::kForward) {
  return MakeConvolution(kind, Layout::kNCHW);
}

inline std::vector<Convolution> WithEveryKindLayoutAndBFloat16(
    std::vector<Convolution> geometries) {
  std::vector<Convolution> all;
  for (Convolution c : WithEveryKindLayoutAndType(geometries)) {
    if (c.dtype != DataType::kHalf) continue;
    c.dtype = DataType::kBFloat16;
    all.push_back(c);
  }
  return all;
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
    const Status status = backend_->Prepare(c, algorithm, WithLimit(limit), &prepared);
    EXPECT_TRUE(status.ok()) << ToString(c) << ": " << status.message();
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

  // Calls `use` with a stream group for the caller's stream, leased for it.
  template <typename Use>
  Status WithGroup(const Use& use) {
    std::unique_ptr<StreamGroup> group;
    TF_INTEROP_RETURN_IF_ERROR(backend_->Acquire(StreamGroupOptions::OnCallerStream(), &group));
    const Status status = use(group.get());
    backend_->Release(std::move(group));
    return status;
  }

  Status Launch(const PreparedConvolution& prepared, const ConvolutionBuffers& buffers,
                void* workspace) {
    return WithGroup([&](StreamGroup* group) {
      return backend_->Launch(prepared, buffers, workspace, group, caller_);
    });
  }

  Status TransformFilter(const PreparedConvolution& prepared, const void* filter,
                         void* transformed) {
    return WithGroup([&](StreamGroup* group) {
      return backend_->TransformFilter(prepared, filter, transformed, group, caller_);
    });
  }

  // Launches on the caller's stream and compares every element.
  void ExpectMatchesReference(const Convolution& c, const PreparedConvolution& prepared) {
    SCOPED_TRACE(ToString(c) + " " + prepared.algorithm());
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared.workspace_bytes());
    const Status status = Launch(prepared, problem.Buffers(&result), workspace.data());
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

  // Launches what is prepared from four threads at once, and compares every result.
  void ExpectMatchesFromSeveralThreads(const Convolution& c, const PreparedConvolution& prepared) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        Problem problem(c);
        for (int round = 0; round < 50; ++round) {
          Buffer result = problem.MakeResult();
          Buffer workspace(prepared.workspace_bytes());
          std::unique_ptr<StreamGroup> group;
          ASSERT_TRUE(backend_->Acquire(&group).ok());
          const auto stream = static_cast<CUstream>(group->stream());
          ASSERT_TRUE(backend_
                          ->Launch(prepared, problem.Buffers(&result), workspace.data(),
                                   group.get(), stream)
                          .ok());
          backend_->Release(std::move(group));
          FakeCudaSynchronize(stream);
          problem.ExpectCorrect(&result, kTolerance);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Names List(const Convolution& c, AlgorithmScope scope) {
    Names names;
    const Status status = backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names);
    EXPECT_TRUE(status.ok()) << status.message();
    return names;
  }

  Status ListError(const Convolution& c, AlgorithmScope scope) {
    Names names;
    const Status status = backend_->ListAlgorithms(c, scope, options_.allow_tf32, &names);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(names.empty());
    return status;
  }

  // Transforms the filter, spoils the original, and launches with the transformed one.
  void ExpectMatchesWithTransformedFilter(const Convolution& c,
                                          const PreparedConvolution& prepared) {
    SCOPED_TRACE(ToString(c) + " " + prepared.algorithm());
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared.workspace_bytes());
    Buffer transformed(prepared.transformed_filter_bytes());
    ConvolutionBuffers buffers = problem.Buffers(&result);
    const void*& filter = buffers.inputs[c.kind == ConvolutionKind::kForward ? 1 : 0];
    const Status transform = TransformFilter(prepared, filter, transformed.data());
    ASSERT_TRUE(transform.ok()) << transform.message();
    FakeCudaSynchronize(caller_);
    EXPECT_TRUE(transformed.IsIntact()) << "written beyond the transformed filter";
    filter = nullptr;
    buffers.transformed_filter = transformed.data();
    for (int launch = 0; launch < 2; ++launch) {
      std::memset(result.data(), 0xFF, c.result_elements() * SizeOf(c.dtype));
      const Status launched = Launch(prepared, buffers, workspace.data());
      ASSERT_TRUE(launched.ok()) << launched.message();
      FakeCudaSynchronize(caller_);
      problem.ExpectCorrect(&result, kTolerance);
    }
    EXPECT_TRUE(workspace.IsIntact()) << "written beyond the workspace";
  }

  PrepareOptions WithLimit(size_t bytes) const {
    PrepareOptions options = options_;
    options.workspace_limit_bytes = bytes;
    return options;
  }

  CUcontext context_ = nullptr;
  CUstream caller_ = nullptr;
  CudnnBackend* backend_ = nullptr;
  PrepareOptions options_ = {kAmpleWorkspace};
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CUDNN_BACKEND_FIXTURE_H_
