// Trials of ways, and the graphs and stages that time themselves by them, all with simulated times.
#include "cc_kernels/core/self_timing.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cc_kernels/core/stage_timing.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/core/way_trials.h"
#include "gtest/gtest.h"

namespace tf_interop {
namespace {

// ---- Trials: the fastest way is kept, slow ways cost little, and a change is noticed.

// Runs that take `us` in each way; returns how many ran in each.
std::vector<int> RunSteps(WayTrials* trials, int runs, const std::vector<double>& us) {
  std::vector<int> counts(us.size());
  for (int i = 0; i < runs; ++i) {
    const int way = trials->way();
    ++counts[way];
    if (us[way] > trials->limit_us()) {
      trials->RecordTooLong(trials->limit_us());
    } else {
      trials->Record(us[way]);
    }
  }
  return counts;
}

TrialsReport Report(const WayTrials& trials) {
  return trials.Report("", "", std::vector<std::string>(4));
}

double TotalUs(const std::vector<int>& counts, const std::vector<double>& us) {
  double total = 0;
  for (size_t way = 0; way < us.size(); ++way) total += counts[way] * us[way];
  return total;
}

TEST(WayTrialsTest, KeepsTheFastest) {
  const struct {
    std::vector<double> us;
    int kept;
  } cases[] = {{{10, 9, 11}, 1},
               {{10, 12, 5}, 2},
               {{10, 30, 40}, 0},
               {{10, 9.5, 9}, 2},
               {{8}, 0},
               // Way 0 stays if no other is clearly faster.
               {{10, 9.9, 9.85}, 0}};
  for (const double scale : {1.0, 1e3, 1e6}) {
    for (const auto& each : cases) {
      std::vector<double> us = each.us;
      for (double& way_us : us) way_us *= scale;
      WayTrials trials(static_cast<int>(us.size()));
      RunSteps(&trials, 200, us);
      EXPECT_FALSE(trials.is_trying());
      EXPECT_EQ(trials.way(), each.kept);
      EXPECT_DOUBLE_EQ(Report(trials).ways[each.kept].median_us, us[each.kept]);
    }
  }
}

TEST(WayTrialsTest, LeavesAWayThatTakesTooLongAfterOneRun) {
  WayTrials trials(3);
  const std::vector<int> counts = RunSteps(&trials, 300, {50e3, 5e6, 49.5e3});
  EXPECT_EQ(counts[1], 1);
  EXPECT_EQ(trials.way(), 0);
}

TEST(WayTrialsTest, TheFirstRunInAWayMayTakeLonger) {
  WayTrials trials(2);
  RunSteps(&trials, 1, {100e3});
  while (trials.way() == 0) trials.Record(100e3);
  ASSERT_LT(300e3, trials.limit_us());
  trials.Record(300e3);
  EXPECT_GT(300e3, trials.limit_us());
  RunSteps(&trials, 100, {100e3, 80e3});
  EXPECT_EQ(trials.way(), 1);
}

TEST(WayTrialsTest, LosesASmallShareOfTheTime) {
  const std::vector<double> us = {10e3, 19e3, 12e3, 8e3};
  WayTrials trials(4);
  const std::vector<int> counts = RunSteps(&trials, 30000, us);
  const double lost = 1 - 30000 * 8e3 / TotalUs(counts, us);
  EXPECT_LT(lost, 0.01);
  EXPECT_NEAR(Report(trials).share_lost, lost, 0.002);
  EXPECT_GT(counts[0], 20);  // it looked again
}

TEST(WayTrialsTest, NoticesThatTimesChanged) {
  const struct {
    std::vector<double> before;
    int kept, runs_after;
    std::vector<double> after;
    int then;
  } cases[] = {
      // The kept way became slower.
      {{10e3, 12e3, 5e3}, 2, 300, {10e3, 12e3, 15e3}, 0},
      // Another program took a core: all became slower, the narrow way, which was out, the least.
      {{20e3, 40e3, 18e3}, 2, 400, {45e3, 41e3, 60e3}, 1},
      // Small changes are noticed at the next trial.
      {{10e3, 9e3}, 1, 2000, {8e3, 9e3}, 0},
  };
  for (const auto& each : cases) {
    WayTrials trials(static_cast<int>(each.before.size()));
    RunSteps(&trials, 300, each.before);
    ASSERT_EQ(trials.way(), each.kept);
    RunSteps(&trials, each.runs_after, each.after);
    EXPECT_EQ(trials.way(), each.then);
  }
}

TEST(WayTrialsTest, ALoadThatComesAndGoesCostsLittle) {
  const std::vector<double> alone = {10e3, 5e3, 9e3};
  const std::vector<double> loaded = {20e3, 15e3, 14e3};
  WayTrials trials(3);
  double total = 0;
  double in_way_0 = 0;
  for (int i = 0; i < 400; ++i) {
    const std::vector<double>& us = i % 2 == 0 ? alone : loaded;
    total += TotalUs(RunSteps(&trials, 150, us), us);
    in_way_0 += 150 * us[0];
  }
  EXPECT_LT(total, 0.75 * in_way_0);  // at best 0.63, with all changes known
  EXPECT_LT(Report(trials).share_lost, 0.03);
}

TEST(WayTrialsTest, AnswersTheSameUnderNoise) {
  // Every tenth run takes twice as long, in one way after the other.
  WayTrials trials(2);
  for (int i = 0; i < 1000; ++i) {
    trials.Record((trials.way() == 0 ? 10e3 : 9e3) * (i % 10 == 0 ? 2 : 1));
  }
  EXPECT_EQ(trials.way(), 1);
}

TEST(WayTrialsTest, ATurnEndsWheneverTheWayMayChange) {
  WayTrials trials(3);
  int way = trials.way();
  int64_t turn = trials.turn();
  for (int i = 0; i < 2000; ++i) {
    trials.Record(1e3 + trials.way());
    if (trials.way() != way) {
      EXPECT_NE(trials.turn(), turn);
    }
    way = trials.way();
    turn = trials.turn();
  }
}

// ---- Graphs: which steps count, and what happens to those that never end, run at the same time,
// or take too long.

constexpr int kUnits = 3;
using Sizes = SelfTiming::Sizes;
using Names = std::vector<std::string>;

// The cores of a way, or less than 0 for the size of parts.
int CodeOf(const UnitWay& way) { return way.part_size > 0 ? -way.part_size : way.cores; }
constexpr int kDivided = -UnitWay::kLargestPart;

// Runs steps one after another. A unit takes `us[CodeOf(way)]`.
class Graph {
 public:
  explicit Graph(SelfTiming* timing) : timing_(*timing) {}

