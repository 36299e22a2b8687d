// The cudnn backend on stand-ins for libcuda and libcudnn that compute on the host: choices, pins,
// failures, and use from several threads. cudnn_convolution_test.cc tests the results.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/backend.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

using CudnnBackendTest = CudnnTest;

TEST_F(CudnnBackendTest, TakesTheFirstProposalThatIsAllowed) {
  Convolution c = MakeConvolution();
  EXPECT_EQ(PrepareOk(c)->algorithm(), List(c, AlgorithmScope::kHeuristic)[0]);
  for (int round = 0; round < 3; ++round) {
    UseNewContext();
    const auto prepared = PrepareOk(c);
    ASSERT_NE(prepared, nullptr);
    ExpectMatches(c, *prepared);
    EXPECT_EQ(PrepareOk(c, prepared->algorithm())->algorithm(), prepared->algorithm());
    EXPECT_TRUE(FakeCudnn().unsupported_engines.insert(EngineOf(prepared->algorithm())).second);
  }
  UseNewContext();
  const int descriptors = FakeCudnnCounts().live_descriptors;
  for (int64_t engine = 0; engine < 200; ++engine) FakeCudnn().unsupported_engines.insert(engine);
  Convolution fused = MakeFused();
  fused.batch = 1;
  EXPECT_TRUE(IsError(PrepareError(fused), StatusCode::kUnsupported,
                      {"forward float NHWC", "[plain]", "[split]", "[nchw]", "[split+nchw]",
                       "engine switched off", "CUDNN_LOGLEVEL_DBG=3"}));
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
}

TEST_F(CudnnBackendTest, IsFoundByTheNumberOfItsGpu) {
  Backend* by_number = nullptr;
  ASSERT_TRUE(IsOk(FindCudnnBackendOf(0, &by_number)));
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  Backend* by_stream = nullptr;
  ASSERT_TRUE(IsOk(FindCudnnBackend(FakeCudaMakeStream(context), &by_stream)));
  EXPECT_EQ(by_number, by_stream);
  std::shared_ptr<const PreparedConvolution> prepared;
  PrepareOptions options;
  options.workspace_limit_bytes = kAmpleWorkspace;
  EXPECT_TRUE(IsOk(by_number->Prepare(MakeConvolution(), "", options, &prepared)));
  for (int round = 0; round < 2; ++round) {  // no context is kept for a GPU that is not there
    EXPECT_FALSE(FindCudnnBackendOf(7, &by_number).ok());
  }
}

TEST_F(CudnnBackendTest, KeepsToTheWorkspaceLimit) {
  Convolution c = MakeConvolution();
  const size_t copies = 1024;  // the filter, 3 * 3 * 4 * 6 floats, rounded up to 256
  int large = 0;
  for (const std::string& name : Engines(c, {false, true}, 8)) {
    const size_t bytes = PrepareOk(c, name)->workspace_bytes();
    EXPECT_EQ(PrepareOk(c, name, bytes)->algorithm(), name);
    EXPECT_EQ(PrepareError(c, name, bytes - 1).code(), StatusCode::kUnsupported);
    EXPECT_LT(PrepareOk(c, "", bytes - 1)->workspace_bytes(), bytes);
    large += bytes > copies;
  }
  EXPECT_GT(large, 0);
  EXPECT_TRUE(IsError(PrepareError(c, "", copies - 1), StatusCode::kUnsupported,
                      {"got 1024 for copies of tensors alone"}));
  const auto least = PrepareOk(c, "", 0);
  EXPECT_EQ(least->workspace_bytes(), copies);
  ExpectMatches(c, *least);
  if (cudnnGetVersion() > 90900) {  // 9.8 proposes the least first
    EXPECT_LT(PrepareOk(MakeAsymmetric(), "", 0)->workspace_bytes(),
              PrepareOk(MakeAsymmetric())->workspace_bytes());
  }
  FakeCudnn().knows_workspaces = false;
  c.batch += 1;  // outcomes are kept
  EXPECT_TRUE(IsError(PrepareError(c, "", 0), StatusCode::kUnsupported,
                      {"know the plan's workspace in bytes, got -1"}));
}

TEST_F(CudnnBackendTest, RefusesPinsThatCudnnDoesNotTake) {
  const std::string plain = PrepareOk(MakeConvolution())->algorithm();
  const std::string engine = plain.substr(0, plain.find('_'));
  for (const auto& [name, part] : std::vector<std::pair<std::string, std::string>>{
           {engine + "_k99=1", "99"}, {"eng999", "'eng999'"}, {"split+" + plain, "got 'split'"}}) {
    EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), name), StatusCode::kUnsupported, {part}));
  }
  FakeCudnn().unsupported_engines = {EngineOf(plain)};
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), engine), StatusCode::kUnsupported,
                      {"'" + engine + "'", "engine switched off"}));
  Convolution large = MakeConvolution(), empty = MakeConvolution();
  large.image_height = large.image_width = 1 << 16;
  CompleteSame(&large);
  EXPECT_TRUE(IsError(PrepareError(large, "GEMM"), StatusCode::kUnsupported, {"2^31"}));
  empty.batch = 0;
  EXPECT_EQ(PrepareError(empty).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PrepareError(MakeConvolution(), "gemm").code(), StatusCode::kInvalidArgument);
}

