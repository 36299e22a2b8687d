// Names of cuDNN algorithms, and the SM-count targets in them, on stand-ins for libcuda and
// libcudnn.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_algorithm_fixture.h"
#include "tests/cc/fake_cudnn.h"

namespace tf_interop {
namespace {

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
