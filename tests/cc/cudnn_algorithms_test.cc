// Names of cuDNN's algorithms, engines and legacy ones: which of them are listed, what each is put
// to cuDNN as, and how cuDNN refuses them, on stand-ins for libcuda and libcudnn.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/algorithm_list.h"
#include "cc_kernels/core/cudnn/convolution.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

using CudnnAlgorithmsTest = CudnnTest;

TEST(AlgorithmNameTest, ReadsWhatItWritesAndRefusesWhatIsNoName) {
  Algorithm algorithm;
  for (const char* text : {"WINOGRAD", "nchw+FFT", "split+nchw+WINOGRAD_NONFUSED", "ALGO_0", "eng0",
                           "eng12_k2=3_k13=-1", "split+eng7_k0=-3"}) {
    ASSERT_TRUE(IsOk(ParseAlgorithm(text, &algorithm)));
    EXPECT_EQ(ToString(algorithm), text);
  }
  ASSERT_TRUE(IsOk(ParseAlgorithm("eng4_k13=1_k2=0", &algorithm)));
  EXPECT_EQ(ToString(algorithm), "eng4_k2=0_k13=1");
  for (const char* text : {"winograd",
                           "ALGO_2",
                           "WINOGRAD_k2=1",
                           "nchw+split+FFT",
                           "pad+FFT",
                           "nchw+",
                           "FFT ",
                           "eng",
                           "eng4_",
                           "eng4_k2",
                           "eng04",
                           "eng4_k2=",
                           "eng4_k2=1_k2=1",
                           "eng4 ",
                           "eng4_sms=1",
                           "eng4_k2=1_sms=66",
                           "eng4_k2=-0",
                           "eng4_k2147483648=1",
                           "eng9223372036854775808",
                           "eng4_k2=9223372036854775808",
                           ""}) {
    EXPECT_TRUE(IsError(ParseAlgorithm(text, &algorithm), StatusCode::kInvalidArgument,
                        {"eng<index>", std::string("'") + text + "'"}));
  }
}

TEST(FormulationsTest, LeavesOutWhatChangesNothing) {
  const auto words = [](const Convolution& c) {
    Names all;
    for (const Formulation& formulation : FormulationsOf(c)) all.push_back(ToString(formulation));
    return all;
  };
  EXPECT_EQ(words(MakeNchw()), Names{"plain"});
  EXPECT_EQ(words(MakeAsymmetric()), (Names{"plain", "nchw"}));
  EXPECT_EQ(words(MakeFused()), (Names{"plain", "split", "nchw", "split+nchw"}));
}

Names WithPrefix(const Names& names, const std::string& prefix) {
  Names found;
  for (const std::string& name : names) {
    if (name.rfind(prefix, 0) == 0) found.push_back(name);
  }
  return found;
}

TEST_F(CudnnAlgorithmsTest, ListsProposalsThenEnginesAndLegacyNamesThenKnobs) {
  const Names proposals = {"eng3_k2=7_k14=3", "eng1_k2=5", "eng2", "eng0"};
  EXPECT_EQ(List(MakeNchw(), AlgorithmScope::kHeuristic), proposals);
  Names with_nchw = proposals;
  for (const std::string& name : proposals) with_nchw.push_back("nchw+" + name);
  EXPECT_EQ(List(MakeConvolution(), AlgorithmScope::kHeuristic), with_nchw);
  Convolution grouped = MakeNchw();
  grouped.group_count = 2;
  EXPECT_EQ(List(grouped, AlgorithmScope::kHeuristic), (Names{"eng1_k2=5", "eng2", "eng0"}))
      << "the learned heuristic does not know groups";

  const Names all = List(MakeNchw(), AlgorithmScope::kAll);
  EXPECT_EQ(all, (Names{"eng3_k2=7_k14=3", "eng1_k2=5", "eng2", "eng0", "eng1", "eng3", "eng4",
                        "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT",
                        "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"}));
  for (const auto kind : kKinds) {
    const Names names = List(MakeConvolution(kind), AlgorithmScope::kAll);
    for (const std::string& name : LegacyNamesOf(kind)) {
      EXPECT_TRUE(Holds(names, name)) << name;
      EXPECT_TRUE(Holds(names, "nchw+" + name)) << name;
    }
  }

  const Names knobs = List(MakeNchw(), AlgorithmScope::kKnobs);
  EXPECT_TRUE(std::equal(all.begin(), all.end(), knobs.begin()));
  EXPECT_EQ(WithPrefix(knobs, "eng1_k2="),
            (Names{"eng1_k2=5", "eng1_k2=0", "eng1_k2=1", "eng1_k2=2", "eng1_k2=3", "eng1_k2=4",
                   "eng1_k2=6", "eng1_k2=7", "eng1_k2=8", "eng1_k2=9"}));
  EXPECT_EQ(WithPrefix(knobs, "eng3_k14="),
            (Names{"eng3_k14=1", "eng3_k14=3", "eng3_k14=5", "eng3_k14=7"}));
  const Names wide = WithPrefix(knobs, "eng3_k2=");
  EXPECT_EQ(wide.size(), 1 + 16u) << "the proposal, and 16 of 1001 values";
  EXPECT_EQ(wide[1], "eng3_k2=0");
  EXPECT_EQ(wide.back(), "eng3_k2=1000");
}

