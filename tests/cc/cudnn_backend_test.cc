// The cudnn backend on stand-ins for libcuda and libcudnn, which compute on the host: choices,
// pins, failures, and use from several threads. What it computes is cudnn_convolution_test's.
#include "cc_kernels/core/cudnn/cudnn_backend.h"

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_convolution.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/dynamic_library.h"
#include "cc_kernels/core/cudnn/tensor.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/is_error.h"
#include "tests/cc/reference_convolution.h"

namespace tf_interop {
namespace {

TEST_F(CudnnBackendTest, CopiesNoFilterThatHasTheRightOrderAlready) {
  Convolution c = MakeConvolution();
  c.group_count = c.image_channels;
  c.output_channels = c.image_channels;
  c.filter_height = c.filter_width = 1;
  CompleteSame(&c);
  const int before = FakeCudnnCounts().copies;
  RunAndExpectMatch(c);
  EXPECT_EQ(FakeCudnnCounts().copies, before);
}

TEST_F(CudnnBackendTest, TransposesFilterIntoWorkspace) {
  const Convolution c = MakeConvolution();
  const int before = FakeCudnnCounts().copies;
  RunAndExpectMatch(c);
  EXPECT_EQ(FakeCudnnCounts().copies, before + 1);
}

TEST_F(CudnnBackendTest, ChoosesNextProposalWhereEnginesFail) {
  FakeCudnn().unsupported_engines = {3};
  EXPECT_EQ(RunAndExpectMatch(MakeConvolution()), "eng1_k2=5");
  FakeCudnn().unsupported_engines = {3, 1};
  Convolution c = MakeConvolution();
  c.batch = 1;
  EXPECT_EQ(RunAndExpectMatch(c), "eng2");
  FakeCudnn().unsupported_engines = {3, 1, 2};
  c.batch = 3;
  EXPECT_EQ(RunAndExpectMatch(c), "eng0");
}

TEST_F(CudnnBackendTest, RefusesWithReasonsWhereNoEngineWorks) {
  FakeCudnn().unsupported_engines = {0, 1, 2, 3};
  EXPECT_TRUE(IsError(PrepareError(MakeFused()), StatusCode::kUnsupported,
                      {"forward float NHWC", "[plain]", "[split]", "[nchw]", "[split+nchw]",
                       "engine switched off", "CUDNN_LOGLEVEL_DBG=3"}));
}

TEST_F(CudnnBackendTest, RefusesSplitEpilogueWithoutPointwiseGraphs) {
  FakeCudnn().no_fused_convolution = true;
  FakeCudnn().no_pointwise_graph = true;
  EXPECT_TRUE(
      IsError(PrepareError(MakeFused()), StatusCode::kUnsupported, {"no pointwise graphs"}));
}

TEST_F(CudnnBackendTest, KeepsWorkspaceWithinLimit) {
  const Convolution c = MakeConvolution();
  const size_t filter_bytes = 1024;  // 3 * 3 * 4 * 6 floats, rounded up to 256
  EXPECT_EQ(PrepareOk(c, "", filter_bytes + (1 << 20))->workspace_bytes(),
            filter_bytes + (1 << 20));
  EXPECT_EQ(PrepareOk(c, "", filter_bytes + (1 << 20) - 1)->algorithm(), "eng1_k2=5");
  EXPECT_EQ(PrepareOk(c, "", filter_bytes + 4095)->algorithm(), "eng2");
  EXPECT_EQ(PrepareOk(c, "", filter_bytes)->workspace_bytes(), filter_bytes);
  EXPECT_TRUE(IsError(PrepareError(c, "", filter_bytes - 1), StatusCode::kUnsupported,
                      {"got 1024 for copies of tensors alone"}));
}

TEST_F(CudnnBackendTest, TakesLeastWorkspaceForLimitOfZero) {
  const auto prepared = PrepareOk(MakeConvolution(), "", 0);
  EXPECT_EQ(prepared->algorithm(), "eng0");
  EXPECT_EQ(prepared->workspace_bytes(), 1024u);
  ExpectMatchesReference(MakeConvolution(), *prepared);
  FakeCudnn().unsupported_engines = {0};
  const Convolution asymmetric = MakeAsymmetric();
  EXPECT_EQ(PrepareOk(asymmetric, "", 0)->algorithm(), "eng2");
}

TEST_F(CudnnBackendTest, AvoidsTensorCoresForFloatWhereTf32IsOff) {
  const Convolution c = MakeConvolution();
  Convolution half = c;
  half.dtype = DataType::kHalf;
  EXPECT_EQ(PrepareOk(c)->algorithm(), "eng3_k2=7_k14=3");
  options_.allow_tf32 = false;
  EXPECT_EQ(PrepareOk(c)->algorithm(), "eng1_k2=5");
  EXPECT_EQ(PrepareOk(half)->algorithm(), "eng3_k2=7_k14=3");
  EXPECT_TRUE(IsError(PrepareError(c, "eng3_k2=7_k14=3"), StatusCode::kUnsupported, {"TF32"}));
  options_.allow_tf32 = true;
  EXPECT_EQ(PrepareOk(c)->algorithm(), "eng3_k2=7_k14=3");
}

TEST_F(CudnnBackendTest, TakesWhatGivesTheSameBitsEveryTimeWhereThatIsAskedFor) {
  const Convolution c = MakeConvolution();
  FakeCudnn().nondeterministic_engines = {3};
  EXPECT_EQ(PrepareOk(c)->algorithm(), "eng3_k2=7_k14=3");
  options_.deterministic = true;
  EXPECT_EQ(PrepareOk(c)->algorithm(), "eng1_k2=5");
  EXPECT_TRUE(IsError(PrepareError(c, "eng3_k2=7_k14=3"), StatusCode::kUnsupported,
                      {"enable_op_determinism"}));
  options_.deterministic = false;
  EXPECT_EQ(PrepareOk(c)->algorithm(), "eng3_k2=7_k14=3");
}

TEST_F(CudnnBackendTest, RefusesTheLegacyAlgorithmsThatAddUpInAnyOrder) {
  options_.deterministic = true;
  Convolution c = MakeConvolution();
  EXPECT_NE(PrepareOk(c, "IMPLICIT_GEMM"), nullptr);
  c.kind = ConvolutionKind::kBackwardInput;
  EXPECT_EQ(PrepareError(c, "ALGO_0").code(), StatusCode::kUnsupported);
  EXPECT_NE(PrepareOk(c, "ALGO_1"), nullptr);
  c.kind = ConvolutionKind::kBackwardFilter;
  EXPECT_EQ(PrepareError(c, "ALGO_0").code(), StatusCode::kUnsupported);
  EXPECT_EQ(PrepareError(c, "ALGO_3").code(), StatusCode::kUnsupported);
  EXPECT_NE(PrepareOk(c, "ALGO_1"), nullptr);
  options_.deterministic = false;
  EXPECT_NE(PrepareOk(c, "ALGO_3"), nullptr);
}

TEST_F(CudnnBackendTest, PinsWhatItReports) {
  const Convolution c = MakeFused();
  for (const char* algorithm : {"eng0", "eng1_k2=9", "eng3_k2=1_k14=7", "split+eng2", "nchw+eng0",
                                "split+nchw+eng1_k2=4"}) {
    const auto prepared = PrepareOk(c, algorithm);
    ASSERT_NE(prepared, nullptr);
    EXPECT_EQ(prepared->algorithm(), algorithm);
    ExpectMatchesReference(c, *prepared);
    EXPECT_EQ(PrepareOk(c, prepared->algorithm()), prepared);
  }
}

TEST_F(CudnnBackendTest, ReportsKnobsThatThePinLeftOut) {
  EXPECT_EQ(PrepareOk(MakeConvolution(), "eng3_k14=2")->algorithm(), "eng3_k2=7_k14=2");
}

TEST_F(CudnnBackendTest, PinsUnnamedFormulationToTheFirstThatWorks) {
  FakeCudnn().no_nhwc = true;
  EXPECT_EQ(PrepareOk(MakeConvolution(), "eng2")->algorithm(), "nchw+eng2");
}

TEST_F(CudnnBackendTest, RefusesPinWithKnobThatTheEngineDrops) {
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "eng1_k2=5_k33=1"), StatusCode::kUnsupported,
                      {"knob 33 is not there in place of 1"}));
  FakeCudnn().ignored_knob = 2;
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "eng1_k2=9"), StatusCode::kUnsupported,
                      {"knob 2 is 5 in place of 9"}));
}