  // Returns the codes of the ways of the units.
  std::vector<int> Step(const std::map<int, double>& us, const Sizes& sizes = {1, 8}) {
    std::vector<int> codes;
    ++id_;
    for (int unit = 0; unit < kUnits; ++unit) {
      codes.push_back(CodeOf(timing_.Begin(id_, unit, [&] { return sizes; }, now_ns_).way));
      now_ns_ += static_cast<int64_t>(us.at(codes.back()) * 1e3);
      timing_.End(id_, now_ns_);
    }
    return codes;
  }

 private:
  SelfTiming& timing_;
  int64_t now_ns_ = 0;
  int64_t id_ = 0;
};

std::vector<std::string> WaysOf(const SelfTiming& timing) {
  std::vector<std::string> ways;
  for (const TrialsReport& report : timing.Reports("")) ways.push_back(report.way);
  return ways;
}

TEST(SelfTimingTest, KeepsTheFastestNumberOfCoresForEachSizes) {
  SelfTiming timing(kUnits, /*cores=*/4, /*can_divide=*/false);
  Graph graph(&timing);
  for (int i = 0; i < 200; ++i) {
    graph.Step({{0, 20}, {1, 40}, {2, 10}, {4, 15}}, {1, 8});
    graph.Step({{0, 20}, {1, 40}, {2, 30}, {4, 15}}, {32, 8});
    graph.Step({{0, 20}, {1, 40}, {2, 30}, {4, 25}}, {2, 8});
  }
  EXPECT_EQ(WaysOf(timing), (Names{"as stock TensorFlow", "on 4 cores", "on 2 cores"}));
  const std::vector<TrialsReport> reports = timing.Reports("graph");
  EXPECT_EQ(reports[0].sizes, "2x8");
  Names ways;
  for (const TrialsReport::TimedWay& each : reports[2].ways) ways.push_back(each.way);
  ASSERT_EQ(ways, (Names{"as stock TensorFlow", "on 4 cores", "on 2 cores", "on 1 core"}));
  EXPECT_NEAR(reports[2].ways[2].median_us, kUnits * 10, 1e-3);
  EXPECT_GT(reports[2].ways[0].runs, 0);
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
  EXPECT_EQ(WaysOf(timing), (Names{"on 2 cores", "with the batch divided", "with the batch divided",
                                   "in parts of 1 image"}));
  std::vector<size_t> counts;
  for (const TrialsReport& report : timing.Reports("")) counts.push_back(report.ways.size());
  EXPECT_EQ(counts, (std::vector<size_t>{3, 4, 5, 6}));
}

TEST(SelfTimingTest, EachCoreGetsAsManyParts) {
  const struct {
    int part_size, batch_size, cores, parts;
  } cases[] = {{UnitWay::kLargestPart, 32, 4, 4},
               {UnitWay::kLargestPart, 3, 4, 3},
               {4, 32, 2, 8},
               {4, 10, 2, 4},
               {4, 8, 2, 2},
               {1, 9, 2, 9},
               {1, 0, 2, 1},
               {0, 8, 2, 1}};
  for (const auto& each : cases) {
    EXPECT_EQ(PartCount({/*cores=*/1, each.part_size}, each.batch_size, each.cores), each.parts);
  }
}

// A graph of one unit on up to two cores.
class OneUnitTest : public testing::Test {
 protected:
  SelfTiming::Run Begin(int64_t id) {
    return timing_.Begin(id, 0, [] { return Sizes{1}; }, now_ns_);
  }

