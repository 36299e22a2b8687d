// The names of cuDNN's algorithms on the stand-ins for libcuda and libcudnn: the list of them,
// their requests to cuDNN, and refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "tests/cc/cudnn_fixture.h"

namespace tf_interop {
namespace {

using CudnnAlgorithmsTest = CudnnTest;

TEST(AlgorithmNameTest, ReadsItsOwnOutputAndRefusesOtherText) {
  Algorithm algorithm;
  for (const char* text : {"WINOGRAD", "nchw+FFT", "split+nchw+WINOGRAD_NONFUSED", "ALGO_0", "eng0",
                           "eng12_k2=3_k13=-1", "split+eng7_k0=-3"}) {
    ASSERT_TRUE(IsOk(ParseAlgorithm(text, &algorithm)));
    EXPECT_EQ(ToString(algorithm), text);
  }
  ASSERT_TRUE(IsOk(ParseAlgorithm("eng4_k13=1_k2=0", &algorithm)));
  EXPECT_EQ(ToString(algorithm), "eng4_k2=0_k13=1");
  for (const char* text : {"", "winograd", "ALGO_2", "WINOGRAD_k2=1", "nchw+split+FFT", "nchw+",
                           "FFT ", "eng", "eng4_k2", "eng04", "eng4_k2=1_k2=1", "eng4_sms=1",
                           "eng4_k2=-0", "eng4_k2147483648=1", "eng9223372036854775808"}) {
    EXPECT_TRUE(IsError(ParseAlgorithm(text, &algorithm), StatusCode::kInvalidArgument,
                        {"eng<index>", std::string("'") + text + "'"}));
  }
}

bool StartsWith(const Names& names, const Names& first) {
  return names.size() >= first.size() && std::equal(first.begin(), first.end(), names.begin());
}

Formulation FormulationOf(const std::string& name) {
  return Parsed(name).formulation.value_or(Formulation());
}

// The words of each formulation, in the order of the list.
Names WordsOf(const Names& names) {
  Names words;
  for (const std::string& name : names) {
    const std::string next = ToString(FormulationOf(name));
    if (!Holds(words, next)) words.push_back(next);
  }
  return words;
}

TEST_F(CudnnAlgorithmsTest, ListsProposalsThenEnginesAndLegacyNamesThenKnobs) {
  for (const Convolution& c : WithEveryKindAndLayout({MakeConvolution()}, {DataType::kFloat})) {
    SCOPED_TRACE(ToString(c));
    const int plans = FakeCudnnCounts().plans_finalized;
    const int descriptors = FakeCudnnCounts().live_descriptors;
    const Names proposals = List(c, AlgorithmScope::kHeuristic),
                all = List(c, AlgorithmScope::kAll), knobs = List(c, AlgorithmScope::kKnobs);
    EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans) << "something was compiled";
    EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
    EXPECT_EQ(List(c, AlgorithmScope::kKnobs), knobs);
    ASSERT_FALSE(proposals.empty());
    EXPECT_LT(proposals.size(), all.size());
    EXPECT_LT(all.size(), knobs.size());
    EXPECT_TRUE(StartsWith(all, proposals));
    EXPECT_TRUE(StartsWith(knobs, all));
    EXPECT_EQ(std::set<std::string>(knobs.begin(), knobs.end()).size(), knobs.size());
    EXPECT_EQ(WordsOf(all), c.layout == Layout::kNHWC ? (Names{"plain", "nchw"}) : Names{"plain"});
    for (const std::string& name : knobs) EXPECT_EQ(ToString(Parsed(name)), name);
    for (const std::string& name : LegacyNamesOf(c.kind)) {
      EXPECT_TRUE(Holds(all, name)) << name;
      EXPECT_FALSE(Holds(proposals, name)) << name;
      EXPECT_EQ(Holds(all, "nchw+" + name), c.layout == Layout::kNHWC) << name;
    }
  }
}

TEST_F(CudnnAlgorithmsTest, ListsNothingThatReducesPrecisionWithoutTf32) {
  const Convolution c = MakeConvolution();
  Names reducing;
  for (const std::string& name : Engines(c, {}, 8)) {
    if (PrepareOk(c, name)->reduces_precision()) reducing.push_back(name);
  }
  ASSERT_FALSE(reducing.empty());
  options_.allow_tf32 = false;
  const Names without = List(c, AlgorithmScope::kKnobs);
  for (const std::string& name : reducing) {
    EXPECT_FALSE(Holds(without, name)) << name;
    EXPECT_TRUE(IsError(PrepareError(c, name), StatusCode::kUnsupported, {"TF32"}));
  }
  for (const std::string& name : Engines(c, {}, 4)) {
    EXPECT_FALSE(PrepareOk(c, name)->reduces_precision()) << name;
  }
  const Convolution half = MakeConvolution(c.kind, c.layout, DataType::kHalf);
  EXPECT_FALSE(PrepareOk(half)->reduces_precision()) << "half loses nothing";
}

TEST_F(CudnnAlgorithmsTest, RefusesNondeterministicAlgorithmsOnDemand) {
  const Convolution c = MakeConvolution(ConvolutionKind::kBackwardFilter);
  const Names names = List(c, AlgorithmScope::kHeuristic);
  // Prepares all of them with this value of TensorFlow's variable for determinism.
  const auto count_refused = [&](const char* value) {
    setenv("TF_CUDNN_DETERMINISTIC", value, 1);
    int refused = 0;
    for (const std::string& name : names) {
      std::shared_ptr<const PreparedConvolution> prepared;
      const Status status = backend_->Prepare(c, name, options_, &prepared);
      refused += status.message().find("enable_op_determinism") != std::string::npos;
    }
    unsetenv("TF_CUDNN_DETERMINISTIC");
    return refused;
  };
  for (const char* value : {"0", "false"}) EXPECT_EQ(count_refused(value), 0) << value;
  for (const char* value : {"1", "true", "True"}) EXPECT_GT(count_refused(value), 0) << value;
  options_.deterministic = true;
  EXPECT_GT(count_refused("0"), 0);
  RunAndExpectMatch(c);
  const std::set<std::pair<ConvolutionKind, std::string>> nondeterministic = {
      {ConvolutionKind::kBackwardInput, "ALGO_0"},
      {ConvolutionKind::kBackwardFilter, "ALGO_0"},
      {ConvolutionKind::kBackwardFilter, "ALGO_3"}};
  for (const auto kind : kKinds) {
    for (const std::string& name : LegacyNamesOf(kind)) {
      EXPECT_EQ(Prepares(MakeConvolution(kind), name), nondeterministic.count({kind, name}) == 0)
          << ToString(kind) << " " << name;
    }
  }
}

TEST_F(CudnnAlgorithmsTest, SplitsAnEpilogueOffOnlyIfItHasAPlan) {
  for (Convolution c :
       {MakeFused(), MakeFused(Layout::kNCHW), MakeFused(Layout::kNCHW, DataType::kHalf),
        MakeFused(Layout::kNHWC, DataType::kDouble), MakeFused(Layout::kNCHW, DataType::kDouble)}) {
    c.activation = Activation::kLeakyRelu;
    c.batch = 1;  // only then may NCHW be split too
    SCOPED_TRACE(ToString(c));
    Names names;
    const bool lists =
        backend_->ListAlgorithms(c, AlgorithmScope::kAll, options_.allow_tf32, &names).ok();
    const bool has_plan = c.dtype != DataType::kDouble;
    EXPECT_TRUE(lists || !has_plan);
    for (const Formulation& formulation : FormulationsOf(c)) {
      if (!formulation.splits_epilogue) continue;
      EXPECT_EQ(Holds(WordsOf(names), ToString(formulation)), has_plan);
      if (!has_plan) continue;
      const auto name = std::find_if(names.begin(), names.end(), [&](const std::string& each) {
        return FormulationOf(each) == formulation && Prepares(c, each);
      });
      ASSERT_NE(name, names.end());
      RunAndExpectMatch(c, *name);
    }
  }
  EXPECT_EQ(WordsOf(List(MakeFused(), AlgorithmScope::kHeuristic)), (Names{"plain", "nchw"}))
      << "not needed if the fused graph has proposals";
  EXPECT_FALSE(Holds(List(MakeFused(), AlgorithmScope::kAll), "GEMM"));
  for (const std::string& name : List(MakeAsymmetric(), AlgorithmScope::kAll)) {
    EXPECT_TRUE(std::holds_alternative<EngineTag>(Parsed(name).tag))
        << "unequal paddings: " << name;
  }
}

TEST_F(CudnnAlgorithmsTest, SaysWhyThereIsNothingToList) {
  Convolution leaky = MakeFused(Layout::kNCHW, DataType::kDouble);
  leaky.activation = Activation::kLeakyRelu;
  EXPECT_TRUE(IsError(ListError(leaky, AlgorithmScope::kHeuristic), StatusCode::kUnsupported,
                      {"forward double NCHW"}));
  FakeCudnn().fail_plan_allocation = true;
  EXPECT_TRUE(IsError(ListError(MakeFused(), AlgorithmScope::kAll), StatusCode::kResourceExhausted,
                      {"no memory for the plan"}));
  Convolution empty = MakeConvolution();
  empty.batch = 0;
  EXPECT_EQ(ListError(empty, AlgorithmScope::kAll).code(), StatusCode::kInvalidArgument);
}

// ---- The legacy API.

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
        "cudnnGetConvolutionWorkspaceSize of kind forward", "[nchw]"}},
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

}  // namespace
}  // namespace tf_interop