TEST_F(CudnnBackendTest, RefusesPinThatCannotRunHere) {
  FakeCudnn().unsupported_engines = {1};
  EXPECT_EQ(PrepareError(MakeConvolution(), "eng1").code(), StatusCode::kUnsupported);
  EXPECT_EQ(PrepareError(MakeConvolution(), "eng99").code(), StatusCode::kUnsupported);
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "eng2", 1024 + 1023),
                      StatusCode::kUnsupported,
                      {"Expected at most 1023 bytes of workspace for 'eng2', got 1024"}));
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "split+eng2"), StatusCode::kUnsupported,
                      {"got 'split'"}));
}

TEST_F(CudnnBackendTest, RefusesUnknownNamesAsInvalid) {
  for (const char* name : {"eng", "eng4_", "eng4_k2", "eng04", "eng4_k2=", "eng4_k2=1_k2=1",
                           "eng+1", "nchw+split+eng1", "pad+eng1", "eng1_sms=8", "eng4 ",
                           "precomp_gemm", "eng4_k99999999999=1", "eng99999999999999999999"}) {
    EXPECT_EQ(PrepareError(MakeConvolution(), name).code(), StatusCode::kInvalidArgument) << name;
  }
}

TEST_F(CudnnBackendTest, RefusesConvolutionsThatComputeNothing) {
  Convolution c = MakeConvolution();
  c.batch = 0;
  EXPECT_EQ(PrepareError(c).code(), StatusCode::kInvalidArgument);
  c = MakeConvolution();
  c.output_height += 1;
  EXPECT_EQ(PrepareError(c).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudnnBackendTest, KeepsRefusals) {
  FakeCudnn().unsupported_engines = {0, 1, 2, 3};
  const Status first = PrepareError(MakeConvolution());
  FakeCudnn().unsupported_engines = {};
  EXPECT_EQ(PrepareError(MakeConvolution()).message(), first.message());
}

TEST_F(CudnnBackendTest, TriesAnewAfterLackOfMemory) {
  FakeCudnn().fail_plan_allocation = true;
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution()), StatusCode::kResourceExhausted,
                      {"no memory for the plan"}));
  FakeCudnn().fail_plan_allocation = false;
  RunAndExpectMatch(MakeConvolution());
}

