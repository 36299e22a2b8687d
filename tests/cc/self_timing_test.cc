// Steps of a graph that times itself, with a simulated clock: which steps count, and what happens
// to those that never end, run at the same time, or take too long.
#include "cc_kernels/core/self_timing.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/timeline.h"
#include "gtest/gtest.h"

namespace tf_interop {
namespace {

constexpr int kUnits = 3;
using Sizes = SelfTiming::Sizes;

// The cores of a way, or less than 0 for the size of parts.
int CodeOf(const UnitWay& way) { return way.part_size > 0 ? -way.part_size : way.cores; }
constexpr int kDivided = -UnitWay::kLargestPart;

// Runs steps one after another. A unit takes `us[CodeOf(way)]`.
class Graph {
 public:
  explicit Graph(SelfTiming* timing) : timing_(*timing) {}

  // Returns the codes of the ways of the units.
  std::vector<int> Step(const std::map<int, double>& us, const Sizes& sizes = {1, 8}) {
    std::vector<int> cores;
    ++id_;
    for (int unit = 0; unit < kUnits; ++unit) {
      cores.push_back(CodeOf(timing_.Begin(id_, unit, [&] { return sizes; }, now_ns_).way));
      now_ns_ += static_cast<int64_t>(us.at(cores.back()) * 1e3);
      timing_.End(id_, now_ns_);
    }
    return cores;
  }
  void Steps(int count, const std::map<int, double>& us, const Sizes& sizes = {1, 8}) {
    for (int i = 0; i < count; ++i) Step(us, sizes);
  }

  int64_t now_ns_ = 0;

 private:
  SelfTiming& timing_;
  int64_t id_ = 0;
};

TEST(SelfTimingTest, KeepsTheFastestNumberOfCoresForEachSizes) {
  SelfTiming timing(kUnits, /*cores=*/4, /*can_divide=*/false);
  Graph graph(&timing);
  for (int i = 0; i < 200; ++i) {
    graph.Step({{0, 20}, {1, 40}, {2, 10}, {4, 15}}, {1, 8});
    graph.Step({{0, 20}, {1, 40}, {2, 30}, {4, 15}}, {32, 8});
    graph.Step({{0, 20}, {1, 40}, {2, 30}, {4, 25}}, {2, 8});
  }
  const std::vector<SelfTiming::Report> reports = timing.Reports();
  ASSERT_EQ(reports.size(), 3);
  EXPECT_EQ(reports[0].sizes, Sizes({2, 8}));
  EXPECT_EQ(reports[0].way, UnitWay{0});
  EXPECT_EQ(reports[1].way, UnitWay{4});
  EXPECT_EQ(reports[2].way, UnitWay{2});
  std::vector<int> ways;
  for (const SelfTiming::TimedWay& each : reports[2].ways) ways.push_back(CodeOf(each.way));
  ASSERT_EQ(ways, std::vector<int>({0, 4, 2, 1}));
  EXPECT_NEAR(reports[2].ways[2].median_us, kUnits * 10, 1e-3);
  EXPECT_GT(reports[2].ways[0].steps, 0);
}

TEST(SelfTimingTest, TriesToDivideABatchOfSeveral) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/true);
  Graph graph(&timing);
  for (int i = 0; i < 200; ++i) {
    graph.Step({{0, 20}, {1, 40}, {2, 15}, {kDivided, 12}, {-4, 11}, {-1, 10}}, {32, 4});
    graph.Step({{0, 20}, {1, 40}, {2, 15}, {kDivided, 10}, {-1, 12}}, {8, 4});
    graph.Step({{0, 20}, {1, 40}, {2, 15}, {kDivided, 10}}, {2, 4});
    graph.Step({{0, 20}, {1, 40}, {2, 15}}, {1, 4});
  }
  const std::vector<SelfTiming::Report> reports = timing.Reports();
  ASSERT_EQ(reports.size(), 4);
  std::vector<std::string> names;
  for (const SelfTiming::Report& report : reports) names.push_back(NameOf(report.way));
  EXPECT_EQ(names, std::vector<std::string>({"on 2 cores", "with the batch divided",
                                             "with the batch divided", "in parts of 1 image"}));
  EXPECT_EQ(reports[0].ways.size(), 3);
  EXPECT_EQ(reports[1].ways.size(), 4);
  EXPECT_EQ(reports[2].ways.size(), 5);
  EXPECT_EQ(reports[3].ways.size(), 6);
}