  SelfTiming timing_{/*unit_count=*/1, /*cores=*/2, /*can_divide=*/false};
  int64_t now_ns_ = 0;
};

TEST_F(OneUnitTest, SaysWhichRunsAreTrials) {
  bool was_trial = true;
  for (int i = 0; i < 200; ++i) {
    const SelfTiming::Run run = Begin(i);
    EXPECT_TRUE(was_trial || !run.is_trial);
    was_trial = run.is_trial;
    timing_.End(i, now_ns_ += 50'000);
  }
  EXPECT_FALSE(was_trial);
}

TEST_F(OneUnitTest, RunsThatWarmUpDoNotCount) {
  int left = 5;
  for (int i = 0; i < 100; ++i) {
    const int cores = Begin(i).way.cores;
    const bool is_first = cores == 2 && left-- > 0;
    now_ns_ +=
        is_first ? 900'000 : std::map<int, int>{{0, 100'000}, {1, 150'000}, {2, 90'000}}[cores];
    timing_.End(i, now_ns_, is_first ? SelfTiming::Outcome::kWarmedUp : SelfTiming::Outcome::kRan);
  }
  EXPECT_EQ(WaysOf(timing_), Names{"on 2 cores"});
  EXPECT_EQ(timing_.Reports("")[0].ways[1].median_us, 90);
}

TEST(SelfTimingTest, ASimulatedStepIsThatOfAllItsUnits) {
  SelfTiming timing(/*unit_count=*/2, /*cores=*/2, /*can_divide=*/false);
  int64_t now_ns = 0;
  const auto step = [&](int64_t id, double of_second_us) {
    for (int unit = 0; unit < 2; ++unit) {
      const SelfTiming::Run run =
          timing.Begin(id, unit, [] { return SelfTiming::Sizes{1}; }, now_ns);
      const double us = run.way.cores < 2 ? 0 : unit == 0 ? 30 : of_second_us;
      timing.End(id, now_ns += run.way.cores == 2 ? 10'000 : 20'000, SelfTiming::Outcome::kRan, us);
    }
  };
  const auto simulated_us = [&] {
    const std::vector<TrialsReport> reports = timing.Reports("");
    std::vector<double> found;
    for (const auto& each : reports[0].ways) found.push_back(each.simulated_us);
    return found;
  };
  for (int i = 0; i < 100; ++i) step(i, 12);
  EXPECT_EQ(simulated_us(), (std::vector<double>{0, 42, 0}));
  step(100, 0);  // one unit has no plan any more
  EXPECT_EQ(simulated_us(), (std::vector<double>{0, 0, 0}));
}

TEST_F(OneUnitTest, AUnitThatStopsAtTheLimitLeavesTheTrial) {
  for (int i = 0; i < 100; ++i) {
    const SelfTiming::Run run = Begin(i);
    const std::map<int, int64_t> us = {{0, 100}, {1, 10'000}, {2, 90}};
    const int64_t end_ns = now_ns_ + us.at(run.way.cores) * 1000;
    const bool is_too_long = end_ns > run.limit_ns;
    now_ns_ = std::min(end_ns, run.limit_ns);
    EXPECT_EQ(is_too_long, run.way.cores == 1);
    timing_.End(i, now_ns_,
                is_too_long ? SelfTiming::Outcome::kTooLong : SelfTiming::Outcome::kRan);
  }
  EXPECT_LT(now_ns_, 12'000'000);
  EXPECT_EQ(WaysOf(timing_), Names{"on 2 cores"});
}

TEST_F(OneUnitTest, AUnitThatCannotStopAtTheLimitLeavesTheTrial) {
  int slow = 0;
  for (int i = 0; i < 100; ++i) {
    const int cores = Begin(i).way.cores;
    slow += cores == 1;
    timing_.End(i, now_ns_ += std::map<int, int64_t>{{0, 100}, {1, 500}, {2, 90}}[cores] * 1000);
  }
  EXPECT_EQ(slow, 1);
  EXPECT_EQ(WaysOf(timing_), Names{"on 2 cores"});
}

TEST_F(OneUnitTest, RunsThatFailDoNotCount) {
  for (int i = 0; i < 200; ++i) {
    const bool fails = i % 2 == 0;
    const int cores = Begin(i).way.cores;
    now_ns_ += fails ? 10'000 : std::map<int, int>{{0, 100'000}, {1, 150'000}, {2, 90'000}}[cores];
    timing_.End(i, now_ns_, fails ? SelfTiming::Outcome::kFailed : SelfTiming::Outcome::kRan);
  }
  EXPECT_EQ(WaysOf(timing_), Names{"on 2 cores"});
  EXPECT_EQ(timing_.Reports("")[0].ways[1].median_us, 90);
}

TEST_F(OneUnitTest, AUnitThatRunsTwiceInAStepDoesNotCount) {
  for (int i = 0; i < 100; ++i) {
    Begin(i);
    Begin(i);
    timing_.End(i, now_ns_ += 10);
    timing_.End(i, now_ns_ += 10);
  }
  const std::vector<TrialsReport> reports = timing_.Reports("");
  for (const TrialsReport::TimedWay& each : reports[0].ways) EXPECT_EQ(each.runs, 0);
}

TEST(SelfTimingTest, AllUnitsOfAStepRunAlikeAndFinishOneThatTakesTooLongAsStockTensorFlow) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  Graph graph(&timing);
  int slow = 0;
  for (int i = 0; i < 300; ++i) {
    const std::vector<int> cores = graph.Step({{0, 100}, {1, 1300}, {2, 90}});
    const bool is_slow = cores.front() == 1;
    slow += is_slow;
    EXPECT_EQ(cores, is_slow ? std::vector<int>({1, 0, 0}) : std::vector<int>(3, cores.front()));
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
  EXPECT_FALSE(timing.Reports("")[0].is_trying);
  EXPECT_EQ(WaysOf(timing), Names{"on 2 cores"});
}

TEST(SelfTimingTest, ManyStepsOfSeveralSizesHaveACoreEach) {
  SelfTiming timing(/*unit_count=*/1, /*cores=*/2, /*can_divide=*/true);
  const auto begin = [&](int64_t id, int64_t size) {
    return timing.Begin(id, 0, [size] { return Sizes{size}; }, /*now_ns=*/0);
  };
  for (int64_t id = 0; id < 300; id += 4) {
    EXPECT_TRUE(begin(id, 8).way.is_stock());
    EXPECT_TRUE(begin(id + 1, 4).way.is_stock());
    for (const int64_t later : {2, 3}) {
      const SelfTiming::Run run = begin(id + later, 8);
      EXPECT_EQ(CodeOf(run.way), 1);
      EXPECT_FALSE(run.is_trial);
    }
    for (int64_t each = id; each < id + 4; ++each) timing.End(each, 1000);
  }
  for (const TrialsReport& report : timing.Reports("")) EXPECT_TRUE(report.is_trying);
}

TEST(SelfTimingTest, ForgetsStepsThatNeverEnd) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  const auto sizes = [] { return Sizes{1}; };
  for (int64_t id = 1000; id < 3000; ++id) {
    timing.Begin(id, 0, sizes, 0);
    timing.End(id, 10);
  }
  Graph graph(&timing);
  for (int i = 0; i < 300; ++i) graph.Step({{0, 10}, {1, 20}, {2, 5}}, {1});
  EXPECT_FALSE(timing.Reports("")[0].is_trying);
  EXPECT_EQ(WaysOf(timing), Names{"on 2 cores"});
  for (int64_t id = 2000; id < 3000; ++id) timing.End(id, 10);  // too late
}