TEST_F(CudnnBackendTest, SaysWhatToDoWhereHandlesCannotBeMade) {
  FakeCudnn().fail_handle = true;
  EXPECT_TRUE(
      IsError(PrepareError(MakeConvolution()), StatusCode::kUnavailable, {"set_memory_growth"}));
}

TEST_F(CudnnBackendTest, ReportsFailuresOfLaunches) {
  const Convolution c = MakeAsymmetric();
  const auto prepared = PrepareOk(c);
  Problem problem(c);
  Buffer result = problem.MakeResult();
  Buffer workspace(prepared->workspace_bytes());
  const auto launch = [&](const ConvolutionBuffers& buffers, void* space) {
    return Launch(*prepared, buffers, space);
  };
  ConvolutionBuffers buffers = problem.Buffers(&result);
  ASSERT_TRUE(launch(buffers, workspace.data()).ok());

  FakeCudnn().fail_execution = true;
  const Status execution = launch(buffers, workspace.data());
  EXPECT_TRUE(IsError(execution, StatusCode::kInternal,
                      {"cudnnBackendExecute of 'eng3_k2=7_k14=3'", "CUDNN_STATUS_EXECUTION_FAILED",
                       "execution switched off", "CUDNN_LOGLEVEL_DBG=3"}));
  FakeCudnn().fail_execution = false;
  FakeCuda().fail_memset = true;
  EXPECT_TRUE(IsError(backend_->FillZero(result.data(), 4, caller_), StatusCode::kInternal,
                      {"cuMemsetD8Async failed with CUDA_ERROR_LAUNCH_FAILED"}));
  FakeCuda().fail_memset = false;

  EXPECT_EQ(launch(buffers, nullptr).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(launch(buffers, workspace.data() + 4).code(), StatusCode::kInvalidArgument);
  buffers.inputs[0] = static_cast<const char*>(buffers.inputs[0]) + 4;
  EXPECT_TRUE(IsError(launch(buffers, workspace.data()), StatusCode::kInvalidArgument,
                      {"Expected input aligned to 16 bytes"}));
  FakeCudaSynchronize(caller_);
}

TEST_F(CudnnBackendTest, RefusesTensorsTooLargeToCopy) {
  const CudnnLibrary* library = nullptr;
  ASSERT_TRUE(CudnnLibrary::Get(&library).ok());
  std::shared_ptr<const StridedCopy> copy;
  const int64_t rows = 1 << 16;
  EXPECT_TRUE(IsError(
      StridedCopy::Make(*library, DataType::kFloat,
                        {{1, 1, rows, rows}, {rows * rows, 1, rows, 1}, {rows * rows, 1, 1, rows}},
                        &copy),
      StatusCode::kUnsupported, {"2^31"}));
}

TEST_F(CudnnBackendTest, FreesEveryDescriptorOfAFailedPreparation) {
  FakeCudnn().unsupported_engines = {0, 1, 2, 3};
  const int before = FakeCudnnCounts().live_descriptors;
  EXPECT_EQ(PrepareError(MakeFused()).code(), StatusCode::kUnsupported);
  EXPECT_EQ(PrepareError(MakeConvolution(), "eng1_k2=9").code(), StatusCode::kUnsupported);
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, before);
}