TEST_F(CudnnAlgorithmsTest, ListsEachNameOnceInTheSameOrderAndCompilesNothing) {
  const int plans = FakeCudnnCounts().plans_finalized;
  const int descriptors = FakeCudnnCounts().live_descriptors;
  for (const Convolution& c : WithEveryKindAndLayout({Geometries()[0], Geometries()[7]})) {
    const Names names = List(c, AlgorithmScope::kKnobs);
    EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
    EXPECT_EQ(List(c, AlgorithmScope::kKnobs), names);
    for (const std::string& name : names) {
      Algorithm algorithm;
      ASSERT_TRUE(IsOk(ParseAlgorithm(name, &algorithm)));
      EXPECT_EQ(ToString(algorithm), name);
    }
  }
  EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans);
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
}

// What cuDNN refuses before it compiles is left out, and what it refuses when it compiles is not.
TEST_F(CudnnAlgorithmsTest, ListsWhatTheSwitchesAndTheFormAllow) {
  using F = FakeCudnnSwitches;
  Convolution half = MakeNchw();
  half.dtype = DataType::kHalf;
  const struct {
    Convolution c;
    AlgorithmScope scope;
    bool allow_tf32;
    void (*change)(F*);
    Names listed, not_listed;
  } cases[] = {
      {MakeNchw(),
       AlgorithmScope::kKnobs,
       true,
       [](F* fake) { fake->unsupported_knob_values = {3, 1000}; },
       {"eng1_k2=4"},
       {"eng1_k2=3", "eng3_k2=1000", "eng5"}},
      {MakeNchw(),
       AlgorithmScope::kAll,
       true,
       [](F* fake) { fake->unsupported_engines = {3}; },
       {"eng3"},
       {}},
      {MakeConvolution(),
       AlgorithmScope::kKnobs,
       false,
       [](F*) {},
       {"WINOGRAD", "eng1", "nchw+eng2"},
       {"eng3", "eng3_k2=7_k14=3", "nchw+eng3", "eng4", "nchw+eng4"}},
      {half, AlgorithmScope::kAll, false, [](F*) {}, {"eng3", "eng4"}, {}},
      {MakeAsymmetric(),
       AlgorithmScope::kAll,
       true,
       [](F*) {},
       {"eng0", "nchw+eng0"},
       {"FFT", "nchw+FFT", "split+eng0"}},
      {MakeFused(),
       AlgorithmScope::kAll,
       true,
       [](F*) {},
       {"eng0", "split+eng0", "nchw+eng0", "split+nchw+eng0", "split+GEMM", "split+nchw+GEMM"},
       {"GEMM"}},
      {MakeFused(), AlgorithmScope::kHeuristic, true, [](F*) {}, {"eng0"}, {"split+eng0"}},
      {MakeFused(),
       AlgorithmScope::kHeuristic,
       true,
       [](F* fake) { fake->no_proposals_from_operations = 2; },
       {"split+eng3_k2=7_k14=3", "split+nchw+eng0"},
       {"eng0"}},
      {MakeFused(),
       AlgorithmScope::kHeuristic,
       true,
       [](F* fake) { fake->no_fused_convolution = true; },
       {"split+eng3_k2=7_k14=3", "split+nchw+eng0"},
       {"eng0"}},
      {MakeConvolution(),
       AlgorithmScope::kAll,
       true,
       [](F* fake) { fake->no_proposals_from_operations = 1; },
       {"eng0"},
       {}},
  };
  for (const auto& each : cases) {
    FakeCudnn() = F();
    each.change(&FakeCudnn());
    options_.allow_tf32 = each.allow_tf32;
    const Names names = List(each.c, each.scope);
    for (const std::string& name : each.listed) EXPECT_TRUE(Holds(names, name)) << name;
    for (const std::string& name : each.not_listed) EXPECT_FALSE(Holds(names, name)) << name;
  }
  FakeCudnn() = F();
  FakeCudnn().no_proposals_from_operations = 1;
  EXPECT_TRUE(IsError(ListError(MakeConvolution(), AlgorithmScope::kHeuristic),
                      StatusCode::kUnsupported, {"forward float NHWC"}));
  FakeCudnn().fail_engine_allocation = true;
  EXPECT_TRUE(IsError(ListError(MakeConvolution(), AlgorithmScope::kAll),
                      StatusCode::kResourceExhausted, {"no memory for the engine"}));
  Convolution empty = MakeConvolution();
  empty.batch = 0;
  EXPECT_EQ(ListError(empty, AlgorithmScope::kAll).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudnnAlgorithmsTest, EveryListedAlgorithmMatchesReference) {
  std::vector<Convolution> convolutions = {MakeConvolution(), MakeNchw(), MakeFused()};
  for (const auto kind : kKinds) convolutions.push_back(MakeAsymmetric(kind));
  for (const Convolution& c : convolutions) {
    for (const std::string& name : List(c, AlgorithmScope::kKnobs)) {
      const bool is_fft_of_nhwc = name.find("FFT") != std::string::npos &&
                                  name.find("split+FFT") == 0 && c.layout == Layout::kNHWC;
      if (is_fft_of_nhwc) {
        EXPECT_EQ(PrepareError(c, name).code(), StatusCode::kUnsupported) << name;
      } else {
        RunAndExpectMatch(c, name);
      }
    }
  }
}

// ---- The legacy API.

TEST_F(CudnnAlgorithmsTest, PinsLegacyNamesInTheFirstFormulationThatTakesThem) {
  for (const auto& [c, name, runs] : std::vector<std::tuple<Convolution, std::string, std::string>>{
           {MakeConvolution(), "GEMM", "GEMM"},
           {MakeConvolution(), "nchw+GEMM", "nchw+GEMM"},
           {MakeConvolution(), "FFT", "nchw+FFT"},
           {MakeFused(), "FFT", "split+nchw+FFT"}}) {
    EXPECT_EQ(RunAndExpectMatch(c, name), runs);
    EXPECT_EQ(PrepareOk(c, runs)->algorithm(), runs);
  }
}

TEST_F(CudnnAlgorithmsTest, RefusesLegacyNamesThatCannotRunWithTheReason) {
  FakeCudnn().unsupported_legacy = {"WINOGRAD"};
  const auto forward = ConvolutionKind::kForward, input = ConvolutionKind::kBackwardInput;
  const auto filter = ConvolutionKind::kBackwardFilter;
  const struct {
    Convolution c;
    const char* name;
    Names parts;
  } cases[] = {
      {MakeFused(), "nchw+GEMM", {"'split+' in front"}},
      {MakeAsymmetric(), "GEMM", {"equal paddings"}},
      {MakeConvolution(forward), "ALGO_0", {"legacy algorithm of a forward", "FFT_TILING"}},
      {MakeConvolution(input), "ALGO_3", {"legacy algorithm of a backward-input", "another kind"}},
      {MakeConvolution(input), "nchw+GEMM", {"legacy algorithm of a backward-input"}},
      {MakeConvolution(filter), "IMPLICIT_GEMM", {"legacy algorithm of a backward-filter"}},
      {MakeConvolution(),
       "WINOGRAD",
       {"cuDNN cannot run 'WINOGRAD' here", "WINOGRAD switched off",
        "cudnnGetConvolutionForwardWorkspaceSize", "[nchw]"}},
  };
  for (const auto& each : cases) {
    EXPECT_TRUE(IsError(PrepareError(each.c, each.name), StatusCode::kUnsupported, each.parts));
  }
  const size_t filter_bytes = 1024;
  EXPECT_EQ(PrepareOk(MakeConvolution(), "GEMM", filter_bytes + 2048)->workspace_bytes(),
            filter_bytes + 2048);
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "GEMM", filter_bytes + 2047),
                      StatusCode::kUnsupported, {"at most 2047 bytes", "'GEMM', got 2048"}));
}

