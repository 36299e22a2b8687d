// Counts by device, and the limit on the number of reasons.
#include "cc_kernels/core/counters.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace tf_interop {
namespace {

TEST(CountersTest, CountsForTheDeviceOfTheThread) {
  Count(&Counters::stages_run);
  {
    const CountingFor gpu(FindCounts("GPU:1"));
    Count(&Counters::stages_run);
    Count(&Counters::stages_run);
    CountFallback("no memory", "of lane 3");
    // Another thread counts for its own device.
    std::thread([] {
      const CountingFor cpu(FindCounts("CPU:0"));
      Count(&Counters::filters_transformed);
      Count(&Counters::stages_captured);
      Count(&Counters::stages_replayed);
    }).join();
    {
      const CountingFor inner(FindCounts("CPU:0"));
      Count(&Counters::stages_run);
    }
    Count(&Counters::stages_run);
  }
  Count(&Counters::stages_run);

  const auto devices = ReadCountersByDevice();
  EXPECT_EQ(devices.at("").stages_run, 2);
  EXPECT_EQ(devices.at("GPU:1").stages_run, 3);
  EXPECT_EQ(devices.at("GPU:1").fallbacks.at("no memory: of lane 3"), 1);
  EXPECT_EQ(devices.at("CPU:0").stages_run, 1);
  EXPECT_EQ(devices.at("CPU:0").filters_transformed, 1);
  EXPECT_EQ(devices.at("CPU:0").stages_captured, 1);
  EXPECT_EQ(devices.at("CPU:0").stages_replayed, 1);
}

TEST(CountersTest, ReasonsOfOneKindLeaveRoomForOthers) {
  const CountingFor device(FindCounts("GPU:7"));
  const auto reasons = [] { return ReadCountersByDevice().at("GPU:7").fallbacks; };
  for (int batch = 0; batch < 10000; ++batch) {
    CountFallback("unseen", "batch size " + std::to_string(batch));
  }
  EXPECT_EQ(reasons().size(), kMostReasonsOfAKind + 1u);
  EXPECT_EQ(reasons().at("unseen: other cases"), 10000 - kMostReasonsOfAKind);
  // A reason with a row keeps it.
  CountFallback("unseen", "batch size 3");
  EXPECT_EQ(reasons().at("unseen: batch size 3"), 2);
  CountFallback("no memory");
  EXPECT_EQ(reasons().at("no memory"), 1);
}

}  // namespace
}  // namespace tf_interop