TEST(CudnnLibraryTest, RefusesAnOlderVersion) {
  setenv("TF_INTEROP_FAKE_CUDNN_VERSION", "8907", 1);
  CudnnLibrary library;
  const Status status = CudnnLibrary::Open(FakeCudnnPath(), &library);
  unsetenv("TF_INTEROP_FAKE_CUDNN_VERSION");
  EXPECT_TRUE(IsError(status, StatusCode::kUnavailable,
                      {"Expected cuDNN 9.0 or newer, got 8.9.7", "TF_INTEROP_LIBCUDNN"}));
}

TEST(CudnnLibraryTest, RefusesALibraryThatIsNotThere) {
  CudnnLibrary cudnn;
  EXPECT_TRUE(IsError(CudnnLibrary::Open("/nowhere/libcudnn.so.9", &cudnn),
                      StatusCode::kUnavailable, {"/nowhere/libcudnn.so.9", "Install cuDNN 9"}));
  CudaDriver cuda;
  EXPECT_TRUE(IsError(CudaDriver::Open("/nowhere/libcuda.so.1", &cuda), StatusCode::kUnavailable,
                      {"NVIDIA's driver"}));
}

TEST(CudnnLibraryTest, RefusesALibraryWithoutTheEntryPoints) {
  CudaDriver cuda;
  EXPECT_TRUE(IsError(CudaDriver::Open("libm.so.6", &cuda), StatusCode::kUnavailable,
                      {"Expected 'cuInit' in 'libm.so.6'"}));
}

TEST(LibraryCandidatesTest, TakesTheOverrideAlone) {
  setenv("TF_INTEROP_TEST_LIBRARY", "/opt/lib.so", 1);
  EXPECT_EQ(LibraryCandidates("TF_INTEROP_TEST_LIBRARY", "lib.so", "a/lib.so"),
            std::vector<std::string>{"/opt/lib.so"});
  unsetenv("TF_INTEROP_TEST_LIBRARY");
  EXPECT_EQ(LibraryCandidates("TF_INTEROP_TEST_LIBRARY", "lib.so", "").front(), "lib.so");
}

