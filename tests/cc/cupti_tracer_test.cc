// Traces GPU kernels over the stand-in for libcupti.
#include "cc_kernels/core/measure/cupti_tracer.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tests/cc/fake_cupti.h"

namespace tf_interop {
namespace {

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
    Dl_info info;
    ASSERT_NE(dladdr(reinterpret_cast<void*>(&FakeCupti), &info), 0);
    setenv("TF_INTEROP_LIBCUPTI", info.dli_fname, 1);
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

TEST_F(CuptiTracerTest, ReadsRecordsOfANewerCuptiAndInSeveralBuffers) {
  FakeCupti().record_bytes = sizeof(CUpti_ActivityKernel9) + 64;
  for (uint64_t i = 1; i <= 1000; ++i) {
    FakeCupti().records.push_back(MakeRecord("kernel", 10 * i, 10 * i + 5));
  }
  const int before = FakeCuptiBuffers();
  std::vector<TracedKernel> kernels;
  const Status status = Trace(&kernels);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(kernels.size(), 1000u);
  EXPECT_GT(FakeCuptiBuffers() - before, 1);
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

}  // namespace
}  // namespace tf_interop
