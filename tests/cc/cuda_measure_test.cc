// Measuring on the cudnn backend over the stand-ins for libcuda and libcudnn.
#include <cudnn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "cc_kernels/core/measure/alone.h"
#include "cc_kernels/core/measure/cuda_device.h"
#include "cc_kernels/core/measure/stage.h"
#include "tests/cc/convolution_cases.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "tests/cc/stage_fixture.h"
#ifdef TF_INTEROP_HAS_CUPTI
#include "tests/cc/fake_cupti.h"
#endif

namespace tf_interop {
namespace {

template <typename Function>
std::string PathOf(Function* function) {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(function), &info) != 0 ? info.dli_fname : "";
}

class CudaMeasureTest : public testing::Test {
 protected:
  void SetUp() override {
    FakeCuda() = FakeCudaSwitches();
    FakeCudnn() = FakeCudnnSwitches();
    setenv("TF_INTEROP_LIBCUDA", PathOf(&FakeCudaMakeContext).c_str(), 1);
    setenv("TF_INTEROP_LIBCUDNN", PathOf(&FakeCudnn).c_str(), 1);
#ifdef TF_INTEROP_HAS_CUPTI
    FakeCupti() = FakeCuptiSwitches();
    setenv("TF_INTEROP_LIBCUPTI", PathOf(&FakeCupti).c_str(), 1);
#endif
    const Status status = CudaMeasuringDevice::Create(&device_);
    ASSERT_TRUE(status.ok()) << status.message();
    options_.warmup_runs = 1;
    options_.repetitions = 3;
    options_.cache_bytes = 1 << 16;
    options_.head_start_bytes = 1 << 16;
  }
  void TearDown() override {
    EXPECT_EQ(FakeCudaCurrentContext(), nullptr) << "a context was left current";
    EXPECT_EQ(FakeCudaLiveAllocations(), 0) << "device memory was not freed";
  }

  std::unique_ptr<CudaMeasuringDevice> device_;
  MeasureOptions options_;
  ProblemCache cache_;
};

TEST_F(CudaMeasureTest, DescribesTheDevice) {
  DeviceDescription described;
  const Status status = device_->Describe(&described);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(described.name, "Invented GPU");
  EXPECT_EQ(described.compute_capability, "9.1");
  EXPECT_EQ(described.sm_count, 132);
  EXPECT_EQ(described.memory_bytes, int64_t{80} << 30);
  EXPECT_EQ(described.cuda, "12.8");
  EXPECT_EQ(described.cudnn, std::to_string(CUDNN_MAJOR) + "." + std::to_string(CUDNN_MINOR) + "." +
                                 std::to_string(CUDNN_PATCHLEVEL));
  EXPECT_EQ(described.registers, 65536);
  EXPECT_EQ(described.shared_memory_bytes, 233472);
  EXPECT_EQ(described.threads, 2048);
  EXPECT_EQ(described.blocks, 32);
  EXPECT_EQ(described.reserved_shared_memory_bytes, 1024);
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
  ASSERT_TRUE(
      MeasureConvolution(device_.get(), MakeConvolution(), "", options_, &cache_, &measured).ok());
  ASSERT_EQ(measured.kernels.size(), 1u) << measured.trace_error;
  EXPECT_EQ(measured.kernels[0].name, "implicit_gemm");
  EXPECT_EQ(measured.kernels[0].elapsed_us, 2);
  EXPECT_EQ(measured.trace_error, "");
}

TEST_F(CudaMeasureTest, AnotherToolThatHoldsCuptiLeavesTheMeasurement) {
  FakeCupti().enable_result = CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  Measurement measured;
  ASSERT_TRUE(
      MeasureConvolution(device_.get(), MakeConvolution(), "", options_, &cache_, &measured).ok());
  EXPECT_GT(measured.time.median_us, 0);
  EXPECT_TRUE(measured.kernels.empty());
  EXPECT_NE(measured.trace_error.find("MULTIPLE_SUBSCRIBERS"), std::string::npos);
}
#endif

TEST_F(CudaMeasureTest, EveryKindLayoutAndTypeIsMeasured) {
  for (const Convolution& c : WithEveryKindLayoutAndType({MakeConvolution()})) {
    SCOPED_TRACE(ToString(c));
    Measurement measured;
    const Status status = MeasureConvolution(device_.get(), c, "", options_, &cache_, &measured);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_NE(measured.algorithm.find("eng"), std::string::npos);
    EXPECT_GT(measured.workspace_bytes, 0);
    EXPECT_GT(measured.time.median_us, 0);
    EXPECT_GE(measured.time.spread_us, 0);
    EXPECT_TRUE(measured.is_deterministic);
    EXPECT_GE(measured.relative_error, 0);
    EXPECT_LT(measured.relative_error, c.dtype == DataType::kFloat ? 1e-5 : 1e-2);

    Measurement pinned;
    ASSERT_TRUE(
        MeasureConvolution(device_.get(), c, measured.algorithm, options_, &cache_, &pinned).ok());
    EXPECT_EQ(pinned.algorithm, measured.algorithm);
    EXPECT_EQ(pinned.workspace_bytes, measured.workspace_bytes);
  }
}

TEST_F(CudaMeasureTest, AStageHasAllTimes) {
  const Convolution c = MakeConvolution();
  FakeCuda().lane_delay_us = 100;  // a join that is missing would not see the lanes' delay
  StageMeasurement measured;
  const StageRequest request = {StageOfLanes(2, c), {"eng0", "eng1"}};
  const Status status = MeasureStage(device_.get(), request, options_, &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(measured.algorithms.size(), 2u);
  EXPECT_GE(measured.concurrent.median_us, 100);
  EXPECT_GT(measured.same_sequential.median_us, 0);
  EXPECT_GT(measured.sequential.median_us, 0);
  EXPECT_NE(measured.sequential_algorithms, measured.algorithms);
}

TEST_F(CudaMeasureTest, FailuresComeWithTheirReason) {
  Measurement measured;
  Status status =
      MeasureConvolution(device_.get(), MakeConvolution(), "eng99", options_, &cache_, &measured);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message(), "");

  FakeCuda().fail_allocation = true;
  status = MeasureConvolution(device_.get(), MakeConvolution(), "", options_, &cache_, &measured);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("cuMemAlloc"), std::string::npos);

  FakeCuda().fail_allocation = false;
  FakeCudnn().fail_execution = true;
  status = MeasureConvolution(device_.get(), MakeConvolution(), "", options_, &cache_, &measured);
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace tf_interop
