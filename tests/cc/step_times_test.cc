// Plans from times of steps: what is divided, what shares the cores, and how long that takes.
#include "cc_kernels/core/step_times.h"

#include <vector>

#include "gtest/gtest.h"

namespace tf_interop {
namespace {

using Times = std::vector<double>;

// Two branches of two steps each, between two others.
const StepOrder kOrder({{}, {0}, {0}, {1}, {2}, {3, 4}}, std::vector<bool>(6, true));
constexpr int kCores = 2;

double PlannedUs(const Times& one_us, const Times& all_us, std::vector<bool>* is_wide) {
  const LanePlan plan = PlanLanes(kOrder, one_us, all_us, kCores);
  *is_wide = plan.is_wide;
  return SimulateLanes(kOrder, plan, one_us, all_us, kCores);
}

TEST(StepTimesTest, StepsThatDivideWellAreDivided) {
  std::vector<bool> is_wide;
  EXPECT_EQ(PlannedUs(Times(6, 100), Times(6, 50), &is_wide), 300);
  EXPECT_EQ(is_wide, std::vector<bool>(6, true));
}

TEST(StepTimesTest, ShortStepsOfBranchesShareTheCores) {
  std::vector<bool> is_wide;
  const Times one_us = {100, 10, 10, 10, 10, 100};
  const Times all_us = {50, 9, 9, 9, 9, 50};
  EXPECT_EQ(PlannedUs(one_us, all_us, &is_wide), 120);
  EXPECT_EQ(is_wide, std::vector<bool>({true, false, false, false, false, true}));
}

TEST(StepTimesTest, ALongStepBesideShortOnesIsDivided) {
  // On one core each, the long step would take longer than all others together.
  std::vector<bool> is_wide;
  const Times one_us = {10, 200, 10, 10, 10, 10};
  const Times all_us = {10, 100, 10, 10, 10, 10};
  EXPECT_LE(PlannedUs(one_us, all_us, &is_wide), 150);
  EXPECT_TRUE(is_wide[1]);
}

TEST(StepTimesTest, LanesThatAreHardlyFasterAreNotTaken) {
  std::vector<bool> is_wide;
  PlannedUs(Times(6, 100), Times(6, 70), &is_wide);  // 400 us in lanes, 420 one after another
  EXPECT_EQ(is_wide, std::vector<bool>(6, true));
}

TEST(StepTimesTest, PlansWhenAllTimesAreKnown) {
  StepTimes times(kOrder);
  const auto record = [&](int cores, double us) {
    for (int step = 0; step < 6; ++step) times.Record(step, cores, us);
    times.Plan();
  };
  record(2, 90);
  EXPECT_EQ(times.BeginRun(2).plan, nullptr);
  record(1, 100);
  ASSERT_NE(times.BeginRun(2).plan, nullptr);
  EXPECT_FALSE(times.BeginRun(2).plan->is_wide[1]);
  EXPECT_EQ(times.BeginRun(4).plan, nullptr);
  record(2, 50);  // the least counts: the first runs fill caches
  EXPECT_TRUE(times.BeginRun(2).plan->is_wide[1]);
  record(2, 90);
  EXPECT_TRUE(times.BeginRun(2).plan->is_wide[1]);
}

TEST(StepTimesTest, KeepsAPlanUnlessAnotherIsFaster) {
  StepTimes times(kOrder);
  const auto record = [&](int cores, const Times& us) {
    for (int step = 0; step < 6; ++step) times.Record(step, cores, us[step]);
    times.Plan();
  };
  record(1, Times(6, 100));
  record(2, Times(6, 90));
  const auto first = times.BeginRun(2);
  EXPECT_TRUE(first.is_new);
  for (int i = 0; i < 10; ++i) times.BeginRun(2);
  EXPECT_FALSE(times.BeginRun(2).is_new);
  record(1, {99, 100, 100, 100, 100, 100});
  EXPECT_EQ(times.BeginRun(2).plan, first.plan);
  record(2, Times(6, 50));
  EXPECT_NE(times.BeginRun(2).plan, first.plan);
  EXPECT_TRUE(times.BeginRun(2).is_new);
}

}  // namespace
}  // namespace tf_interop