TEST(LibraryCandidatesTest, LooksBesideLoadedPythonPackages) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / "candidates" / "site-packages" / "";
  std::filesystem::create_directories(folder / "package");
  const auto library = folder / "package" / "libpackage.so";
  std::filesystem::copy_file(FakeCudaPath(), library,
                             std::filesystem::copy_options::overwrite_existing);
  ASSERT_NE(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  EXPECT_EQ(LibraryCandidates("TF_INTEROP_TEST_LIBRARY", "lib.so", "nvidia/lib.so"),
            (std::vector<std::string>{"lib.so", folder.string() + "nvidia/lib.so"}));
}

TEST(FormulationsTest, LeavesOutWhatChangesNothing) {
  const auto words = [](const Convolution& c) {
    std::vector<std::string> all;
    for (const Formulation& formulation : FormulationsOf(c)) all.push_back(ToString(formulation));
    return all;
  };
  using Words = std::vector<std::string>;
  EXPECT_EQ(words(MakeConvolution(ConvolutionKind::kForward, Layout::kNCHW)), Words{"plain"});
  EXPECT_EQ(words(MakeConvolution()), (Words{"plain", "nchw"}));
  EXPECT_EQ(words(MakeAsymmetric()), (Words{"plain", "nchw"}));
  EXPECT_EQ(words(MakeFused()), (Words{"plain", "split", "nchw", "split+nchw"}));
}

TEST_F(CudnnBackendTest, HasOneBackendForAContext) {
  CudnnBackend* again = nullptr;
  ASSERT_TRUE(CudnnBackend::ForStream(FakeCudaMakeStream(context_), &again).ok());
  EXPECT_EQ(again, backend_);
  CudnnBackend* other = nullptr;
  ASSERT_TRUE(CudnnBackend::ForStream(FakeCudaMakeStream(FakeCudaMakeContext()), &other).ok());
  EXPECT_NE(other, backend_);
}

TEST_F(CudnnBackendTest, ReusesStreamGroups) {
  std::unique_ptr<StreamGroup> first, second;
  ASSERT_TRUE(backend_->Acquire(&first).ok());
  ASSERT_TRUE(backend_->Acquire(&second).ok());
  EXPECT_NE(first->stream(), second->stream());
  const Stream stream = first->stream();
  backend_->Release(std::move(first));
  ASSERT_TRUE(backend_->Acquire(&first).ok());
  EXPECT_EQ(first->stream(), stream);
  backend_->Release(std::move(first));
  backend_->Release(std::move(second));
}

TEST_F(CudnnBackendTest, KeepsMoreStreamGroupsThanLieReady) {
  std::vector<std::unique_ptr<StreamGroup>> groups(80);
  for (auto& group : groups) ASSERT_TRUE(backend_->Acquire(&group).ok());
  const int streams = FakeCudaCounts().live_streams;
  for (int round = 0; round < 2; ++round) {
    for (auto& group : groups) backend_->Release(std::move(group));
    for (auto& group : groups) ASSERT_TRUE(backend_->Acquire(&group).ok());
  }
  EXPECT_EQ(FakeCudaCounts().live_streams, streams);
  for (auto& group : groups) backend_->Release(std::move(group));
}

TEST_F(CudnnBackendTest, AGroupForTheCallersStreamHasNoneOfItsOwn) {
  const int streams = FakeCudaCounts().live_streams;
  std::unique_ptr<StreamGroup> group;
  ASSERT_TRUE(backend_->Acquire(StreamGroupOptions::OnCallerStream(), &group).ok());
  EXPECT_EQ(group->stream(), nullptr);
  EXPECT_EQ(FakeCudaCounts().live_streams, streams);
  backend_->Release(std::move(group));
}

