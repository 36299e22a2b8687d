// Calls of a stage on a simulated device: which way is kept, when times drift, and while the host
// is ahead.
#include "cc_kernels/core/stage_timing.h"

#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tf_interop {
namespace {

using Way = StageTiming::Way;

struct Mark : TimeMark {
  static constexpr int64_t kNotPassed = -1;
  std::atomic<int64_t> ns{kNotPassed};
  std::optional<int64_t> ReadNs() const override {
    const int64_t read = ns;
    return read == kNotPassed ? std::nullopt : std::optional(read);
  }
};

// A device that runs what the host enqueues, a number of calls behind it.
class Device {
 public:
  Device(StageTiming* timing, size_t behind) : timing_(*timing), behind_(behind) {}

  // Calls the stage; a way takes `us[way]`. Returns how it ran.
  StageTiming::Call Call(const std::map<Way, double>& us) {
    const StageTiming::Call call = timing_.Begin();
    auto begin = std::make_shared<Mark>(), end = std::make_shared<Mark>();
    if (call.is_timed) timing_.End(call, begin, end);
    queue_.push_back({begin, end, us.at(call.way)});
    RunUntil(behind_);
    return call;
  }
  void Calls(int count, const std::map<Way, double>& us) {
    for (int i = 0; i < count; ++i) Call(us);
  }
  void Finish() { RunUntil(0); }

 private:
  struct Enqueued {
    std::shared_ptr<Mark> begin, end;
    double us;
  };
  void RunUntil(size_t left) {
    while (queue_.size() > left) {
      queue_.front().begin->ns = now_ns_;
      now_ns_ += static_cast<int64_t>(1e3 * queue_.front().us);
      queue_.front().end->ns = now_ns_;
      queue_.pop_front();
    }
  }

  StageTiming& timing_;
  const size_t behind_;
  std::deque<Enqueued> queue_;
  int64_t now_ns_ = 0;
};

class StageTimingTest : public testing::TestWithParam<size_t> {
 protected:
  StageTiming timing_{"stage_0", "1x8", /*has_sequence=*/true};
  Device device_{&timing_, GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Behind, StageTimingTest, testing::Values(0, 1, 5, 200));

TEST_P(StageTimingTest, KeepsThePlanIfItIsFastest) {
  device_.Calls(4000, {{Way::kStock, 100}, {Way::kPlanned, 60}, {Way::kSequence, 80}});
  const StageTiming::Report report = timing_.Read();
  EXPECT_EQ(report.way, Way::kPlanned);
  EXPECT_FALSE(report.is_trying);
  ASSERT_EQ(report.ways.size(), 3);
  EXPECT_EQ(report.ways[0].median_us, 100);
  EXPECT_EQ(report.ways[1].median_us, 60);
  EXPECT_EQ(report.ways[2].median_us, 80);
}

TEST_P(StageTimingTest, AStageThatIsSlowerThanItsPartsLoses) {
  device_.Calls(4000, {{Way::kStock, 100}, {Way::kPlanned, 160}, {Way::kSequence, 80}});
  EXPECT_EQ(timing_.Read().way, Way::kSequence);
}

TEST_P(StageTimingTest, StockStaysUnlessAnotherWayIsClearlyFaster) {
  device_.Calls(4000, {{Way::kStock, 100}, {Way::kPlanned, 99}, {Way::kSequence, 160}});
  EXPECT_EQ(timing_.Read().way, Way::kStock);
}

TEST_P(StageTimingTest, LooksAgainWhenTimesDrift) {
  device_.Calls(4000, {{Way::kStock, 100}, {Way::kPlanned, 60}, {Way::kSequence, 80}});
  device_.Calls(8000, {{Way::kStock, 100}, {Way::kPlanned, 300}, {Way::kSequence, 280}});
  EXPECT_EQ(timing_.Read().way, Way::kStock);
}

TEST_P(StageTimingTest, TimesFewCallsAfterATrial) {
  const std::map<Way, double> us = {{Way::kStock, 100}, {Way::kPlanned, 60}, {Way::kSequence, 80}};
  device_.Calls(4000, us);
  int timed = 0;
  for (int i = 0; i < 160; ++i) timed += device_.Call(us).is_timed ? 1 : 0;
  EXPECT_LE(timed, 10);
  EXPECT_GE(timed, 1);
}

TEST(StageTimingTest, WithoutASequenceThereAreTwoWays) {
  StageTiming timing("stage_0", "1x8", /*has_sequence=*/false);
  EXPECT_EQ(timing.Read().ways.size(), 2);
}

TEST(StageTimingTest, ReportsHaveTheStagesThatExist) {
  const auto names = [] {
    std::vector<std::string> names;
    ReadStageTimings([&](const StageTiming::Report& report) { names.push_back(report.name); });
    return names;
  };
  auto first = MakeStageTiming("first", "1x8", true),
       second = MakeStageTiming("second", "2x8", true);
  EXPECT_EQ(names(), std::vector<std::string>({"first", "second"}));
  first.reset();
  EXPECT_EQ(names(), std::vector<std::string>({"second"}));
}

TEST(StageTimingTest, ThreadsCallTogether) {
  StageTiming timing("stage_0", "1x8", /*has_sequence=*/true);
  const std::map<Way, double> us = {{Way::kStock, 100}, {Way::kPlanned, 60}, {Way::kSequence, 80}};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Device device(&timing, 2);
      device.Calls(2000, us);
      device.Finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // A thread that the system stopped may have held up the trial of all.
  Device last(&timing, 0);
  for (int i = 0; i < 1000 && timing.Read().is_trying; ++i) last.Call(us);
  const StageTiming::Report report = timing.Read();
  EXPECT_FALSE(report.is_trying);
  EXPECT_EQ(report.way, Way::kPlanned);
  EXPECT_EQ(report.ways[1].median_us, 60);
}

}  // namespace
}  // namespace tf_interop