void WaitOnce() { std::this_thread::sleep_for(std::chrono::milliseconds(110)); }

TEST_F(CudnnBackendTest, KeepsRefusalsAndTriesAnewAfterLackOfMemory) {
  FakeCudnn().fail_plan_allocation = true;
  const Status first = PrepareError(MakeConvolution());
  EXPECT_TRUE(IsError(first, StatusCode::kResourceExhausted, {"no memory for the plan"}));
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "GEMM"), StatusCode::kResourceExhausted,
                      {"no memory for the algorithm"}));
  FakeCudnn().fail_plan_allocation = false;
  EXPECT_EQ(PrepareError(MakeConvolution()).message(), first.message()) << "retried at once";
  WaitOnce();
  RunAndExpectMatch(MakeConvolution());
  Convolution other = MakeAsymmetric();
  for (int64_t engine = 0; engine < 200; ++engine) FakeCudnn().unsupported_engines.insert(engine);
  const Status refusal = PrepareError(other);
  EXPECT_EQ(refusal.code(), StatusCode::kUnsupported);
  FakeCudnn().unsupported_engines = {};
  WaitOnce();
  EXPECT_EQ(PrepareError(other).message(), refusal.message());
}

TEST_F(CudnnBackendTest, AsksAgainForARefusedHandleAfterAWhile) {
  FakeCudnn().fail_handle = true;
  RunAndExpectMatch(MakeConvolution());  // there is a handle before the first call
  UseNewContext();
  const int asked = FakeCudnnCounts().handles_asked;
  for (const Convolution& c : {MakeConvolution(), MakeAsymmetric(), MakeFused()}) {
    EXPECT_TRUE(IsError(PrepareError(c), StatusCode::kUnavailable, {"set_memory_growth"}));
  }
  EXPECT_EQ(FakeCudnnCounts().handles_asked, asked);
  FakeCudnn().fail_handle = false;
  WaitOnce();
  RunAndExpectMatch(MakeConvolution());
}

TEST_F(CudnnBackendTest, LanesShareAHandleAndPreparingLeavesSomeToLaunches) {
  const Stage lanes = StageOfLanes(4, MakeConvolution());
  Problem problem(lanes);
  const int made = FakeCudnnCounts().handles_made;
  EXPECT_TRUE(IsOk(RunOnFakes(backend_, Prepared(backend_, lanes, options_), &problem, caller_)));
  EXPECT_EQ(FakeCudnnCounts().handles_made, made);
  FakeCudnn().plan_delay_us = 20000;
  InThreads(12, [&](int i) {
    Convolution c = MakeConvolution();
    c.batch = 2 + i;
    PrepareOk(c);
  });
  EXPECT_LT(FakeCudnnCounts().handles_made - made, 4);
  // Without any new handles, the existing ones must suffice. All of them launch one plan.
  FakeCudnn().plan_delay_us = 0;
  FakeCudnn().fail_handle = true;
  const auto prepared = PrepareOk(MakeConvolution());
  InThreads(8, [&](int) {
    CUstream stream = FakeCudaMakeStream(context_);
    for (int round = 0; round < 50; ++round) {
      Problem own(MakeConvolution());
      ASSERT_TRUE(IsOk(LaunchOn(stream, backend_, *prepared, &own)));
      FakeCudaSynchronize(stream);
      own.ExpectCorrect(kTolerance);
    }
  });
}

// Code that cuDNN compiles at run time is loaded when the plan is made.
TEST_F(CudnnBackendTest, AShortageOfMemoryForCompiledCodePasses) {
  const Convolution c = MakeFused(Layout::kNHWC, DataType::kHalf);
  const std::string compiled = Engines(c, {true, false})[0];
  UseNewContext();
  FakeCuda().fail_module_loading = true;
  EXPECT_EQ(ListError(c, AlgorithmScope::kAll).code(), StatusCode::kResourceExhausted)
      << "the list would be incomplete";
  EXPECT_TRUE(IsError(PrepareError(c, compiled), StatusCode::kResourceExhausted, {"5001"}));
  PreparedStage stage;
  const Stage pinned = StageOfLanes(1, c, compiled);
  ASSERT_TRUE(IsOk(PrepareStage(backend_, pinned, options_, &stage)));
  EXPECT_EQ(stage.fallbacks.size(), 1u);
  EXPECT_TRUE(stage.is_provisional());
  FakeCuda().fail_module_loading = false;
  WaitOnce();
  WaitOnce();
  ASSERT_TRUE(IsOk(PrepareStage(backend_, pinned, options_, &stage)));
  EXPECT_TRUE(stage.fallbacks.empty());
  EXPECT_FALSE(stage.is_provisional());
  RunAndExpectMatch(c, compiled);
}