// cuDNN's variant packs name addresses: one that was made for other addresses must not be taken.
TEST_F(CudnnBackendTest, LaunchesOnWhateverAddressesItIsGiven) {
  const Convolution c = MakeFused();
  const auto prepared = PrepareOk(c);
  // More problems at once than packs are kept, in turns.
  std::vector<Problem> problems;
  std::vector<Buffer> results, workspaces;
  for (int i = 0; i < 11; ++i) problems.emplace_back(c);
  for (Problem& problem : problems) {
    results.push_back(problem.MakeResult());
    workspaces.emplace_back(prepared->workspace_bytes());
  }
  int descriptors = 0;
  for (int round = 0; round < 3; ++round) {
    if (round == 1) descriptors = FakeCudnnCounts().live_descriptors;
    for (size_t i = 0; i < problems.size(); ++i) {
      ASSERT_TRUE(Launch(*prepared, problems[i].Buffers(&results[i]), workspaces[i].data()).ok());
    }
    FakeCudaSynchronize(caller_);
    for (size_t i = 0; i < problems.size(); ++i) problems[i].ExpectCorrect(&results[i], kTolerance);
  }
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors) << "packs beyond a few are freed";
}

TEST_F(CudnnBackendTest, LaunchesOnTheStreamThatItIsGiven) {
  const Convolution c = MakeConvolution();
  const auto prepared = PrepareOk(c);
  std::unique_ptr<StreamGroup> group;
  ASSERT_TRUE(backend_->Acquire(&group).ok());
  const auto own = static_cast<CUstream>(group->stream());
  // Whatever goes to the stream that is held up cannot finish before the other one's work has.
  for (CUstream held_up : {caller_, own, caller_}) {
    CUstream stream = held_up == own ? caller_ : own;
    std::promise<void> finished;
    FakeCudaEnqueue(held_up, [&finished] { finished.get_future().wait(); });
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared->workspace_bytes());
    ASSERT_TRUE(
        backend_->Launch(*prepared, problem.Buffers(&result), workspace.data(), group.get(), stream)
            .ok());
    FakeCudaEnqueue(stream, [&finished] { finished.set_value(); });
    FakeCudaSynchronize(held_up);
    FakeCudaSynchronize(stream);
    problem.ExpectCorrect(&result, kTolerance);
  }
  backend_->Release(std::move(group));
}

TEST_F(CudnnBackendTest, FillsWithZeros) {
  Buffer buffer(40);
  ASSERT_TRUE(backend_->FillZero(buffer.data(), 40, caller_).ok());
  ASSERT_TRUE(backend_->FillZero(nullptr, 0, caller_).ok());
  FakeCudaSynchronize(caller_);
  EXPECT_EQ(std::vector<unsigned char>(buffer.data(), buffer.data() + 40),
            std::vector<unsigned char>(40, 0));
  EXPECT_TRUE(buffer.IsIntact());
}

TEST_F(CudnnBackendTest, RunsStageBetweenForkAndJoin) {
  FakeCuda().lane_delay_us = 200;
  RunStageOnce(backend_, caller_,
               {MakeConvolution(), MakeAsymmetric(), MakeFused(), MakeConvolution()});
}

TEST_F(CudnnBackendTest, RunsStagesFromSeveralThreads) {
  FakeCuda().lane_delay_us = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this] {
      CUstream caller = FakeCudaMakeStream(context_);
      for (int round = 0; round < 5; ++round) {
        RunStageOnce(backend_, caller,
                     {MakeConvolution(), MakeConvolution(), MakeAsymmetric(), MakeFused()});
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CudnnBackendTest, GivesAllThreadsTheSamePlan) {
  FakeCudnn().plan_delay_us = 2000;
  constexpr int kThreads = 4;
  std::vector<std::shared_ptr<const PreparedConvolution>> prepared(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] { prepared[i] = PrepareOk(MakeAsymmetric()); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& each : prepared) EXPECT_EQ(each, prepared[0]);
  const int plans = FakeCudnnCounts().plans_finalized;
  EXPECT_EQ(PrepareOk(MakeAsymmetric()), prepared[0]);
  EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans) << "compiled a plan that was there";
}

TEST_F(CudnnBackendTest, LaunchesOnePlanFromSeveralThreads) {
  const Convolution c = MakeFused();
  const auto prepared = PrepareOk(c);
  ExpectMatchesFromSeveralThreads(c, *prepared);
}

}  // namespace
}  // namespace tf_interop
