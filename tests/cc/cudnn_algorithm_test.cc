// Names of cuDNN algorithms.
#include <gtest/gtest.h>

#include <string>

#include "cc_kernels/core/cudnn/algorithm.h"

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

}  // namespace
}  // namespace tf_interop