TEST(SelfTimingTest, ForgetsSizesThatAreNoLongerUsed) {
  SelfTiming timing(kUnits, /*cores=*/2, /*can_divide=*/false);
  Graph graph(&timing);
  for (int64_t batch = 0; batch < 100; ++batch) graph.Step({{0, 1}, {1, 1}, {2, 1}}, {batch});
  EXPECT_LE(timing.Reports("").size(), SelfTiming::kMostSizes);
  EXPECT_EQ(timing.Reports("").front().sizes, "99");
}

TEST(SelfTimingTest, UnitsOfOneGraphShareATiming) {
  const auto first = FindSelfTiming("a graph", 2, 4, false);
  EXPECT_EQ(FindSelfTiming("a graph", 2, 4, false), first);
  EXPECT_NE(FindSelfTiming("a graph", 2, 1, false), first);  // of a Session with one thread
  EXPECT_EQ(FindSelfTiming("a graph", 3, 4, false), nullptr);
  for (int i = 0; i < 1000; ++i) FindSelfTiming("graph " + std::to_string(i), 1, 2, false);
  EXPECT_EQ(FindSelfTiming("a graph", 2, 4, false), first);
  first->Begin(0, 0, [] { return Sizes{7}; }, 0);
  const std::vector<TrialsReport> reports = ReadSelfTimings();
  EXPECT_EQ(std::count_if(reports.begin(), reports.end(),
                          [](const auto& each) { return each.name == "a graph"; }),
            1);
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
  EXPECT_EQ(timing.Reports("").size(), 2u);
}