TEST_F(CudnnAlgorithmsTest, AsksCudnnForTheAlgorithmOfThatName) {
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

TEST_F(CudnnAlgorithmsTest, TellsTheLegacyApiWhichMathToUse) {
  const struct {
    DataType dtype;
    bool allow_tf32;
    cudnnMathType_t math;
    bool reduces_precision;
  } cases[] = {{DataType::kFloat, true, CUDNN_DEFAULT_MATH, true},
               {DataType::kHalf, true, CUDNN_TENSOR_OP_MATH, false},
               {DataType::kFloat, false, CUDNN_FMA_MATH, false},
               {DataType::kDouble, false, CUDNN_DEFAULT_MATH, false}};
  for (const auto& each : cases) {
    Convolution c = MakeConvolution();
    c.dtype = each.dtype;
    options_.allow_tf32 = each.allow_tf32;
    EXPECT_EQ(PrepareOk(c, "GEMM")->reduces_precision(), each.reduces_precision) << ToString(c);
    EXPECT_EQ(FakeCudnnCounts().last_legacy_math_type, each.math);
  }
}

TEST_F(CudnnAlgorithmsTest, RefusesTheLegacyAlgorithmsThatAddUpInAnyOrder) {
  options_.deterministic = true;
  for (const auto& [kind, names] : std::vector<std::pair<ConvolutionKind, Names>>{
           {ConvolutionKind::kForward, {}},
           {ConvolutionKind::kBackwardInput, {"ALGO_0"}},
           {ConvolutionKind::kBackwardFilter, {"ALGO_0", "ALGO_3"}}}) {
    for (const std::string& name : LegacyNamesOf(kind)) {
      std::shared_ptr<const PreparedConvolution> prepared;
      EXPECT_EQ(backend_->Prepare(MakeConvolution(kind), name, options_, &prepared).code(),
                Holds(names, name) ? StatusCode::kUnsupported : StatusCode::kOk)
          << name;
    }
  }
}

TEST_F(CudnnAlgorithmsTest, ReportsFailuresOfTheLegacyApiAndTriesAnewAfterLackOfMemory) {
  const int descriptors = FakeCudnnCounts().live_descriptors;
  FakeCudnn().fail_plan_allocation = true;
  EXPECT_TRUE(IsError(PrepareError(MakeConvolution(), "GEMM"), StatusCode::kResourceExhausted,
                      {"no memory for the algorithm"}));
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
  FakeCudnn().fail_plan_allocation = false;
  RunAndExpectMatch(MakeConvolution(), "GEMM");
  FakeCudnn().fail_execution = true;
  for (const auto kind : kKinds) {
    const auto prepared = PrepareOk(MakeConvolution(kind), "WINOGRAD");
    Problem problem(MakeConvolution(kind));
    EXPECT_TRUE(IsError(
        Launch(*prepared, problem.buffers(), problem.NewBuffer(prepared->workspace_bytes()).data()),
        StatusCode::kInternal, {"cudnnConvolution", "with 'WINOGRAD'", "execution switched off"}));
    FakeCudaSynchronize(caller_);
  }
}

TEST_F(CudnnAlgorithmsTest, GoesOnWithoutTheLegacyApi) {
  static CudnnLibrary library;  // what it prepares refers to it
  ASSERT_TRUE(IsOk(library.Open(CUDNN_WITHOUT_LEGACY_API)));
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
                      {"cudnnCreateFilterDescriptor", "without_legacy", "cuDNN 9."}));
  EXPECT_TRUE(IsOk(prepare("eng1")));
  EXPECT_TRUE(IsOk(prepare("")));
  Names names;
  ASSERT_TRUE(IsOk(
      ListCudnnAlgorithms(library, handle, MakeConvolution(), AlgorithmScope::kAll, true, &names)));
  EXPECT_TRUE(Holds(names, "eng4"));
  EXPECT_FALSE(Holds(names, "GEMM"));
  EXPECT_EQ(library.cudnnDestroy(handle), CUDNN_STATUS_SUCCESS);
}

}  // namespace
}  // namespace tf_interop
