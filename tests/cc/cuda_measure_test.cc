// Measurements on the cudnn backend over the stand-ins for libcuda and libcudnn.

// CUDA 13's headers do this.
#define cuEventElapsedTime cuEventElapsedTime_v2

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/measure/timing.h"
#include "tests/cc/cudnn_fixture.h"
#ifdef TF_INTEROP_HAS_CUPTI
#include "tests/cc/fake_cupti.h"
#endif

namespace tf_interop {
namespace {

class CudaMeasureTest : public testing::Test {
 protected:
  void SetUp() override {
    UseFakes();
    if (!FakeCudnnIsThere()) GTEST_SKIP() << "no cuDNN; scripts/test_core.sh installs it";
#ifdef TF_INTEROP_HAS_CUPTI
    FakeCupti() = FakeCuptiSwitches();
    setenv("TF_INTEROP_LIBCUPTI", PathOf(&FakeCupti).c_str(), 1);
#endif
    ASSERT_TRUE(IsOk(OpenCudaDevice(&device_)));
    options_.warmup_ms = 0;
    options_.repetitions = 3;
    options_.cold_bytes = 1 << 16;
  }
  void TearDown() override {
    EXPECT_EQ(FakeCudaCurrentContext(), nullptr) << "a context was left current";
    EXPECT_EQ(FakeCudaCounts().live_allocations, 0) << "device memory was not freed";
#ifdef TF_INTEROP_HAS_CUPTI
    EXPECT_FALSE(FakeCuptiIsAttached()) << "CUPTI slows launches down";
#endif
  }

  Status Measure(const Convolution& c, const std::string& algorithm, Measurement* measured) {
    return MeasureConvolution(device_.get(), c, algorithm, options_, &kept_, measured);
  }

  std::unique_ptr<MeasuringDevice> device_;
  MeasureOptions options_;
  KeptProblem kept_;
};

#define NAME_OF(name) TF_INTEROP_NAME(name),

TEST(CudaDriverTest, AsksForNoNameThatOlderDriversLack) {
  const std::vector<std::string> names = {TF_INTEROP_CUDA_ENTRY_POINTS(NAME_OF)};
  EXPECT_EQ(std::count(names.begin(), names.end(), "cuEventElapsedTime"), 1);
}

TEST_F(CudaMeasureTest, KnowsWhetherTheDeviceWaitsForTheHost) {
  std::shared_ptr<const TimeMark> passed, ahead;
  EXPECT_TRUE(IsOk(device_->backend()->Mark(device_->stream(), nullptr, &passed)));
  EXPECT_TRUE(IsOk(device_->Synchronize()));
  EXPECT_FALSE(device_->IsBefore(*passed));
  std::promise<void> go_on;
  FakeCudaEnqueue(static_cast<CUstream>(device_->stream()), [&] { go_on.get_future().wait(); });
  EXPECT_TRUE(IsOk(device_->backend()->Mark(device_->stream(), nullptr, &ahead)));
  EXPECT_TRUE(device_->IsBefore(*ahead));
  go_on.set_value();
  EXPECT_TRUE(IsOk(device_->Synchronize()));
}

TEST_F(CudaMeasureTest, ForgetsThePlansOfWhatWasMeasured) {
  Measurement measured;
  std::shared_ptr<const PreparedConvolution> resolved;
  ASSERT_TRUE(IsOk(Measure(MakeConvolution(), "eng0", &measured)));
  EXPECT_LT(measured.relative_error, 1e-2);
  EXPECT_TRUE(measured.is_deterministic);
  const int before = FakeCudnnCounts().live_descriptors;
  Convolution other = MakeConvolution();
  other.batch += 1;
  CompleteSame(&other);
  ASSERT_TRUE(IsOk(ResolveAlgorithm(device_.get(), other, "", options_, &resolved)));
  EXPECT_GT(FakeCudnnCounts().live_descriptors, before);
  const std::string algorithm = resolved->algorithm();
  resolved.reset();
  ASSERT_TRUE(IsOk(Measure(other, algorithm, &measured)));
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, before);
}

#ifdef TF_INTEROP_HAS_CUPTI
TEST_F(CudaMeasureTest, GivesTheKernelsOfOneRunOrTheReasonWhyThereAreNone) {
  CUpti_ActivityKernel9 record = {};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = "implicit_gemm";
  record.start = 1000;
  record.end = 3000;
  FakeCupti().records = {record};
  Measurement measured;
  ASSERT_TRUE(IsOk(Measure(MakeConvolution(), "", &measured)));
  ASSERT_EQ(measured.kernels.size(), 1u) << measured.trace_error;
  EXPECT_EQ(measured.kernels[0].name, "implicit_gemm");
  FakeCupti().results["cuptiActivityEnable"] = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  ASSERT_TRUE(IsOk(Measure(MakeConvolution(), "", &measured)));
  EXPECT_GT(measured.time.median_us, 0);
  EXPECT_TRUE(measured.kernels.empty());
  EXPECT_NE(measured.trace_error.find("MULTIPLE_SUBSCRIBERS"), std::string::npos);
}
#endif

TEST_F(CudaMeasureTest, FailuresHaveTheirReason) {
  Measurement measured;
  FakeCuda().fail_allocation = true;
  EXPECT_TRUE(IsError(Measure(MakeConvolution(), "", &measured), StatusCode::kResourceExhausted,
                      {"cuMemAlloc"}));
  FakeCuda().fail_allocation = false;
  FakeCudnn().fail_execution = true;
  EXPECT_FALSE(Measure(MakeConvolution(), "", &measured).ok());
}

}  // namespace
}  // namespace tf_interop