// ---- Stages: which way is kept, when times drift, and while the host is ahead.

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

TEST_P(StageTimingTest, KeepsTheFastestWayAndLooksAgainWhenTimesDrift) {
  const struct {
    double planned, sequence;
    const char* kept;
  } cases[] = {{60, 80, "as planned"},
               {160, 80, "in sequence"},
               {99, 160, "as stock TensorFlow"}};  // unless another is clearly faster
  for (const auto& each : cases) {
    StageTiming timing("stage_0", "1x8", /*has_sequence=*/true);
    Device device(&timing, GetParam());
    device.Calls(
        4000, {{Way::kStock, 100}, {Way::kPlanned, each.planned}, {Way::kSequence, each.sequence}});
    EXPECT_EQ(timing.Read().way, each.kept);
  }
  device_.Calls(4000, {{Way::kStock, 100}, {Way::kPlanned, 60}, {Way::kSequence, 80}});
  device_.Calls(8000, {{Way::kStock, 100}, {Way::kPlanned, 300}, {Way::kSequence, 280}});
  EXPECT_EQ(timing_.Read().way, "as stock TensorFlow");
}

TEST_P(StageTimingTest, TimesFewCallsAfterATrial) {
  const std::map<Way, double> us = {{Way::kStock, 100}, {Way::kPlanned, 60}, {Way::kSequence, 80}};
  device_.Calls(4000, us);
  int timed = 0;
  for (int i = 0; i < 160; ++i) timed += device_.Call(us).is_timed ? 1 : 0;
  EXPECT_LE(timed, 10);
  EXPECT_GE(timed, 1);
}

TEST(StageTimingTest, ReportsHaveTheStagesThatExist) {
  auto first = MakeStageTiming("first", "1x8", /*has_sequence=*/true);
  const auto second = MakeStageTiming("second", "2x8", /*has_sequence=*/false);
  EXPECT_EQ(ReadStageTimings().size(), 2u);
  first.reset();
  const std::vector<TrialsReport> reports = ReadStageTimings();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].name, "second");
  EXPECT_EQ(reports[0].sizes, "2x8");
  EXPECT_EQ(reports[0].ways.size(), 2u);
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
  const TrialsReport report = timing.Read();
  EXPECT_FALSE(report.is_trying);
  EXPECT_EQ(report.way, "as planned");
  EXPECT_EQ(report.ways[1].median_us, 60);
}

}  // namespace
}  // namespace tf_interop
