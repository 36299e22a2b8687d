// The algorithms of the cudnn backend on stand-ins for libcuda and libcudnn: which are listed, the
// names of the legacy API, SM-count targets, serialized plans and filters transformed once, each
// with its numbers and with every way in which cuDNN refuses or fails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/algorithm_list.h"
#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/prepare_cudnn_convolution.h"
#include "cc_kernels/core/cudnn/serialized_convolution.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/convolution_problem.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"

namespace tf_interop {
namespace {

using Names = std::vector<std::string>;

constexpr ConvolutionKind kKinds[] = {ConvolutionKind::kForward, ConvolutionKind::kBackwardInput,
                                      ConvolutionKind::kBackwardFilter};

bool Holds(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Names WithPrefix(const Names& names, const std::string& prefix) {
  Names found;
  for (const std::string& name : names) {
    if (name.rfind(prefix, 0) == 0) found.push_back(name);
  }
  return found;
}

Convolution MakeNchw(ConvolutionKind kind = ConvolutionKind::kForward) {
  return MakeConvolution(kind, Layout::kNCHW);
}

std::vector<Convolution> WithEveryKindLayoutAndBFloat16(std::vector<Convolution> geometries) {
  std::vector<Convolution> all;
  for (Convolution c : WithEveryKindLayoutAndType(geometries)) {
    if (c.dtype != DataType::kHalf) continue;
    c.dtype = DataType::kBFloat16;
    all.push_back(c);
  }
  return all;
}

class CudnnAlgorithmTest : public CudnnBackendTest {
 protected:
  Names List(const Convolution& c, AlgorithmScope scope) {
    Names names;
    const Status status = backend_->ListAlgorithms(c, scope, &names);
    EXPECT_TRUE(status.ok()) << status.message();
    return names;
  }

  Status ListError(const Convolution& c, AlgorithmScope scope) {
    Names names;
    const Status status = backend_->ListAlgorithms(c, scope, &names);
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(names.empty());
    return status;
  }

  std::string SerializeOk(const PreparedConvolution& prepared) {
    std::string serialized;
    const Status status = prepared.Serialize(&serialized);
    EXPECT_TRUE(status.ok()) << status.message();
    return serialized;
  }

  Status RestoreError(const Convolution& c, const std::string& serialized) {
    std::shared_ptr<const PreparedConvolution> restored;
    const Status status = backend_->Restore(c, serialized, &restored);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(restored, nullptr);
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
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend_->Acquire(&group).ok());
    const Status transform =
        backend_->TransformFilter(prepared, filter, transformed.data(), group.get(), caller_);
    ASSERT_TRUE(transform.ok()) << transform.message();
    FakeCudaSynchronize(caller_);
    EXPECT_TRUE(transformed.IsIntact()) << "written beyond the transformed filter";
    filter = nullptr;
    buffers.transformed_filter = transformed.data();
    for (int launch = 0; launch < 2; ++launch) {
      std::memset(result.data(), 0xFF, c.result_elements() * SizeOf(c.dtype));
      const Status launched =
          backend_->Launch(prepared, buffers, workspace.data(), group.get(), caller_);
      ASSERT_TRUE(launched.ok()) << launched.message();
      FakeCudaSynchronize(caller_);
      problem.ExpectCorrect(&result, kTolerance);
    }
    backend_->Release(std::move(group));
    EXPECT_TRUE(workspace.IsIntact()) << "written beyond the workspace";
  }
};

// Lists

TEST_F(CudnnAlgorithmTest, ListsProposalsBestFirst) {
  EXPECT_EQ(List(MakeNchw(), AlgorithmScope::kHeuristic),
            (Names{"eng3_k2=7_k14=3", "eng1_k2=5", "eng2", "eng0"}));
  EXPECT_EQ(List(MakeConvolution(), AlgorithmScope::kHeuristic),
            (Names{"eng3_k2=7_k14=3", "eng1_k2=5", "eng2", "eng0", "nchw+eng3_k2=7_k14=3",
                   "nchw+eng1_k2=5", "nchw+eng2", "nchw+eng0"}));
  Convolution grouped = MakeNchw();
  grouped.group_count = 2;
  EXPECT_EQ(List(grouped, AlgorithmScope::kHeuristic), (Names{"eng1_k2=5", "eng2", "eng0"}))
      << "the learned heuristic does not know groups";
}

TEST_F(CudnnAlgorithmTest, ListsEveryEngineOfThisGpuAndLegacyNamesBehindProposals) {
  EXPECT_EQ(List(MakeNchw(), AlgorithmScope::kAll),
            (Names{"eng3_k2=7_k14=3", "eng1_k2=5", "eng2", "eng0", "eng1", "eng3", "eng4",
                   "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING",
                   "WINOGRAD", "WINOGRAD_NONFUSED"}));
  for (const auto kind : kKinds) {
    const Names names = List(MakeConvolution(kind), AlgorithmScope::kAll);
    for (const std::string& name : LegacyNamesOf(kind)) {
      EXPECT_TRUE(Holds(names, name)) << name;
      EXPECT_TRUE(Holds(names, "nchw+" + name)) << name;
    }
  }
}

TEST_F(CudnnAlgorithmTest, ListsEveryKnobMovedOnItsOwn) {
  const Names names = List(MakeNchw(), AlgorithmScope::kKnobs);
  EXPECT_EQ(WithPrefix(names, "eng1_k2="),
            (Names{"eng1_k2=5", "eng1_k2=0", "eng1_k2=1", "eng1_k2=2", "eng1_k2=3", "eng1_k2=4",
                   "eng1_k2=6", "eng1_k2=7", "eng1_k2=8", "eng1_k2=9"}));
  EXPECT_EQ(WithPrefix(names, "eng3_k14="),
            (Names{"eng3_k14=1", "eng3_k14=3", "eng3_k14=5", "eng3_k14=7"}));
  Names wide = WithPrefix(names, "eng3_k2=");
  EXPECT_EQ(wide.front(), "eng3_k2=7_k14=3");
  wide.erase(wide.begin());
  EXPECT_EQ(wide.size(), 16u) << "of 1001 values";
  EXPECT_EQ(wide.front(), "eng3_k2=0");
  EXPECT_EQ(wide.back(), "eng3_k2=1000");
  const Names all = List(MakeNchw(), AlgorithmScope::kAll);
  EXPECT_TRUE(std::equal(all.begin(), all.end(), names.begin())) << "all come before knobs";
}

TEST_F(CudnnAlgorithmTest, LeavesOutWhatCudnnRefusesBeforeItCompiles) {
  FakeCudnn().unsupported_knob_values = {3, 1000};
  const Names names = List(MakeNchw(), AlgorithmScope::kKnobs);
  EXPECT_FALSE(Holds(names, "eng1_k2=3"));
  EXPECT_FALSE(Holds(names, "eng3_k2=1000"));
  EXPECT_TRUE(Holds(names, "eng1_k2=4"));
  EXPECT_TRUE(WithPrefix(names, "eng5").empty()) << "an engine for another GPU";
}

TEST_F(CudnnAlgorithmTest, ListsWhatOnlyCompilingCanRefuse) {
  FakeCudnn().unsupported_engines = {3};
  EXPECT_TRUE(Holds(List(MakeNchw(), AlgorithmScope::kAll), "eng3"));
  EXPECT_NE(PrepareError(MakeNchw(), "eng3").message().find("engine switched off"),
            std::string::npos);
}

TEST_F(CudnnAlgorithmTest, CompilesNothingAndLeaksNothingWhileListing) {
  const int plans = FakeCudnnCounts().plans_finalized;
  const int descriptors = FakeCudnnCounts().live_descriptors;
  List(MakeFused(), AlgorithmScope::kKnobs);
  EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans);
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
}

TEST_F(CudnnAlgorithmTest, ListsEachNameOnceInTheSameOrder) {
  for (const Convolution& c : WithEveryKindLayoutAndType({Geometries()[0], Geometries()[7]})) {
    const Names names = List(c, AlgorithmScope::kKnobs);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
    EXPECT_EQ(List(c, AlgorithmScope::kKnobs), names);
    for (const std::string& name : names) {
      Algorithm algorithm;
      ASSERT_TRUE(ParseAlgorithm(name, &algorithm).ok()) << name;
      EXPECT_EQ(ToString(algorithm), name);
    }
  }
}

TEST_F(CudnnAlgorithmTest, ListsNoReducedPrecisionForFloatWhereTf32IsOff) {
  Convolution half = MakeNchw();
  half.dtype = DataType::kHalf;
  const Names half_names = List(half, AlgorithmScope::kKnobs);
  backend_->set_allow_tf32(false);
  for (const std::string& name : List(MakeConvolution(), AlgorithmScope::kKnobs)) {
    EXPECT_EQ(name.find("eng3"), std::string::npos) << name << " uses tensor cores";
    EXPECT_EQ(name.find("eng4"), std::string::npos) << name << " converts its operands";
  }
  EXPECT_TRUE(Holds(List(MakeConvolution(), AlgorithmScope::kAll), "WINOGRAD"));
  EXPECT_EQ(List(half, AlgorithmScope::kKnobs), half_names);
}

TEST_F(CudnnAlgorithmTest, ListsPaddedImagesBesideUnequalPaddings) {
  const Names names = List(MakeAsymmetric(), AlgorithmScope::kAll);
  for (const char* name : {"eng0", "pad+eng0", "pad+nchw+eng0", "pad+FFT", "pad+nchw+WINOGRAD"}) {
    EXPECT_TRUE(Holds(names, name)) << name;
  }
  for (const char* name : {"FFT", "nchw+FFT", "nchw+eng0", "split+eng0"}) {
    EXPECT_FALSE(Holds(names, name)) << name;
  }
}

TEST_F(CudnnAlgorithmTest, ListsSplitEpilogueBesideTheFusedOne) {
  const Names names = List(MakeFused(), AlgorithmScope::kAll);
  for (const char* name :
       {"eng0", "split+eng0", "nchw+eng0", "split+nchw+eng0", "split+GEMM", "split+nchw+GEMM"}) {
    EXPECT_TRUE(Holds(names, name)) << name;
  }
  EXPECT_FALSE(Holds(names, "GEMM"));
  EXPECT_TRUE(WithPrefix(List(MakeFused(), AlgorithmScope::kHeuristic), "split+").empty());
}

TEST_F(CudnnAlgorithmTest, ProposesSplitEpilogueWhereNothingIsProposedForTheFusedOne) {
  const Names expected = {
      "split+eng3_k2=7_k14=3",      "split+eng1_k2=5",      "split+eng2",      "split+eng0",
      "split+nchw+eng3_k2=7_k14=3", "split+nchw+eng1_k2=5", "split+nchw+eng2", "split+nchw+eng0"};
  FakeCudnn().no_proposals_from_operations = 2;
  EXPECT_EQ(List(MakeFused(), AlgorithmScope::kHeuristic), expected);
  FakeCudnn().no_proposals_from_operations = 0;
  FakeCudnn().no_fused_convolution = true;
  EXPECT_EQ(List(MakeFused(), AlgorithmScope::kHeuristic), expected);
}

TEST_F(CudnnAlgorithmTest, SaysWhyThereIsNothingToList) {
  FakeCudnn().no_proposals_from_operations = 1;
  const Status status = ListError(MakeConvolution(), AlgorithmScope::kHeuristic);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("forward float NHWC"), std::string::npos) << status.message();
  EXPECT_FALSE(List(MakeConvolution(), AlgorithmScope::kAll).empty());
}