TEST(SelfTimingTest, EachCoreGetsAsManyParts) {
  const auto count = [](int part_size, int64_t batch_size, int cores) {
    return PartCount({/*cores=*/1, part_size}, batch_size, cores);
  };
  EXPECT_EQ(count(UnitWay::kLargestPart, 32, 4), 4);
  EXPECT_EQ(count(UnitWay::kLargestPart, 3, 4), 3);
  EXPECT_EQ(count(4, 32, 2), 8);
  EXPECT_EQ(count(4, 10, 2), 4);
  EXPECT_EQ(count(4, 8, 2), 2);
  EXPECT_EQ(count(1, 9, 2), 9);
  EXPECT_EQ(count(1, 0, 2), 1);
  EXPECT_EQ(count(0, 8, 2), 1);
}

TEST(SelfTimingTest, SaysWhichRunsAreTrials) {
  SelfTiming timing(/*unit_count=*/1, /*cores=*/2, /*can_divide=*/false);
  bool was_trial = true;
  for (int i = 0; i < 200; ++i) {
    const SelfTiming::Run run = timing.Begin(i, 0, [] { return Sizes{1}; }, i * 100'000);
    EXPECT_TRUE(was_trial || !run.is_trial);
    was_trial = run.is_trial;
    timing.End(i, i * 100'000 + 50'000);
  }
  EXPECT_FALSE(was_trial);
}

TEST(SelfTimingTest, RunsThatWarmUpDoNotCount) {
  SelfTiming timing(/*unit_count=*/1, /*cores=*/2, /*can_divide=*/false);
  int64_t now_ns = 0;
  int left = 5;
  for (int i = 0; i < 100; ++i) {
    const SelfTiming::Run run = timing.Begin(i, 0, [] { return Sizes{1}; }, now_ns);
    const bool is_first = run.way.cores == 2 && left-- > 0;
    now_ns += is_first ? 900'000
                       : std::map<int, int>{{0, 100'000}, {1, 150'000}, {2, 90'000}}[run.way.cores];
    timing.End(i, now_ns, is_first ? SelfTiming::Outcome::kWarmedUp : SelfTiming::Outcome::kRan);
  }
  EXPECT_EQ(timing.Reports()[0].way, UnitWay{2});
  EXPECT_EQ(timing.Reports()[0].ways[1].median_us, 90);
}

TEST(SelfTimingTest, AUnitThatStopsAtTheLimitLeavesTheTrial) {
  SelfTiming timing(/*unit_count=*/1, /*cores=*/2, /*can_divide=*/false);
  int64_t now_ns = 0;
  for (int i = 0; i < 100; ++i) {
    const SelfTiming::Run run = timing.Begin(i, 0, [] { return Sizes{1}; }, now_ns);
    const std::map<int, int64_t> us = {{0, 100}, {1, 10'000}, {2, 90}};
    const int64_t end_ns = now_ns + us.at(run.way.cores) * 1000;
    const bool is_too_long = end_ns > run.limit_ns;
    now_ns = std::min(end_ns, run.limit_ns);
    EXPECT_EQ(is_too_long, run.way.cores == 1);
    timing.End(i, now_ns, is_too_long ? SelfTiming::Outcome::kTooLong : SelfTiming::Outcome::kRan);
  }
  EXPECT_LT(now_ns, 12'000'000);
  EXPECT_EQ(timing.Reports()[0].way, UnitWay{2});
}

TEST(SelfTimingTest, AllUnitsOfAStepRunAlike) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  Graph graph(&timing);
  for (int i = 0; i < 300; ++i) {
    const std::vector<int> cores = graph.Step({{0, 10}, {1, 12}, {2, 9}});
    EXPECT_EQ(cores, std::vector<int>(kUnits, cores.front()));
  }
}

TEST(SelfTimingTest, FinishesAStepThatTakesTooLongAsStockTensorFlow) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  Graph graph(&timing);
  int slow = 0;
  for (int i = 0; i < 300; ++i) {
    const std::vector<int> cores = graph.Step({{0, 100}, {1, 1300}, {2, 90}});
    if (cores.front() != 1) continue;
    ++slow;
    EXPECT_EQ(cores, std::vector<int>({1, 0, 0}));
  }
  EXPECT_EQ(slow, 1);
}

TEST(SelfTimingTest, StepsAtTheSameTimeDoNotMixWays) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  const auto sizes = [] { return Sizes{1}; };
  int64_t now_ns = 0;
  // Two steps overlap all the time, each taking twice as long with one core as with two.
  std::vector<int64_t> ids = {1, 2};
  std::vector<int> units(2);
  int64_t next = 3;
  for (int i = 0; i < 6000; ++i) {
    const int lane = i % 2;
    const int cores = timing.Begin(ids[lane], units[lane], sizes, now_ns).way.cores;
    now_ns += cores == 2 ? 5000 : cores == 1 ? 9000 : 8000;
    timing.End(ids[lane], now_ns);
    if (++units[lane] == kUnits) {
      ids[lane] = next++;
      units[lane] = 0;
    }
  }
  const SelfTiming::Report report = timing.Reports().front();
  EXPECT_FALSE(report.is_trying);
  EXPECT_EQ(report.way, UnitWay{2});
}

TEST(SelfTimingTest, ForgetsStepsThatNeverEnd) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  const auto sizes = [] { return Sizes{1}; };
  for (int64_t id = 1000; id < 3000; ++id) {
    timing.Begin(id, 0, sizes, 0);
    timing.End(id, 10);
  }
  Graph graph(&timing);
  graph.Steps(300, {{0, 10}, {1, 20}, {2, 5}}, {1});
  const SelfTiming::Report report = timing.Reports().front();
  EXPECT_FALSE(report.is_trying);
  EXPECT_EQ(report.way, UnitWay{2});
  for (int64_t id = 2000; id < 3000; ++id) timing.End(id, 10);  // too late
}

TEST(SelfTimingTest, ForgetsSizesThatAreNoLongerUsed) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  Graph graph(&timing);
  for (int64_t batch = 0; batch < 100; ++batch) graph.Steps(3, {{0, 1}, {1, 1}, {2, 1}}, {batch});
  EXPECT_LE(timing.Reports().size(), 16);
  EXPECT_EQ(timing.Reports().front().sizes, Sizes({99}));
}

