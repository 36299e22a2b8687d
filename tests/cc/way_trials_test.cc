// Trials of ways with simulated times: the fastest is kept, slow ways cost little, and a change is
// noticed.
#include "cc_kernels/core/way_trials.h"

#include <vector>

#include "gtest/gtest.h"

namespace tf_interop {
namespace {

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

double TotalUs(const std::vector<int>& counts, const std::vector<double>& us) {
  double total = 0;
  for (size_t way = 0; way < us.size(); ++way) total += counts[way] * us[way];
  return total;
}

TEST(WayTrialsTest, KeepsTheFastest) {
  for (const double scale : {1.0, 1e3, 1e6}) {
    const std::vector<std::vector<double>> cases = {
        {10, 9, 11}, {10, 12, 5}, {10, 30, 40}, {10, 9.5, 9}, {8}};
    const int fastest[] = {1, 2, 0, 2, 0};
    for (size_t i = 0; i < cases.size(); ++i) {
      std::vector<double> us = cases[i];
      for (double& each : us) each *= scale;
      WayTrials trials(static_cast<int>(us.size()));
      RunSteps(&trials, 200, us);
      EXPECT_FALSE(trials.is_trying());
      EXPECT_EQ(trials.way(), fastest[i]) << i;
      EXPECT_DOUBLE_EQ(trials.median_us(fastest[i]), us[fastest[i]]);
    }
  }
}

TEST(WayTrialsTest, KeepsWayZeroIfNoOtherIsClearlyFaster) {
  WayTrials trials(3);
  RunSteps(&trials, 200, {100, 99, 98.5});
  EXPECT_EQ(trials.way(), 0);
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
  EXPECT_NEAR(trials.share_lost(), lost, 0.002);
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
  EXPECT_LT(trials.share_lost(), 0.03);
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

}  // namespace
}  // namespace tf_interop