TEST_F(CudnnAlgorithmTest, ListsNothingWhereMemoryIsMissing) {
  FakeCudnn().fail_engine_allocation = true;
  const Status status = ListError(MakeConvolution(), AlgorithmScope::kAll);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("no memory for the engine"), std::string::npos)
      << status.message();
}

TEST_F(CudnnAlgorithmTest, ListsNothingForConvolutionsThatComputeNothing) {
  Convolution c = MakeConvolution();
  c.batch = 0;
  EXPECT_EQ(ListError(c, AlgorithmScope::kAll).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudnnAlgorithmTest, EveryListedAlgorithmMatchesReference) {
  std::vector<Convolution> convolutions = {MakeConvolution(), MakeNchw(), MakeFused(),
                                           MakeAsymmetric()};
  for (const auto kind : kKinds) {
    for (const DataType dtype : {DataType::kFloat, DataType::kHalf, DataType::kBFloat16}) {
      Convolution c = MakeAsymmetric(kind);
      c.dtype = dtype;
      convolutions.push_back(c);
    }
  }
  for (const Convolution& c : convolutions) {
    for (const std::string& name : List(c, AlgorithmScope::kKnobs)) {
      const bool is_fft_of_nhwc = name.find("FFT") != std::string::npos &&
                                  name.find("nchw+") == std::string::npos &&
                                  name.find('+') != std::string::npos && c.layout == Layout::kNHWC;
      if (is_fft_of_nhwc) {
        EXPECT_EQ(PrepareError(c, name).code(), StatusCode::kUnsupported) << name;
        continue;
      }
      const auto prepared = PrepareOk(c, name);
      ASSERT_NE(prepared, nullptr) << name;
      ExpectMatchesReference(c, *prepared);
    }
  }
}

TEST_F(CudnnAlgorithmTest, MatchesReferenceInBFloat16) {
  for (const Convolution& c : WithEveryKindLayoutAndBFloat16(Geometries())) RunAndExpectMatch(c);
  FakeCudnn().no_asymmetric_padding = true;
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : WithEveryKindLayoutAndBFloat16({Geometries()[7]})) {
    RunAndExpectMatch(c);
  }
}

