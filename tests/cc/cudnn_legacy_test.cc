// Algorithms of cuDNN's legacy API on stand-ins for libcuda and libcudnn: every way
// in which cuDNN refuses or fails.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/algorithm_list.h"
#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "cc_kernels/core/cudnn/cudnn_convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/is_error.h"

namespace tf_interop {
namespace {

using CudnnLegacyTest = CudnnBackendTest;

TEST_F(CudnnLegacyTest, PinsLegacyNamesInTheFirstFormulationThatTakesThem) {
  EXPECT_EQ(PrepareOk(MakeConvolution(), "GEMM")->algorithm(), "GEMM");
  EXPECT_EQ(PrepareOk(MakeConvolution(), "FFT")->algorithm(), "nchw+FFT");
  EXPECT_EQ(PrepareOk(MakeFused(), "FFT")->algorithm(), "split+nchw+FFT");
  for (const char* name : {"nchw+GEMM", "FFT", "nchw+FFT"}) {
    const auto prepared = PrepareOk(MakeConvolution(), name);
    EXPECT_EQ(PrepareOk(MakeConvolution(), prepared->algorithm())->algorithm(),
              prepared->algorithm());
    ExpectMatchesReference(MakeConvolution(), *prepared);
  }
}

TEST_F(CudnnLegacyTest, RefusesLegacyNamesInFormulationsThatCannotTakeThem) {
  EXPECT_TRUE(IsError(PrepareError(MakeFused(), "nchw+GEMM"), StatusCode::kUnsupported,
                      {"'split+' in front"}));
  for (const auto kind : kKinds) {
    for (const std::string& name : LegacyNamesOf(kind)) {
      EXPECT_TRUE(IsError(PrepareError(MakeAsymmetric(kind), name), StatusCode::kUnsupported,
                          {"equal paddings"}));
    }
  }
}

TEST_F(CudnnLegacyTest, RefusesLegacyNamesOfAnotherKind) {
  const std::vector<std::pair<ConvolutionKind, const char*>> cases = {
      {ConvolutionKind::kForward, "ALGO_0"},
      {ConvolutionKind::kBackwardInput, "ALGO_3"},
      {ConvolutionKind::kBackwardInput, "nchw+GEMM"},
      {ConvolutionKind::kBackwardFilter, "IMPLICIT_GEMM"}};
  for (const auto& [kind, name] : cases) {
    const Status status = PrepareError(MakeConvolution(kind), name);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    for (const std::string& part :
         {std::string("legacy algorithm of a ") + ToString(kind), std::string("FFT_TILING"),
          std::string("which is for another kind")}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
}

TEST_F(CudnnLegacyTest, TellsTheLegacyApiWhichMathToUse) {
  const auto math_of = [this](const Convolution& c) {
    PrepareOk(c, "GEMM");
    return FakeCudnnCounts().last_legacy_math_type.load();
  };
  Convolution half = MakeConvolution();
  half.dtype = DataType::kHalf;
  EXPECT_EQ(math_of(MakeConvolution()), CUDNN_DEFAULT_MATH);
  EXPECT_TRUE(PrepareOk(MakeConvolution(), "GEMM")->reduces_precision());
  EXPECT_EQ(math_of(half), CUDNN_TENSOR_OP_MATH);
  EXPECT_FALSE(PrepareOk(half, "GEMM")->reduces_precision());
  options_.allow_tf32 = false;
  EXPECT_EQ(math_of(MakeConvolution()), CUDNN_FMA_MATH);
  EXPECT_FALSE(PrepareOk(MakeConvolution(), "GEMM")->reduces_precision());
}

TEST_F(CudnnLegacyTest, RefusesLegacyNamesThatCudnnCannotRun) {
  FakeCudnn().unsupported_legacy = {"WINOGRAD"};
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "WINOGRAD"), StatusCode::kUnsupported,
                      {"cuDNN cannot run 'WINOGRAD' here", "WINOGRAD switched off",
                       "cudnnGetConvolutionForwardWorkspaceSize", "[nchw]"}));
}

TEST_F(CudnnLegacyTest, AsksCudnnForTheAlgorithmOfThatName) {
  int64_t batch = 0;
  for (const auto kind : kKinds) {
    for (const std::string& refused : LegacyNamesOf(kind)) {
      FakeCudnn().unsupported_legacy = {refused};
      for (const std::string& name : LegacyNamesOf(kind)) {
        std::shared_ptr<const PreparedConvolution> prepared;
        Convolution c = MakeNchw(kind);
        c.batch = ++batch;  // refusals are kept
        EXPECT_EQ(backend_->Prepare(c, name, options_, &prepared).ok(), name != refused)
            << ToString(kind) << " " << name;
      }
    }
    FakeCudnn().unsupported_legacy = {};
  }
}

TEST_F(CudnnLegacyTest, KeepsWorkspaceOfLegacyNamesWithinLimit) {
  const Convolution c = MakeConvolution();
  const size_t filter_bytes = 1024;
  EXPECT_EQ(PrepareOk(c, "GEMM", filter_bytes + 2048)->workspace_bytes(), filter_bytes + 2048);
  EXPECT_EQ(PrepareOk(c, "IMPLICIT_GEMM", filter_bytes)->workspace_bytes(), filter_bytes);
  EXPECT_TRUE(IsError(PrepareError(c, "GEMM", filter_bytes + 2047), StatusCode::kUnsupported,
                      {"Expected at most 2047 bytes of workspace for 'GEMM', got 2048"}));
}

TEST_F(CudnnLegacyTest, TriesLegacyNamesAnewAfterLackOfMemory) {
  const int descriptors = FakeCudnnCounts().live_descriptors;
  FakeCudnn().fail_plan_allocation = true;
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "GEMM"), StatusCode::kResourceExhausted,
                      {"no memory for the algorithm"}));
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
  FakeCudnn().fail_plan_allocation = false;
  ExpectMatchesReference(MakeConvolution(), *PrepareOk(MakeConvolution(), "GEMM"));
}