TEST(SelfTimingTest, AUnitThatRunsTwiceInAStepDoesNotCount) {
  SelfTiming timing(/*unit_count=*/1, /*cores=*/2, /*can_divide=*/false);
  const auto sizes = [] { return Sizes{1}; };
  for (int i = 0; i < 100; ++i) {
    timing.Begin(i, 0, sizes, i * 100);
    timing.Begin(i, 0, sizes, i * 100);
    timing.End(i, i * 100 + 10);
    timing.End(i, i * 100 + 20);
  }
  const SelfTiming::Report report = timing.Reports().front();
  for (const SelfTiming::TimedWay& each : report.ways) EXPECT_EQ(each.steps, 0);
}

TEST(SelfTimingTest, UnitsOfOneGraphShareATiming) {
  const auto first = FindSelfTiming("a graph", 2, 4, false);
  EXPECT_EQ(FindSelfTiming("a graph", 2, 4, false), first);
  EXPECT_NE(FindSelfTiming("a graph", 2, 1, false), first);  // of a Session with one thread
  EXPECT_EQ(FindSelfTiming("a graph", 3, 4, false), nullptr);
  for (int i = 0; i < 1000; ++i) FindSelfTiming("graph " + std::to_string(i), 1, 2, false);
  EXPECT_EQ(FindSelfTiming("a graph", 2, 4, false), first);
  first->Begin(0, 0, [] { return Sizes{7}; }, 0);
  int count = 0;
  ReadSelfTimings([&](const std::string& graph, const SelfTiming::Report& report) {
    count += graph == "a graph" && report.sizes == Sizes{7} ? 1 : 0;
  });
  EXPECT_EQ(count, 1);
}

TEST(SelfTimingTest, ManyThreadsRunSteps) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 2000; ++j) {
        const int64_t id = next++;
        for (int unit = 0; unit < kUnits; ++unit) {
          const int cores = timing.Begin(id, unit, [i] { return Sizes{i % 2}; }, NowNs()).way.cores;
          EXPECT_TRUE(cores >= 0 && cores <= 2);
          timing.End(id, NowNs());
        }
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(timing.Reports().size(), 2);
}

}  // namespace
}  // namespace tf_interop