TEST_F(CudnnAlgorithmTest, SaysWhetherPrecisionIsReduced) {
  Convolution half = MakeNchw();
  half.dtype = DataType::kHalf;
  EXPECT_TRUE(PrepareOk(MakeNchw(), "eng3")->reduces_precision());
  EXPECT_TRUE(PrepareOk(MakeNchw(), "eng4")->reduces_precision());
  EXPECT_FALSE(PrepareOk(MakeNchw(), "eng1")->reduces_precision());
  EXPECT_FALSE(PrepareOk(half, "eng3")->reduces_precision()) << "half is what it was given";
}

// Names of the legacy API

TEST_F(CudnnAlgorithmTest, MatchesReferenceForEveryLegacyName) {
  std::vector<Convolution> convolutions = WithEveryKindLayoutAndType(Geometries());
  for (const Convolution& c : WithEveryKindLayoutAndBFloat16({Geometries()[0], Geometries()[9]})) {
    convolutions.push_back(c);
  }
  for (const Convolution& c : convolutions) {
    for (const std::string& name : LegacyNamesOf(c.kind)) {
      const auto prepared = PrepareOk(c, name);
      ASSERT_NE(prepared, nullptr) << name;
      EXPECT_EQ(prepared->algorithm().substr(prepared->algorithm().rfind('+') + 1), name);
      ExpectMatchesReference(c, *prepared);
    }
  }
}

