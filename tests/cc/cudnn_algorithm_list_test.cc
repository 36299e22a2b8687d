// Names of cuDNN algorithms; which of them the cudnn backend lists, on stand-ins for libcuda and
// libcudnn, and that each of them computes what it should.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_backend_fixture.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/is_error.h"

namespace tf_interop {
namespace {

TEST(AlgorithmNameTest, ReadsWhatItWrites) {
  for (const char* text : {"WINOGRAD", "nchw+FFT", "split+nchw+WINOGRAD_NONFUSED", "ALGO_0", "eng0",
                           "eng12_k2=3_k13=-1", "split+eng7_k0=-3"}) {
    Algorithm algorithm;
    ASSERT_TRUE(ParseAlgorithm(text, &algorithm).ok()) << text;
    EXPECT_EQ(ToString(algorithm), text);
  }
}

TEST(AlgorithmNameTest, RefusesWhatIsNoName) {
  for (const char* text :
       {"winograd", "ALGO_2", "WINOGRAD_k2=1", "nchw+split+FFT", "pad+FFT", "nchw+", "FFT ",
        "eng4_sms=1", "eng4_k2=1_sms=66", "eng4_k2=-0", "eng4_k2147483648=1",
        "eng9223372036854775808", "eng4_k2=9223372036854775808", ""}) {
    Algorithm algorithm;
    const Status status = ParseAlgorithm(text, &algorithm);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_NE(status.message().find("eng<index>"), std::string::npos) << status.message();
  }
}

TEST(AlgorithmNameTest, OrdersKnobs) {
  Algorithm algorithm;
  ASSERT_TRUE(ParseAlgorithm("eng4_k13=1_k2=0", &algorithm).ok());
  EXPECT_EQ(ToString(algorithm), "eng4_k2=0_k13=1");
}

using CudnnAlgorithmListTest = CudnnBackendTest;

TEST_F(CudnnAlgorithmListTest, ListsProposalsBestFirst) {
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

TEST_F(CudnnAlgorithmListTest, ListsEveryEngineOfThisGpuAndLegacyNamesBehindProposals) {
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

TEST_F(CudnnAlgorithmListTest, ListsEveryKnobMovedOnItsOwn) {
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

TEST_F(CudnnAlgorithmListTest, LeavesOutWhatCudnnRefusesBeforeItCompiles) {
  FakeCudnn().unsupported_knob_values = {3, 1000};
  const Names names = List(MakeNchw(), AlgorithmScope::kKnobs);
  EXPECT_FALSE(Holds(names, "eng1_k2=3"));
  EXPECT_FALSE(Holds(names, "eng3_k2=1000"));
  EXPECT_TRUE(Holds(names, "eng1_k2=4"));
  EXPECT_TRUE(WithPrefix(names, "eng5").empty()) << "an engine for another GPU";
}

TEST_F(CudnnAlgorithmListTest, ListsWhatOnlyCompilingCanRefuse) {
  FakeCudnn().unsupported_engines = {3};
  EXPECT_TRUE(Holds(List(MakeNchw(), AlgorithmScope::kAll), "eng3"));
  EXPECT_NE(PrepareError(MakeNchw(), "eng3").message().find("engine switched off"),
            std::string::npos);
}

TEST_F(CudnnAlgorithmListTest, CompilesNothingAndLeaksNothingWhileListing) {
  const int plans = FakeCudnnCounts().plans_finalized;
  const int descriptors = FakeCudnnCounts().live_descriptors;
  List(MakeFused(), AlgorithmScope::kKnobs);
  EXPECT_EQ(FakeCudnnCounts().plans_finalized, plans);
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, descriptors);
}

TEST_F(CudnnAlgorithmListTest, ListsEachNameOnceInTheSameOrder) {
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

TEST_F(CudnnAlgorithmListTest, ListsNoReducedPrecisionForFloatWhereTf32IsOff) {
  Convolution half = MakeNchw();
  half.dtype = DataType::kHalf;
  const Names half_names = List(half, AlgorithmScope::kKnobs);
  options_.allow_tf32 = false;
  for (const std::string& name : List(MakeConvolution(), AlgorithmScope::kKnobs)) {
    EXPECT_EQ(name.find("eng3"), std::string::npos) << name << " uses tensor cores";
    EXPECT_EQ(name.find("eng4"), std::string::npos) << name << " converts its operands";
  }
  EXPECT_TRUE(Holds(List(MakeConvolution(), AlgorithmScope::kAll), "WINOGRAD"));
  EXPECT_EQ(List(half, AlgorithmScope::kKnobs), half_names);
}

TEST_F(CudnnAlgorithmListTest, ListsNoLegacyNamesForUnequalPaddings) {
  const Names names = List(MakeAsymmetric(), AlgorithmScope::kAll);
  for (const char* name : {"eng0", "nchw+eng0"}) EXPECT_TRUE(Holds(names, name)) << name;
  for (const char* name : {"FFT", "nchw+FFT", "split+eng0"}) {
    EXPECT_FALSE(Holds(names, name)) << name;
  }
}

TEST_F(CudnnAlgorithmListTest, ListsSplitEpilogueBesideTheFusedOne) {
  const Names names = List(MakeFused(), AlgorithmScope::kAll);
  for (const char* name :
       {"eng0", "split+eng0", "nchw+eng0", "split+nchw+eng0", "split+GEMM", "split+nchw+GEMM"}) {
    EXPECT_TRUE(Holds(names, name)) << name;
  }
  EXPECT_FALSE(Holds(names, "GEMM"));
  EXPECT_TRUE(WithPrefix(List(MakeFused(), AlgorithmScope::kHeuristic), "split+").empty());
}

TEST_F(CudnnAlgorithmListTest, ProposesSplitEpilogueWhereNothingIsProposedForTheFusedOne) {
  const Names expected = {
      "split+eng3_k2=7_k14=3",      "split+eng1_k2=5",      "split+eng2",      "split+eng0",
      "split+nchw+eng3_k2=7_k14=3", "split+nchw+eng1_k2=5", "split+nchw+eng2", "split+nchw+eng0"};
  FakeCudnn().no_proposals_from_operations = 2;
  EXPECT_EQ(List(MakeFused(), AlgorithmScope::kHeuristic), expected);
  FakeCudnn().no_proposals_from_operations = 0;
  FakeCudnn().no_fused_convolution = true;
  EXPECT_EQ(List(MakeFused(), AlgorithmScope::kHeuristic), expected);
}

TEST_F(CudnnAlgorithmListTest, SaysWhyThereIsNothingToList) {
  FakeCudnn().no_proposals_from_operations = 1;
  EXPECT_TRUE(IsError(ListError(MakeConvolution(), AlgorithmScope::kHeuristic),
                      StatusCode::kUnsupported, {"forward float NHWC"}));
  EXPECT_FALSE(List(MakeConvolution(), AlgorithmScope::kAll).empty());
}

TEST_F(CudnnAlgorithmListTest, ListsNothingWhereMemoryIsMissing) {
  FakeCudnn().fail_engine_allocation = true;
  EXPECT_TRUE(IsError(ListError(MakeConvolution(), AlgorithmScope::kAll),
                      StatusCode::kResourceExhausted, {"no memory for the engine"}));
}

TEST_F(CudnnAlgorithmListTest, ListsNothingForConvolutionsThatComputeNothing) {
  Convolution c = MakeConvolution();
  c.batch = 0;
  EXPECT_EQ(ListError(c, AlgorithmScope::kAll).code(), StatusCode::kInvalidArgument);
}

TEST_F(CudnnAlgorithmListTest, EveryListedAlgorithmMatchesReference) {
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

TEST_F(CudnnAlgorithmListTest, MatchesReferenceInBFloat16) {
  for (const Convolution& c : WithEveryKindLayoutAndBFloat16(Geometries())) RunAndExpectMatch(c);
  FakeCudnn().no_nhwc = true;
  for (const Convolution& c : WithEveryKindLayoutAndBFloat16({Geometries()[7]})) {
    RunAndExpectMatch(c);
  }
}

TEST_F(CudnnAlgorithmListTest, SaysWhetherPrecisionIsReduced) {
  Convolution half = MakeNchw();
  half.dtype = DataType::kHalf;
  EXPECT_TRUE(PrepareOk(MakeNchw(), "eng3")->reduces_precision());
  EXPECT_TRUE(PrepareOk(MakeNchw(), "eng4")->reduces_precision());
  EXPECT_FALSE(PrepareOk(MakeNchw(), "eng1")->reduces_precision());
  EXPECT_FALSE(PrepareOk(half, "eng3")->reduces_precision()) << "half is what it was given";
}

}  // namespace
}  // namespace tf_interop
