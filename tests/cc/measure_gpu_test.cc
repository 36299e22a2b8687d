// Measuring on a GPU: what the driver says of it, and the kernels that CUPTI sees. Skips, and says
// so, where there is no GPU.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cc_kernels/core/measure/alone.h"
#include "cc_kernels/core/measure/cuda_device.h"
#include "tests/cc/convolution_cases.h"

namespace tf_interop {
namespace {

class MeasureGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    const Status status = CudaMeasuringDevice::Create(&device_);
    if (status.code() == StatusCode::kUnavailable) GTEST_SKIP() << status.message();
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::unique_ptr<CudaMeasuringDevice> device_;
};

TEST_F(MeasureGpuTest, DescribesTheGpu) {
  DeviceDescription described;
  const Status status = device_->Describe(&described);
  ASSERT_TRUE(status.ok()) << status.message();
  RecordProperty("device", described.name);
  RecordProperty("cudnn", described.cudnn);
  RecordProperty("cuda", described.cuda);
  EXPECT_NE(described.name, "");
  EXPECT_GT(described.sm_count, 0);
  EXPECT_GT(described.memory_bytes, int64_t{1} << 30);
  // Alike on every GPU since Maxwell.
  EXPECT_EQ(described.registers, 65536);
  EXPECT_GE(described.threads, 1024);
  EXPECT_GE(described.blocks, 16);
  EXPECT_GE(described.shared_memory_bytes, 64 << 10);
}

TEST_F(MeasureGpuTest, EveryTraceHasTheKernelsOfOneRun) {
  // Traced repeatedly: what CUPTI leaves behind must not end up in the next trace.
  DeviceDescription described;
  ASSERT_TRUE(device_->Describe(&described).ok());
  ProblemCache cache;
  std::string first;
  for (int round = 0; round < 3; ++round) {
    Measurement measured;
    const Status status =
        MeasureConvolution(device_.get(), MakeConvolution(), "", {}, &cache, &measured);
    ASSERT_TRUE(status.ok()) << status.message();
    if (!measured.trace_error.empty()) GTEST_SKIP() << measured.trace_error;
    ASSERT_FALSE(measured.kernels.empty());
    std::string names;
    double elapsed_us = 0;
    for (const TracedKernel& kernel : measured.kernels) {
      names += kernel.name + "\n";
      elapsed_us += kernel.elapsed_us;
      EXPECT_GT(kernel.registers_per_thread, 0) << kernel.name;
      EXPECT_LE(kernel.block[0] * kernel.block[1] * kernel.block[2], described.threads)
          << kernel.name;
      EXPECT_GE(kernel.block[0], 1) << kernel.name;
      EXPECT_GE(kernel.grid[0], 1) << kernel.name;
      EXPECT_LE(kernel.shared_memory_bytes, described.shared_memory_bytes) << kernel.name;
    }
    EXPECT_GT(elapsed_us, 0);
    if (round == 0) {
      RecordProperty("kernels", names);
      first = names;
    }
    EXPECT_EQ(names, first);
  }
}

}  // namespace
}  // namespace tf_interop
