// The cudnn backend on stand-ins for libcuda and libcudnn, which compute on the host: choices,
// pins, failures, and use from several threads. What it computes is cudnn_convolution_test's.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/backend.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/cudnn/tensor.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

using CudnnBackendTest = CudnnTest;

// What is asked for, of which cuDNN, and what is prepared or why not.
struct PrepareCase {
  Convolution c;
  std::string algorithm;
  void (*change)(FakeCudnnSwitches*);
  std::string runs;  // empty: kUnsupported with these parts
  Names parts = {};
  size_t limit = kAmpleWorkspace;
  bool allow_tf32 = true;
  bool deterministic = false;
};

TEST_F(CudnnBackendTest, TakesTheFirstProposalOrThePinThatIsAllowed) {
  using F = FakeCudnnSwitches;
  const auto none = [](F*) {};
  const size_t copies = 1024;  // the filter, 3 * 3 * 4 * 6 floats, rounded up to 256
  const std::string best = "eng3_k2=7_k14=3";
  Convolution half = MakeConvolution();
  half.dtype = DataType::kHalf;
  const std::vector<PrepareCase> cases = {
      {MakeConvolution(), "", none, best},
      {MakeConvolution(), "", [](F* f) { f->unsupported_engines = {3}; }, "eng1_k2=5"},
      {MakeConvolution(), "", [](F* f) { f->unsupported_engines = {1, 3}; }, "eng2"},
      {MakeConvolution(), "", [](F* f) { f->unsupported_engines = {1, 2, 3}; }, "eng0"},
      {MakeFused(),
       "",
       [](F* f) { f->unsupported_engines = {0, 1, 2, 3}; },
       "",
       {"forward float NHWC", "[plain]", "[split]", "[nchw]", "[split+nchw]", "engine switched off",
        "CUDNN_LOGLEVEL_DBG=3"}},
      {MakeFused(),
       "",
       [](F* f) { f->no_fused_convolution = f->no_pointwise_graph = true; },
       "",
       {"no pointwise graphs"}},
      // Workspace limits.
      {MakeConvolution(), "", none, best, {}, copies + (1 << 20)},
      {MakeConvolution(), "", none, "eng1_k2=5", {}, copies + (1 << 20) - 1},
      {MakeConvolution(), "", none, "eng2", {}, copies + 4095},
      {MakeConvolution(), "", none, "eng0", {}, copies},
      {MakeConvolution(), "", none, "", {"got 1024 for copies of tensors alone"}, copies - 1},
      {MakeConvolution(), "", none, "eng0", {}, 0},  // what needs least
      {MakeAsymmetric(), "", [](F* f) { f->unsupported_engines = {0}; }, "eng2", {}, 0},
      {MakeConvolution(),
       "eng2",
       none,
       "",
       {"Expected at most 1023 bytes of workspace for 'eng2', got 1024"},
       copies + 1023},
      // TF32 and determinism.
      {MakeConvolution(), "", none, "eng1_k2=5", {}, kAmpleWorkspace, false},
      {half, "", none, best, {}, kAmpleWorkspace, false},
      {MakeConvolution(), best, none, "", {"TF32"}, kAmpleWorkspace, false},
      {MakeConvolution(), "", [](F* f) { f->nondeterministic_engines = {3}; }, best},
      {MakeConvolution(),
       "",
       [](F* f) { f->nondeterministic_engines = {3}; },
       "eng1_k2=5",
       {},
       kAmpleWorkspace,
       true,
       true},
      {MakeConvolution(),
       best,
       [](F* f) { f->nondeterministic_engines = {3}; },
       "",
       {"enable_op_determinism"},
       kAmpleWorkspace,
       true,
       true},
      // Pins.
      {MakeFused(), "eng1_k2=9", none, "eng1_k2=9"},
      {MakeFused(), "eng3_k2=1_k14=7", none, "eng3_k2=1_k14=7"},
      {MakeFused(), "split+eng2", none, "split+eng2"},
      {MakeFused(), "split+nchw+eng1_k2=4", none, "split+nchw+eng1_k2=4"},
      {MakeConvolution(), "eng3_k14=2", none, "eng3_k2=7_k14=2"},
      {MakeConvolution(), "eng2", [](F* f) { f->no_nhwc = true; }, "nchw+eng2"},
      {MakeConvolution(), "eng1_k2=5_k33=1", none, "", {"knob 33 is not there in place of 1"}},
      {MakeConvolution(),
       "eng1_k2=9",
       [](F* f) { f->ignored_knob = 2; },
       "",
       {"knob 2 is 5 in place of 9"}},
      {MakeConvolution(), "eng1", [](F* f) { f->unsupported_engines = {1}; }, "", {"'eng1'"}},
      {MakeConvolution(), "eng99", none, "", {"'eng99'"}},
      {MakeConvolution(), "split+eng2", none, "", {"got 'split'"}},
  };
  for (const PrepareCase& each : cases) {
    UseNewContext();
    FakeCudnn() = F();
    each.change(&FakeCudnn());
    options_.allow_tf32 = each.allow_tf32;
    options_.deterministic = each.deterministic;
    const int descriptors = FakeCudnnCounts().live_descriptors;
    if (each.runs.empty()) {
      EXPECT_TRUE(IsError(PrepareError(each.c, each.algorithm, each.limit),
                          StatusCode::kUnsupported, each.parts));
      EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
      continue;
    }
    const auto prepared = PrepareOk(each.c, each.algorithm, each.limit);
    ASSERT_NE(prepared, nullptr);
    EXPECT_EQ(prepared->algorithm(), each.runs);
    const bool is_float = each.c.dtype == DataType::kFloat;
    EXPECT_EQ(prepared->reduces_precision(), is_float && each.runs.find("eng3") == 0);
    EXPECT_TRUE(each.limit == 0 || prepared->workspace_bytes() <= each.limit);
    ExpectMatches(each.c, *prepared);
    EXPECT_EQ(PrepareOk(each.c, prepared->algorithm())->algorithm(), each.runs);
  }
}

