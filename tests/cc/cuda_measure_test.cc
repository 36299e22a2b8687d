// Measurements on the cudnn backend over the stand-ins for libcuda and libcudnn.

// CUDA 13's headers do this.
#define cuEventElapsedTime cuEventElapsedTime_v2

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <utility>
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

TEST_F(CudaMeasureTest, FailuresHaveTheirReason) {
  Measurement measured;
  FakeCuda().fail_allocation = true;
  EXPECT_TRUE(IsError(Measure(MakeConvolution(), "", &measured), StatusCode::kResourceExhausted,
                      {"cuMemAlloc"}));
  FakeCuda().fail_allocation = false;
  FakeCudnn().fail_execution = true;
  EXPECT_FALSE(Measure(MakeConvolution(), "", &measured).ok());
}

#ifdef TF_INTEROP_HAS_CUPTI
// ---- GPU kernels over the stand-in for libcupti.

constexpr int kDriverVersion = 12080;

CUpti_ActivityKernel9 MakeRecord(const char* name, uint64_t start_ns, uint64_t end_ns) {
  CUpti_ActivityKernel9 record = {};
  record.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL;
  record.name = name;
  record.start = start_ns;
  record.end = end_ns;
  record.gridX = 2;
  record.gridY = 3;
  record.gridZ = 4;
  record.blockX = 32;
  record.blockY = 5;
  record.blockZ = 6;
  record.registersPerThread = 168;
  record.staticSharedMemory = 1000;
  record.dynamicSharedMemory = 48000;
  return record;
}

class CuptiTracerTest : public testing::Test {
 protected:
  void SetUp() override {
    FakeCupti() = FakeCuptiSwitches();
    setenv("TF_INTEROP_LIBCUPTI", PathOf(&FakeCupti).c_str(), 1);
  }
  void TearDown() override { EXPECT_FALSE(FakeCuptiIsAttached()) << "CUPTI slows launches down"; }

  // Traces the stand-in's records.
  Status Trace(std::vector<TracedKernel>* kernels) {
    TF_INTEROP_RETURN_IF_ERROR(StartKernelTrace(kDriverVersion));
    EXPECT_TRUE(FakeCuptiIsEnabled());
    return StopKernelTrace(kernels);
  }
};

TEST_F(CuptiTracerTest, GivesKernelsAloneInTheOrderInWhichTheyStarted) {
  CUpti_ActivityKernel9 fill = MakeRecord("fill", 1, 2);
  fill.kind = CUPTI_ACTIVITY_KIND_MEMSET;
  FakeCupti().records = {MakeRecord("_ZN5cudnn8winograd4mainEPKfi", 5000, 9000), fill,
                         MakeRecord(nullptr, 1000, 2500)};
  std::vector<TracedKernel> kernels;
  const Status status = Trace(&kernels);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].name, "unknown");
  EXPECT_DOUBLE_EQ(kernels[0].elapsed_us, 1.5);
  const TracedKernel& last = kernels[1];
  EXPECT_EQ(last.name, "cudnn::winograd::main(float const*, int)");
  EXPECT_DOUBLE_EQ(last.elapsed_us, 4);
  EXPECT_EQ(last.start_ns - kernels[0].start_ns, 4000);
  EXPECT_EQ(std::vector<int>(last.grid, last.grid + 3), (std::vector<int>{2, 3, 4}));
  EXPECT_EQ(std::vector<int>(last.block, last.block + 3), (std::vector<int>{32, 5, 6}));
  EXPECT_EQ(last.registers_per_thread, 168);
  EXPECT_EQ(last.shared_memory_bytes, 49000);
}

TEST_F(CuptiTracerTest, ReadsRecordsOfANewerCuptiInSeveralBuffers) {
  FakeCupti().record_bytes = sizeof(CUpti_ActivityKernel9) + 64;
  for (uint64_t i = 1; i <= 1000; ++i) {  // more than a buffer holds
    FakeCupti().records.push_back(MakeRecord("kernel", 10 * i, 10 * i + 5));
  }
  std::vector<TracedKernel> kernels;
  const Status status = Trace(&kernels);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(kernels.size(), 1000u);
}

TEST_F(CuptiTracerTest, EveryFailureHasItsReasonAndTheNextTraceIsFreeOfIt) {
  const std::vector<CUpti_ActivityKernel9> one = {MakeRecord("kernel", 1, 2)};
  FakeCuptiSwitches dropped, untimed, ends_before_it_starts, nameless;
  dropped.records = nameless.records = one;
  dropped.dropped = 7;
  untimed.records = {MakeRecord("kernel", 0, 0)};
  ends_before_it_starts.records = {MakeRecord("kernel", 9, 4)};
  nameless.results["cuptiActivityEnable"] = CUPTI_ERROR_UNKNOWN;
  nameless.has_no_text = true;
  std::vector<std::pair<FakeCuptiSwitches, std::string>> cases = {
      {dropped, "dropped 7 records"},
      {untimed, "Expected the time of kernel 'kernel'"},
      {ends_before_it_starts, "Expected the time of kernel 'kernel'"},
      {nameless, "unknown error (999)"},
      {FakeCuptiSwitches(), "Expected GPU kernels in CUPTI's trace, got none"},
  };
  for (const char* call : {"cuptiActivityRegisterCallbacks", "cuptiActivityEnable",
                           "cuptiActivityFlushAll", "cuptiActivityDisable", "cuptiFinalize",
                           "cuptiActivityGetNextRecord", "cuptiActivityGetNumDroppedRecords"}) {
    FakeCuptiSwitches failing;
    failing.records = one;
    failing.results[call] = CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    cases.emplace_back(failing, call + std::string(" failed with CUPTI_ERROR_OF_THE_TEST (35)"));
  }
  for (const auto& [fake, reason] : cases) {
    SCOPED_TRACE(reason);
    FakeCupti() = fake;
    std::vector<TracedKernel> kernels;
    const Status status = Trace(&kernels);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(status.message().find(reason), std::string::npos) << status.message();
    EXPECT_TRUE(kernels.empty());
    EXPECT_FALSE(FakeCuptiIsAttached());

    FakeCupti() = FakeCuptiSwitches();
    FakeCupti().records = one;
    ASSERT_TRUE(Trace(&kernels).ok());
    EXPECT_EQ(kernels.size(), 1u);
  }
}

#endif

}  // namespace
}  // namespace tf_interop
