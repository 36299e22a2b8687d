// Plans of the cudnn backend that are written as text and made again from it, on stand-ins for
// libcuda and libcudnn.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/cudnn/serialized_convolution.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/cudnn_algorithm_fixture.h"
#include "tests/cc/fake_cudnn.h"

namespace tf_interop {
namespace {

using CudnnSerializedTest = CudnnAlgorithmTest;

TEST_F(CudnnSerializedTest, RestoresWhatItSerialized) {
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

TEST_F(CudnnSerializedTest, RefusesSerializedTextThatIsDamaged) {
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

TEST_F(CudnnSerializedTest, RefusesSerializedTextFromElsewhere) {
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

TEST_F(CudnnSerializedTest, RefusesSerializedTextThatIsNotWhatItSays) {
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

TEST_F(CudnnSerializedTest, RestoresNothingWhereMemoryIsMissing) {
  const Convolution c = MakeConvolution();
  const std::string serialized = SerializeOk(*PrepareOk(c, "eng1"));
  FakeCudnn().fail_plan_allocation = true;
  EXPECT_EQ(RestoreError(c, serialized).code(), StatusCode::kResourceExhausted);
  FakeCudnn().fail_plan_allocation = false;
  std::shared_ptr<const PreparedConvolution> restored;
  EXPECT_TRUE(backend_->Restore(c, serialized, &restored).ok());
}

TEST_F(CudnnSerializedTest, RestoresNoReducedPrecisionWhereTf32IsOff) {
  const std::string serialized = SerializeOk(*PrepareOk(MakeConvolution(), "eng3"));
  backend_->set_allow_tf32(false);
  const Status status = RestoreError(MakeConvolution(), serialized);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("TF32"), std::string::npos) << status.message();
}

TEST_F(CudnnSerializedTest, SerializesNothingThatCudnnHasNoTextFor) {
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

}  // namespace
}  // namespace tf_interop