TEST_F(CudnnBackendTest, RefusesUnknownNamesAndConvolutionsThatComputeNothingAsInvalid) {
  Convolution empty = MakeConvolution(), wrong = MakeConvolution();
  empty.batch = 0;
  wrong.output_height += 1;
  EXPECT_EQ(PrepareError(MakeConvolution(), "precomp_gemm").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PrepareError(empty).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(PrepareError(wrong).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudnnBackendTest, KeepsRefusalsAndTriesAnewAfterLackOfMemory) {
  FakeCudnn().fail_plan_allocation = true;
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution()), StatusCode::kResourceExhausted,
                      {"no memory for the plan"}));
  FakeCudnn().fail_plan_allocation = false;
  FakeCudnn().unsupported_engines = {0, 1, 2, 3};
  const Status first = PrepareError(MakeConvolution());
  EXPECT_EQ(first.code(), StatusCode::kUnsupported);
  FakeCudnn().unsupported_engines = {};
  EXPECT_EQ(PrepareError(MakeConvolution()).message(), first.message());
  UseNewContext();
  FakeCudnn().fail_handle = true;
  EXPECT_TRUE(
      IsError(PrepareError(MakeConvolution()), StatusCode::kUnavailable, {"set_memory_growth"}));
  FakeCudnn().fail_handle = false;
  RunAndExpectMatch(MakeConvolution());
}

// Of one thread, with many thousand plans: nothing for ThreadSanitizer, which takes a minute for
// it.
#if !defined(__SANITIZE_THREAD__)
TEST_F(CudnnBackendTest, PlansOfShapesThatChangeForEverAreForgotten) {
  const auto prepare = [&](int64_t batch) {
    Convolution c = MakeConvolution();
    c.batch = batch;
    return PrepareOk(c);
  };
  constexpr int64_t kMost = kMostPrepared;
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
}
#endif