TEST_F(CudnnAlgorithmTest, MatchesReferenceForLegacyNamesWithEveryEpilogue) {
  for (const Convolution& c : WithEveryEpilogue({Geometries()[0], Geometries()[7]})) {
    for (const char* name : {"IMPLICIT_PRECOMP_GEMM", "FFT"}) {
      const auto prepared = PrepareOk(c, name);
      ASSERT_NE(prepared, nullptr);
      EXPECT_NE(prepared->algorithm().find("split+"), std::string::npos) << prepared->algorithm();
      ExpectMatchesReference(c, *prepared);
    }
  }
}

TEST_F(CudnnAlgorithmTest, PinsLegacyNamesInTheFirstFormulationThatTakesThem) {
  EXPECT_EQ(PrepareOk(MakeConvolution(), "GEMM")->algorithm(), "GEMM");
  EXPECT_EQ(PrepareOk(MakeConvolution(), "FFT")->algorithm(), "nchw+FFT");
  EXPECT_EQ(PrepareOk(MakeFused(), "FFT")->algorithm(), "split+nchw+FFT");
  EXPECT_EQ(PrepareOk(MakeAsymmetric(), "WINOGRAD")->algorithm(), "pad+WINOGRAD");
  Convolution both = MakeAsymmetric();
  both.has_bias = true;
  EXPECT_EQ(PrepareOk(both, "FFT_TILING")->algorithm(), "pad+split+nchw+FFT_TILING");
  for (const char* name : {"nchw+GEMM", "FFT", "nchw+FFT"}) {
    const auto prepared = PrepareOk(MakeConvolution(), name);
    EXPECT_EQ(PrepareOk(MakeConvolution(), prepared->algorithm())->algorithm(),
              prepared->algorithm());
    ExpectMatchesReference(MakeConvolution(), *prepared);
  }
}

TEST_F(CudnnAlgorithmTest, RefusesLegacyNamesInFormulationsThatCannotTakeThem) {
  const Status fused = PrepareError(MakeFused(), "nchw+GEMM");
  EXPECT_EQ(fused.code(), StatusCode::kUnsupported);
  EXPECT_NE(fused.message().find("'split+' in front"), std::string::npos) << fused.message();
  const Status asymmetric = PrepareError(MakeAsymmetric(), "nchw+GEMM");
  EXPECT_EQ(asymmetric.code(), StatusCode::kUnsupported);
  Convolution nchw = MakeAsymmetric();
  nchw.layout = Layout::kNCHW;
  EXPECT_EQ(PrepareOk(nchw, "GEMM")->algorithm(), "pad+GEMM");
  FakeCudnn().unsupported_legacy = {"DIRECT"};
  const Status both = PrepareError(nchw, "DIRECT");
  EXPECT_NE(both.message().find("'pad+' in front"), std::string::npos) << both.message();
}

