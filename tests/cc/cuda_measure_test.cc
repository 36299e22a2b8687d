// Measuring on the cudnn backend over the stand-ins for libcuda and libcudnn.
// As headers of CUDA 13 do.
#define cuEventElapsedTime cuEventElapsedTime_v2

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "cc_kernels/core/measure/cuda_device.h"
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
    EXPECT_EQ(FakeCudaLiveAllocations(), 0) << "device memory was not freed";
#ifdef TF_INTEROP_HAS_CUPTI
    EXPECT_FALSE(FakeCuptiIsAttached()) << "it slows launches down";
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

TEST_F(CudaMeasureTest, DescribesTheDevice) {
  DeviceDescription described;
  const Status status = device_->Describe(&described);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(described.name, "Invented GPU");
  EXPECT_EQ(described.compute_capability, "9.1");
  EXPECT_EQ(described.sm_count, 132);
  EXPECT_EQ(described.memory_bytes, int64_t{80} << 30);
  EXPECT_EQ(described.cuda, "12.8");
  const CudnnLibrary* library = nullptr;
  ASSERT_TRUE(CudnnLibrary::Get(&library).ok());
  EXPECT_EQ(described.cudnn, library->version());
  EXPECT_EQ(described.registers, 65536);
  EXPECT_EQ(described.shared_memory_bytes, 233472);
  EXPECT_EQ(described.threads, 2048);
  EXPECT_EQ(described.blocks, 32);
  EXPECT_EQ(described.reserved_shared_memory_bytes, 1024);
}

TEST_F(CudaMeasureTest, KnowsWhetherTheDeviceWaitsForTheHost) {
  const auto is_ahead = [&](const std::function<void()>& before_asking) {
    bool ahead = false;
    EXPECT_TRUE(IsOk(device_->StartTimer()));
    EXPECT_TRUE(IsOk(device_->StopTimer()));
    before_asking();
    EXPECT_TRUE(IsOk(device_->IsStillAhead(&ahead)));
    return ahead;
  };
  EXPECT_FALSE(is_ahead([&] { EXPECT_TRUE(IsOk(device_->Synchronize())); }));
  std::promise<void> go_on;
  FakeCudaEnqueue(static_cast<CUstream>(device_->stream()), [&] { go_on.get_future().wait(); });
  EXPECT_TRUE(is_ahead([] {}));
  go_on.set_value();
  EXPECT_TRUE(IsOk(device_->Synchronize()));
}

TEST_F(CudaMeasureTest, ForgetsThePlansOfWhatWasMeasured) {
  Measurement measured;
  ResolvedAlgorithm resolved;
  ASSERT_TRUE(IsOk(Measure(MakeConvolution(), "eng0", &measured)));
  const int before = FakeCudnnCounts().live_descriptors;
  Convolution other = MakeConvolution();
  other.batch += 1;
  CompleteSame(&other);
  ASSERT_TRUE(IsOk(ResolveAlgorithm(device_.get(), other, "", options_, &resolved)));
  EXPECT_GT(FakeCudnnCounts().live_descriptors, before);
  ASSERT_TRUE(IsOk(Measure(other, resolved.algorithm, &measured)));
  EXPECT_EQ(FakeCudnnCounts().live_descriptors, before);
}

#ifdef TF_INTEROP_HAS_CUPTI
TEST_F(CudaMeasureTest, GivesTheKernelsOfOneRun) {
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
  EXPECT_EQ(measured.kernels[0].elapsed_us, 2);
  EXPECT_EQ(measured.trace_error, "");
}

TEST_F(CudaMeasureTest, AnotherToolThatHoldsCuptiLeavesTheMeasurement) {
  FakeCupti().enable_result = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  Measurement measured;
  ASSERT_TRUE(IsOk(Measure(MakeConvolution(), "", &measured)));
  EXPECT_GT(measured.time.median_us, 0);
  EXPECT_TRUE(measured.kernels.empty());
  EXPECT_NE(measured.trace_error.find("MULTIPLE_SUBSCRIBERS"), std::string::npos);
}
#endif

TEST_F(CudaMeasureTest, EveryKindLayoutAndTypeIsMeasured) {
  for (const Convolution& c : WithEveryKindAndLayout({MakeConvolution()})) {
    SCOPED_TRACE(ToString(c));
    Measurement measured, pinned;
    ASSERT_TRUE(IsOk(Measure(c, "", &measured)));
    EXPECT_NE(measured.algorithm.find("eng"), std::string::npos);
    EXPECT_GT(measured.workspace_bytes, 0);
    EXPECT_GT(measured.time.median_us, 0);
    EXPECT_TRUE(measured.is_deterministic);
    EXPECT_GE(measured.relative_error, 0);
    EXPECT_LT(measured.relative_error, c.dtype == DataType::kFloat ? 1e-5 : 1e-2);
    ASSERT_TRUE(IsOk(Measure(c, measured.algorithm, &pinned)));
    EXPECT_EQ(pinned.algorithm, measured.algorithm);
    EXPECT_EQ(pinned.workspace_bytes, measured.workspace_bytes);
  }
}

TEST_F(CudaMeasureTest, AStageHasAllTimes) {
  FakeCuda().lane_delay_us = 100;  // a join that is missing would not see the lanes' delay
  StageMeasurement measured;
  const StageRequest request = {StageOfLanes(2, MakeConvolution()), {"eng0", "eng1"}};
  ASSERT_TRUE(IsOk(MeasureStage(device_.get(), request, options_, &measured)));
  EXPECT_EQ(measured.algorithms.size(), 2u);
  EXPECT_GE(measured.concurrent.median_us, 100);
  EXPECT_GT(measured.same_sequential.median_us, 0);
  EXPECT_GT(measured.sequential.median_us, 0);
  EXPECT_NE(measured.sequential_algorithms, measured.algorithms);
}

TEST_F(CudaMeasureTest, FailuresComeWithTheirReason) {
  Measurement measured;
  EXPECT_TRUE(
      IsError(Measure(MakeConvolution(), "eng99", &measured), StatusCode::kUnsupported, {"eng99"}));
  FakeCuda().fail_allocation = true;
  EXPECT_TRUE(IsError(Measure(MakeConvolution(), "", &measured), StatusCode::kResourceExhausted,
                      {"cuMemAlloc"}));
  FakeCuda().fail_allocation = false;
  FakeCudnn().fail_execution = true;
  EXPECT_FALSE(Measure(MakeConvolution(), "", &measured).ok());
}

}  // namespace
}  // namespace tf_interop