TEST_F(CudnnBackendTest, ReportsFailuresOfLaunches) {
  const auto prepared = PrepareOk(MakeConvolution());
  Problem problem(MakeConvolution());
  void* const workspace = problem.NewBuffer(prepared->workspace_bytes()).data();
  FakeCudnn().fail_execution = true;
  EXPECT_TRUE(IsError(Launch(*prepared, problem.buffers(), workspace), StatusCode::kInternal,
                      {"cudnnBackendExecute of 'eng3_k2=7_k14=3'", "CUDNN_STATUS_EXECUTION_FAILED",
                       "execution switched off", "CUDNN_LOGLEVEL_DBG=3"}));
  FakeCudaSynchronize(caller_);  // what came before it was enqueued
  FakeCuda().fail_memset = true;
  EXPECT_TRUE(IsError(backend_->FillZero(workspace, 4, caller_), StatusCode::kInternal,
                      {"cuMemsetD8Async failed with CUDA_ERROR_LAUNCH_FAILED"}));
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

TEST(LibrariesTest, RefusesWhatIsNotThereOlderOrAnotherLibrary) {
  CudnnLibrary cudnn;
  CudaDriver cuda;
  setenv("TF_INTEROP_FAKE_CUDNN_VERSION", "8907", 1);
  EXPECT_TRUE(IsError(cudnn.Open(PathOf(&FakeCudnn)), StatusCode::kUnavailable,
                      {"Expected cuDNN 9.0 or newer, got 8.9.7", "TF_INTEROP_LIBCUDNN"}));
  unsetenv("TF_INTEROP_FAKE_CUDNN_VERSION");
  EXPECT_TRUE(IsError(cudnn.Open("/nowhere/libcudnn.so.9"), StatusCode::kUnavailable,
                      {"/nowhere/libcudnn.so.9", "Install cuDNN 9"}));
  EXPECT_TRUE(
      IsError(cuda.Open("/nowhere/libcuda.so.1"), StatusCode::kUnavailable, {"NVIDIA's driver"}));
  EXPECT_TRUE(
      IsError(cuda.Open("libm.so.6"), StatusCode::kUnavailable, {"'cuInit", "in 'libm.so.6'"}));
}

TEST(LibrariesTest, TakesTheOverrideAloneAndLooksBesideLoadedPythonPackages) {
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

TEST_F(CudnnBackendTest, HasOneBackendForAContext) {
  Backend *again = nullptr, *other = nullptr;
  ASSERT_TRUE(IsOk(FindCudnnBackend(FakeCudaMakeStream(context_), &again)));
  ASSERT_TRUE(IsOk(FindCudnnBackend(FakeCudaMakeStream(FakeCudaMakeContext()), &other)));
  EXPECT_EQ(again, backend_);
  EXPECT_NE(other, backend_);
}

TEST_F(CudnnBackendTest, ReusesStreamGroupsAndHasNoStreamForThoseOnTheCallers) {
  std::vector<std::unique_ptr<StreamGroup>> groups(80);
  std::set<Stream> streams;
  for (int round = 0; round < 2; ++round) {
    for (auto& group : groups) {
      ASSERT_TRUE(IsOk(backend_->Acquire(StreamGroupOptions(), &group)));
      streams.insert(group->stream());
    }
    EXPECT_EQ(streams.size(), groups.size());
    for (auto& group : groups) backend_->Release(std::move(group));
  }
  const int live = FakeCudaCounts().live_streams;
  EXPECT_TRUE(IsOk(WithGroup([](StreamGroup* group) {
    EXPECT_EQ(group->stream(), nullptr);
    return Status::Ok();
  })));
  EXPECT_EQ(FakeCudaCounts().live_streams, live);
}

// cuDNN's variant packs name addresses: one that was made for other addresses must not be taken.
TEST_F(CudnnBackendTest, LaunchesOnWhateverAddressesItIsGiven) {
  const auto prepared = PrepareOk(MakeFused());
  // More problems at once than packs are kept, in turns.
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
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors) << "packs beyond a few are freed";
}

TEST_F(CudnnBackendTest, LaunchesOnTheStreamThatItIsGiven) {
  const auto prepared = PrepareOk(MakeConvolution());
  std::unique_ptr<StreamGroup> group;
  ASSERT_TRUE(IsOk(backend_->Acquire(StreamGroupOptions(), &group)));
  const auto own = static_cast<CUstream>(group->stream());
  // Whatever goes to the stream that is held up cannot finish before the other one's work has.
  for (CUstream held_up : {caller_, own, caller_}) {
    CUstream stream = held_up == own ? caller_ : own;
    std::promise<void> finished;
    FakeCudaEnqueue(held_up, [&finished] { finished.get_future().wait(); });
    Problem problem(MakeConvolution());
    void* const workspace = problem.NewBuffer(prepared->workspace_bytes()).data();
    ASSERT_TRUE(
        IsOk(backend_->Launch(*prepared, problem.buffers(), workspace, group.get(), stream)));
    FakeCudaEnqueue(stream, [&finished] { finished.set_value(); });
    FakeCudaSynchronize(held_up);
    FakeCudaSynchronize(stream);
    problem.ExpectCorrect(kTolerance);
  }
  backend_->Release(std::move(group));
}

TEST_F(CudnnBackendTest, FillsWithZeros) {
  GuardedBuffer buffer(40);
  ASSERT_TRUE(IsOk(backend_->FillZero(buffer.data(), 40, caller_)));
  ASSERT_TRUE(IsOk(backend_->FillZero(nullptr, 0, caller_)));
  FakeCudaSynchronize(caller_);
  EXPECT_EQ(std::vector<unsigned char>(buffer.data(), buffer.data() + 40),
            std::vector<unsigned char>(40, 0));
  EXPECT_TRUE(buffer.IsIntact());
}

TEST_F(CudnnBackendTest, GivesAllThreadsTheSamePlan) {
  FakeCudnn().plan_delay_us = 2000;
  std::vector<std::shared_ptr<const PreparedConvolution>> prepared(4);
  InThreads(4, [&](int i) { prepared[i] = PrepareOk(MakeAsymmetric()); });
  for (const auto& each : prepared) EXPECT_EQ(each, prepared[0]);
  const int plans = FakeCudnnCounts().plans_finalized;
  EXPECT_EQ(PrepareOk(MakeAsymmetric()), prepared[0]);
  EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans) << "compiled a plan that was there";
}

TEST_F(CudnnBackendTest, LaunchesOnePlanFromSeveralThreads) {
  for (const char* algorithm : {"", "GEMM"}) {
    ExpectMatchesFromSeveralThreads(MakeFused(), *PrepareOk(MakeFused(), algorithm));
  }
}

}  // namespace
}  // namespace tf_interop