TEST_F(CudnnBackendTest, ReportsFailuresOfLaunches) {
  FakeCudnn().fail_execution = true;
  for (const auto kind : kKinds) {
    for (const std::string legacy : {"", "WINOGRAD"}) {
      const auto prepared = PrepareOk(MakeConvolution(kind), legacy);
      Problem problem(MakeConvolution(kind));
      EXPECT_TRUE(IsError(LaunchOn(caller_, backend_, *prepared, &problem), StatusCode::kInternal,
                          {legacy.empty() ? "cudnnBackendExecute of" : "cudnnConvolution",
                           "'" + prepared->algorithm() + "'", "CUDNN_STATUS_EXECUTION_FAILED",
                           "execution switched off", "CUDNN_LOGLEVEL_DBG=3"}));
      FakeCudaSynchronize(caller_);  // the copies before the launch were enqueued
    }
  }
}

TEST(LibrariesTest, RefusesMissingOlderAndOtherLibraries) {
  UseFakes();
  setenv("TF_INTEROP_LIBCUDNN", "libm.so.6", 1);
  EXPECT_TRUE(IsError(CudnnLibrary().Open(), StatusCode::kUnavailable,
                      {"'cudnnGetVersion", "in 'libm.so.6'", "newer version"}));
  setenv("TF_INTEROP_LIBCUDNN", "/nowhere/libcudnn.so.9", 1);
  EXPECT_TRUE(IsError(CudnnLibrary().Open(), StatusCode::kUnavailable,
                      {"/nowhere/libcudnn.so.9", "Install cuDNN 9"}));
  setenv("TF_INTEROP_LIBCUDA", "/nowhere/libcuda.so.1", 1);
  EXPECT_TRUE(IsError(CudaDriver().Open(), StatusCode::kUnavailable, {"NVIDIA's driver"}));
  setenv("TF_INTEROP_LIBCUDA", "libm.so.6", 1);
  EXPECT_TRUE(
      IsError(CudaDriver().Open(), StatusCode::kUnavailable, {"'cuInit", "in 'libm.so.6'"}));
}

TEST(LibrariesTest, TakesOnlyTheOverrideAndLooksBesideLoadedPythonPackages) {
  setenv("TF_INTEROP_TEST_LIBRARY", "/opt/lib.so", 1);
  EXPECT_EQ(LibraryCandidates("TF_INTEROP_TEST_LIBRARY", "lib.so", "a/lib.so"),
            Names{"/opt/lib.so"});
  unsetenv("TF_INTEROP_TEST_LIBRARY");
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / "candidates" / "site-packages" / "";
  std::filesystem::create_directories(folder / "package");
  const auto library = folder / "package" / "libpackage.so";
  std::filesystem::copy_file(PathOf(&FakeCudaMakeContext), library,
                             std::filesystem::copy_options::overwrite_existing);
  ASSERT_NE(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  EXPECT_EQ(LibraryCandidates("TF_INTEROP_TEST_LIBRARY", "lib.so", "nvidia/lib.so"),
            (Names{"lib.so", folder.string() + "nvidia/lib.so"}));
}

// cuDNN's variant packs contain addresses, so one for other addresses must not be used.
TEST_F(CudnnBackendTest, LaunchesOnWhateverAddressesItIsGiven) {
  const auto prepared = PrepareOk(MakeFused());
  // More problems than kept packs, which take turns.
  std::deque<Problem> problems;
  std::vector<void*> workspaces;
  for (int i = 0; i < 11; ++i) {
    problems.emplace_back(MakeFused());
    workspaces.push_back(problems[i].NewBuffer(prepared->workspace_bytes()).data());
  }
  int descriptors = 0;
  for (int round = 0; round < 3; ++round) {
    if (round == 1) descriptors = FakeCudnnCounts().live_descriptors;
    for (size_t i = 0; i < problems.size(); ++i) {
      problems[i].SpoilResults();
      ASSERT_TRUE(IsOk(Launch(*prepared, problems[i].buffers(), workspaces[i])));
    }
    FakeCudaSynchronize(caller_);
    for (Problem& problem : problems) problem.ExpectCorrect(kTolerance);
  }
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors) << "old packs were not freed";
}

TEST_F(CudnnBackendTest, GivesAllThreadsTheSamePlan) {
  FakeCudnn().plan_delay_us = 2000;
  std::vector<std::shared_ptr<const PreparedConvolution>> prepared(4);
  InThreads(4, [&](int i) { prepared[i] = PrepareOk(MakeAsymmetric()); });
  for (const auto& each : prepared) EXPECT_EQ(each, prepared[0]);
  const int plans = FakeCudnnCounts().plans_finalized;
  EXPECT_EQ(PrepareOk(MakeAsymmetric()), prepared[0]);
  EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans) << "compiled an existing plan again";
}

}  // namespace
}  // namespace tf_interop