TEST_F(CudnnAlgorithmTest, RefusesLegacyNamesOfAnotherKind) {
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

TEST_F(CudnnAlgorithmTest, TellsTheLegacyApiWhichMathToUse) {
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
  backend_->set_allow_tf32(false);
  EXPECT_EQ(math_of(MakeConvolution()), CUDNN_FMA_MATH);
  EXPECT_FALSE(PrepareOk(MakeConvolution(), "GEMM")->reduces_precision());
}

TEST_F(CudnnAlgorithmTest, RefusesLegacyNamesThatCudnnCannotRun) {
  FakeCudnn().unsupported_legacy = {"WINOGRAD"};
  const Status status = PrepareError(MakeConvolution(), "WINOGRAD");
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  for (const char* part : {"cuDNN cannot run 'WINOGRAD' here", "WINOGRAD switched off",
                           "cudnnGetConvolutionForwardWorkspaceSize", "[nchw]"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST_F(CudnnAlgorithmTest, AsksCudnnForTheAlgorithmOfThatName) {
  int64_t batch = 0;
  for (const auto kind : kKinds) {
    for (const std::string& refused : LegacyNamesOf(kind)) {
      FakeCudnn().unsupported_legacy = {refused};
      for (const std::string& name : LegacyNamesOf(kind)) {
        std::shared_ptr<const PreparedConvolution> prepared;
        Convolution c = MakeNchw(kind);
        c.batch = ++batch;  // refusals are kept
        EXPECT_EQ(backend_->Prepare(c, name, kAmpleWorkspace, &prepared).ok(), name != refused)
            << ToString(kind) << " " << name;
      }
    }
    FakeCudnn().unsupported_legacy = {};
  }
}

TEST_F(CudnnAlgorithmTest, KeepsWorkspaceOfLegacyNamesWithinLimit) {
  const Convolution c = MakeConvolution();
  const size_t filter_bytes = 1024;
  EXPECT_EQ(PrepareOk(c, "GEMM", filter_bytes + 2048)->workspace_bytes(), filter_bytes + 2048);
  EXPECT_EQ(PrepareOk(c, "IMPLICIT_GEMM", filter_bytes)->workspace_bytes(), filter_bytes);
  const Status status = PrepareError(c, "GEMM", filter_bytes + 2047);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("Expected at most 2047 bytes of workspace for 'GEMM', got 2048"),
            std::string::npos)
      << status.message();
}

TEST_F(CudnnAlgorithmTest, TriesLegacyNamesAnewAfterLackOfMemory) {
  const int descriptors = FakeCudnnCounts().live_descriptors;
  FakeCudnn().fail_plan_allocation = true;
  const Status status = PrepareError(MakeConvolution(), "GEMM");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("no memory for the algorithm"), std::string::npos);
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
  FakeCudnn().fail_plan_allocation = false;
  ExpectMatchesReference(MakeConvolution(), *PrepareOk(MakeConvolution(), "GEMM"));
}

TEST_F(CudnnAlgorithmTest, ReportsFailuresOfLegacyLaunches) {
  for (const auto kind : kKinds) {
    const Convolution c = MakeConvolution(kind);
    const auto prepared = PrepareOk(c, "WINOGRAD");
    Problem problem(c);
    Buffer result = problem.MakeResult();
    Buffer workspace(prepared->workspace_bytes());
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend_->Acquire(&group).ok());
    FakeCudnn().fail_execution = true;
    const Status status = backend_->Launch(*prepared, problem.Buffers(&result), workspace.data(),
                                           group.get(), caller_);
    FakeCudnn().fail_execution = false;
    backend_->Release(std::move(group));
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    for (const char* part : {"cudnnConvolution", "with 'WINOGRAD'", "execution switched off"}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    FakeCudaSynchronize(caller_);
  }
}

TEST_F(CudnnAlgorithmTest, GoesOnWithoutTheLegacyApi) {
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
    return PrepareCudnnConvolution(*driver, library, handle, MakeConvolution(), algorithm,
                                   kAmpleWorkspace, {}, &prepared);
  };
  const Status legacy = prepare("GEMM");
  EXPECT_EQ(legacy.code(), StatusCode::kUnsupported);
  for (const char* part :
       {"Expected 'cudnnCreateFilterDescriptor'", "without_legacy", "cuDNN 9."}) {
    EXPECT_NE(legacy.message().find(part), std::string::npos) << legacy.message();
  }
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

TEST_F(CudnnAlgorithmTest, LaunchesOneLegacyConvolutionFromSeveralThreads) {
  const Convolution c = MakeFused();
  const auto prepared = PrepareOk(c, "GEMM");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      Problem problem(c);
      for (int round = 0; round < 50; ++round) {
        Buffer result = problem.MakeResult();
        Buffer workspace(prepared->workspace_bytes());
        std::unique_ptr<StreamGroup> group;
        ASSERT_TRUE(backend_->Acquire(&group).ok());
        const auto stream = static_cast<CUstream>(group->stream());
        ASSERT_TRUE(
            backend_
                ->Launch(*prepared, problem.Buffers(&result), workspace.data(), group.get(), stream)
                .ok());
        backend_->Release(std::move(group));
        FakeCudaSynchronize(stream);
        problem.ExpectCorrect(&result, kTolerance);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// SM-count targets

TEST_F(CudnnAlgorithmTest, PinsSmCountTarget) {
  for (const char* name : {"eng1_k2=5_sms=66", "nchw+eng3_k2=1_k14=5_sms=1"}) {
    const auto prepared = PrepareOk(MakeConvolution(), name);
    ASSERT_NE(prepared, nullptr);
    EXPECT_EQ(prepared->algorithm(), name);
    ExpectMatchesReference(MakeConvolution(), *prepared);
  }
  EXPECT_EQ(PrepareOk(MakeConvolution(), "eng1_sms=8")->algorithm(), "eng1_k2=5_sms=8");
}

TEST_F(CudnnAlgorithmTest, KeepsSmCountTargetThatCannotBeReadBack) {
  FakeCudnn().no_sm_count_read_back = true;
  EXPECT_EQ(PrepareOk(MakeConvolution(), "eng1_sms=8")->algorithm(), "eng1_k2=5_sms=8");
  EXPECT_EQ(PrepareOk(MakeConvolution(), "eng1")->algorithm(), "eng1_k2=5");
}

TEST_F(CudnnAlgorithmTest, RefusesSmCountTargetThatTheEngineDoesNotTake) {
  const Status refused = PrepareError(MakeConvolution(), "eng2_sms=66");
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  for (const char* part : {"cuDNN cannot run 'eng2_sms=66' here", "engine with an SM-count target",
                           "try it without '_sms=66'"}) {
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
  }
  FakeCudnn().replaced_sm_count = 60;
  const Status replaced = PrepareError(MakeConvolution(), "eng1_sms=66");
  EXPECT_EQ(replaced.code(), StatusCode::kUnsupported);
  EXPECT_NE(replaced.message().find("the SM-count target is 60 in place of 66"), std::string::npos)
      << replaced.message();
}

// Serialized plans

TEST_F(CudnnAlgorithmTest, RestoresWhatItSerialized) {
  std::vector<Convolution> convolutions = {MakeConvolution(), MakeFused(), MakeAsymmetric()};
  for (const auto kind : kKinds) convolutions.push_back(MakeAsymmetric(kind));
  for (const Convolution& c : convolutions) {
    Names names = List(c, AlgorithmScope::kHeuristic);
    names.push_back("eng1_sms=66");
    if (HasEpilogue(c)) names.push_back("split+nchw+eng1");
    for (const std::string& name : names) {
      const auto prepared = PrepareOk(c, name);
      const std::string serialized = SerializeOk(*prepared);
      const int plans = FakeCudnnCounts().plans_finalized;
      std::shared_ptr<const PreparedConvolution> restored;
      const Status status = backend_->Restore(c, serialized, &restored);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans) << "compiled anew";
      EXPECT_EQ(restored->algorithm(), prepared->algorithm());
      EXPECT_EQ(restored->workspace_bytes(), prepared->workspace_bytes());
      EXPECT_EQ(restored->reduces_precision(), prepared->reduces_precision());
      EXPECT_EQ(restored->transformed_filter_bytes(), prepared->transformed_filter_bytes());
      ExpectMatchesReference(c, *restored);
      if (restored->transformed_filter_bytes() != 0) {
        ExpectMatchesWithTransformedFilter(c, *restored);
      }
    }
  }
}

TEST_F(CudnnAlgorithmTest, RefusesSerializedTextThatIsDamaged) {
  const Convolution c = MakeConvolution();
  const std::string sound = SerializeOk(*PrepareOk(c, "eng1"));
  const int descriptors = FakeCudnnCounts().live_descriptors;
  for (size_t i = 0; i < sound.size(); ++i) {
    EXPECT_EQ(RestoreError(c, sound.substr(0, i)).code(), StatusCode::kInvalidArgument) << i;
    std::string changed = sound;
    changed[i] ^= 1;
    const Status status = RestoreError(c, changed);
    // A change to its version makes it a text of another version.
    const bool is_of_version = i == sound.find(' ') + 1 || i == sound.find('\n');
    EXPECT_EQ(status.code(),
              is_of_version ? StatusCode::kUnsupported : StatusCode::kInvalidArgument)
        << i << status.message();
  }
  EXPECT_EQ(RestoreError(c, "{}").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
}

TEST_F(CudnnAlgorithmTest, RefusesSerializedTextFromElsewhere) {
  const Convolution c = MakeConvolution();
  const std::string own = SerializeOk(*PrepareOk(c, "eng1"));
  Convolution other = c;
  other.batch = 3;
  const Status convolution = RestoreError(other, own);
  EXPECT_EQ(convolution.code(), StatusCode::kUnsupported);
  for (const char* part : {"image 3x6x5x4", "got one for", "image 2x6x5x4", "'eng1_k2=5'"}) {
    EXPECT_NE(convolution.message().find(part), std::string::npos) << convolution.message();
  }
  Convolution leaky = c;
  leaky.activation = Activation::kLeakyRelu;
  const std::string slope = SerializeOk(*PrepareOk(leaky, "eng1"));
  leaky.leaky_relu_alpha = 0.3f;
  EXPECT_EQ(RestoreError(leaky, slope).code(), StatusCode::kUnsupported);

  SerializedConvolution parts;
  ASSERT_TRUE(ReadSerialized(own, &parts).ok());
  parts.cudnn_version = 91002;
  const Status version = RestoreError(c, WriteSerialized(parts));
  EXPECT_EQ(version.code(), StatusCode::kUnsupported);
  EXPECT_NE(version.message().find("got one by cuDNN 9.10.2"), std::string::npos)
      << version.message();

  for (const auto refusal :
       {CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH, CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH}) {
    FakeCudnn().refuses_serialized = refusal;
    const Status status = RestoreError(c, own);
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("serialized elsewhere"), std::string::npos) << status.message();
  }
}

TEST_F(CudnnAlgorithmTest, RefusesSerializedTextThatIsNotWhatItSays) {
  const Convolution c = MakeConvolution();
  SerializedConvolution sound;
  ASSERT_TRUE(ReadSerialized(SerializeOk(*PrepareOk(c, "eng1")), &sound).ok());
  const auto error = [&](auto change) {
    SerializedConvolution parts = sound;
    change(&parts);
    return RestoreError(c, WriteSerialized(parts));
  };
  EXPECT_EQ(error([](auto* parts) { parts->plans[0] = "{}"; }).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(error([](auto* parts) { parts->plans.clear(); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(error([](auto* parts) { parts->plans.push_back("{}"); }).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(error([](auto* parts) { parts->algorithm = "eng"; }).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(error([](auto* parts) { parts->algorithm = "GEMM"; }).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(error([](auto* parts) { parts->algorithm = "pad+eng1_k2=5"; }).code(),
            StatusCode::kUnsupported);
  const Status engine = error([](auto* parts) { parts->algorithm = "eng1_k2=6"; });
  EXPECT_EQ(engine.code(), StatusCode::kUnsupported);
  EXPECT_NE(engine.message().find("knob 2 is 5 in place of 6"), std::string::npos)
      << engine.message();
}

TEST_F(CudnnAlgorithmTest, RestoresNothingWhereMemoryIsMissing) {
  const Convolution c = MakeConvolution();
  const std::string serialized = SerializeOk(*PrepareOk(c, "eng1"));
  FakeCudnn().fail_plan_allocation = true;
  EXPECT_EQ(RestoreError(c, serialized).code(), StatusCode::kResourceExhausted);
  FakeCudnn().fail_plan_allocation = false;
  std::shared_ptr<const PreparedConvolution> restored;
  EXPECT_TRUE(backend_->Restore(c, serialized, &restored).ok());
}

TEST_F(CudnnAlgorithmTest, RestoresNoReducedPrecisionWhereTf32IsOff) {
  const std::string serialized = SerializeOk(*PrepareOk(MakeConvolution(), "eng3"));
  backend_->set_allow_tf32(false);
  const Status status = RestoreError(MakeConvolution(), serialized);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("TF32"), std::string::npos) << status.message();
}

TEST_F(CudnnAlgorithmTest, SerializesNothingThatCudnnHasNoTextFor) {
  std::string serialized;
  const Status legacy = PrepareOk(MakeConvolution(), "GEMM")->Serialize(&serialized);
  EXPECT_EQ(legacy.code(), StatusCode::kUnsupported);
  EXPECT_NE(legacy.message().find("'GEMM'"), std::string::npos) << legacy.message();
  FakeCudnn().no_serialization = true;
  const Status engine = PrepareOk(MakeConvolution(), "eng1")->Serialize(&serialized);
  EXPECT_EQ(engine.code(), StatusCode::kUnsupported);
  EXPECT_NE(engine.message().find("'eng1_k2=5'"), std::string::npos) << engine.message();
  EXPECT_TRUE(serialized.empty());
}

// Filters that are transformed once

TEST_F(CudnnAlgorithmTest, ReadsTransformedFilterInPlaceOfTransforming) {
  for (const Convolution& c : WithEveryKindLayoutAndType(Geometries())) {
    if (c.kind == ConvolutionKind::kBackwardFilter) continue;
    for (const char* name : {"eng1", "ALGO_1", "IMPLICIT_PRECOMP_GEMM"}) {
      std::shared_ptr<const PreparedConvolution> prepared;
      if (!backend_->Prepare(c, name, kAmpleWorkspace, &prepared).ok()) continue;
      if (prepared->transformed_filter_bytes() == 0) continue;
      EXPECT_EQ(prepared->transformed_filter_bytes(), c.filter_elements() * SizeOf(c.dtype));
      const int before = FakeCudnnCounts().copies;
      ExpectMatchesReference(c, *prepared);
      const int copies_of_launch = FakeCudnnCounts().copies - before;
      ExpectMatchesWithTransformedFilter(c, *prepared);
      EXPECT_EQ(FakeCudnnCounts().copies - before - copies_of_launch,
                1 + 2 * (copies_of_launch - 1))
          << "one transformation, and two launches without one";
    }
  }
}

TEST_F(CudnnAlgorithmTest, ReadsTransformedFilterInEveryFormulation) {
  Convolution c = MakeAsymmetric();
  c.has_bias = true;
  for (const char* name : {"eng1", "split+eng1", "pad+eng1", "pad+split+GEMM", "pad+nchw+eng1",
                           "pad+split+nchw+eng1"}) {
    ExpectMatchesWithTransformedFilter(c, *PrepareOk(c, name));
  }
}

TEST_F(CudnnAlgorithmTest, TransformsNoFilterThatIsReadAsItIsOrIsTheResult) {
  Convolution ordered = MakeConvolution();
  ordered.group_count = ordered.output_channels = ordered.image_channels;
  ordered.filter_height = ordered.filter_width = 1;
  CompleteSame(&ordered);
  for (const Convolution& c : {ordered, MakeConvolution(ConvolutionKind::kBackwardFilter)}) {
    const auto prepared = PrepareOk(c);
    EXPECT_EQ(prepared->transformed_filter_bytes(), 0u);
    Buffer filter(1024), transformed(1024);
    std::unique_ptr<StreamGroup> group;
    ASSERT_TRUE(backend_->Acquire(&group).ok());
    const Status status = backend_->TransformFilter(*prepared, filter.data(), transformed.data(),
                                                    group.get(), caller_);
    backend_->Release(std::move(group));
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(prepared->algorithm()), std::string::npos) << status.message();
  }
}

TEST_F(CudnnAlgorithmTest, RefusesFiltersThatAreNotAligned) {
  const Convolution c = MakeConvolution();
  const auto prepared = PrepareOk(c);
  Problem problem(c);
  Buffer result = problem.MakeResult();
  Buffer workspace(prepared->workspace_bytes());
  Buffer transformed(prepared->transformed_filter_bytes() + 16);
  std::unique_ptr<StreamGroup> group;
  ASSERT_TRUE(backend_->Acquire(&group).ok());
  ConvolutionBuffers buffers = problem.Buffers(&result);
  const auto transform = [&](const void* filter, void* to) {
    return backend_->TransformFilter(*prepared, filter, to, group.get(), caller_).code();
  };
  EXPECT_EQ(transform(nullptr, transformed.data()), StatusCode::kInvalidArgument);
  EXPECT_EQ(transform(buffers.inputs[1], transformed.data() + 4), StatusCode::kInvalidArgument);
  buffers.transformed_filter = transformed.data() + 4;
  const Status launch =
      backend_->Launch(*prepared, buffers, workspace.data(), group.get(), caller_);
  EXPECT_EQ(launch.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(launch.message().find("transformed filter"), std::string::npos) << launch.message();
  backend_->Release(std::move(group));
}

// Names

TEST(AlgorithmNameTest, ReadsWhatItWrites) {
  for (const char* text : {"WINOGRAD", "nchw+FFT", "pad+split+nchw+WINOGRAD_NONFUSED", "ALGO_0",
                           "eng4_sms=1", "eng4_k2=1_sms=66", "pad+eng0_k0=-3_sms=2147483647"}) {
    Algorithm algorithm;
    ASSERT_TRUE(ParseAlgorithm(text, &algorithm).ok()) << text;
    EXPECT_EQ(ToString(algorithm), text);
  }
}

TEST(AlgorithmNameTest, RefusesWhatIsNoName) {
  for (const char* text : {"winograd",
                           "ALGO_2",
                           "WINOGRAD_k2=1",
                           "WINOGRAD_sms=4",
                           "nchw+pad+FFT",
                           "nchw+",
                           "FFT ",
                           "eng4_sms=0",
                           "eng4_sms=",
                           "eng4_sms=-1",
                           "eng4_sms=01",
                           "eng4_sms=2147483648",
                           "eng4_sms=1_k2=3",
                           "eng4_sms=1_sms=1",
                           "eng4sms=1",
                           "eng4_k2=-0",
                           "eng4_k2147483648=1",
                           "eng9223372036854775808",
                           "eng4_k2=9223372036854775808",
                           ""}) {
    Algorithm algorithm;
    const Status status = ParseAlgorithm(text, &algorithm);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find("_sms=<count>"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace tf_interop