TEST_F(CudnnLegacyTest, ReportsFailuresOfLegacyLaunches) {
  for (const auto kind : kKinds) {
    const Convolution c = MakeConvolution(kind);
    const auto prepared = PrepareOk(c, "WINOGRAD");
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared->workspace_bytes());
    FakeCudnn().fail_execution = true;
    const Status status = Launch(*prepared, problem.Buffers(&result), workspace.data());
    FakeCudnn().fail_execution = false;
    EXPECT_TRUE(IsError(status, StatusCode::kInternal,
                        {"cudnnConvolution", "with 'WINOGRAD'", "execution switched off"}));
    FakeCudaSynchronize(caller_);
  }
}

TEST_F(CudnnLegacyTest, GoesOnWithoutTheLegacyApi) {
  static CudnnLibrary library;  // what it prepares refers to it
  const Status opened = CudnnLibrary::Open(CUDNN_WITHOUT_LEGACY_API, &library);
  ASSERT_TRUE(opened.ok()) << opened.message();
  const CudaDriver* driver = nullptr;
  ASSERT_TRUE(CudaDriver::Get(&driver).ok());
  ScopedContext scope(*driver, context_);
  cudnnHandle_t handle = nullptr;
  ASSERT_EQ(library.cudnnCreate(&handle), CUDNN_STATUS_SUCCESS);
  const auto prepare = [&](const std::string& algorithm) {
    std::shared_ptr<const CudnnConvolution> prepared;
    return PrepareCudnnConvolution(library, handle, MakeConvolution(), algorithm, options_,
                                   &prepared);
  };
  EXPECT_TRUE(IsError(prepare("GEMM"), StatusCode::kUnsupported,
                      {"Expected 'cudnnCreateFilterDescriptor'", "without_legacy", "cuDNN 9."}));
  EXPECT_TRUE(prepare("eng1").ok());
  EXPECT_TRUE(prepare("").ok());
  Names names;
  ASSERT_TRUE(
      ListCudnnAlgorithms(library, handle, MakeConvolution(), AlgorithmScope::kAll, true, &names)
          .ok());
  EXPECT_TRUE(Holds(names, "eng4"));
  EXPECT_FALSE(Holds(names, "GEMM"));
  EXPECT_EQ(library.cudnnDestroy(handle), CUDNN_STATUS_SUCCESS);
}

TEST_F(CudnnLegacyTest, LaunchesOneLegacyConvolutionFromSeveralThreads) {
  const Convolution c = MakeFused();
  const auto prepared = PrepareOk(c, "GEMM");
  ExpectMatchesFromSeveralThreads(c, *prepared);
}

}  // namespace
}  // namespace tf_interop
