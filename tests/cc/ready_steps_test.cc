// Steps of random programs, taken by several threads: each runs once and after those that it reads;
// those that are divided run alone.
#include "cc_kernels/core/ready_steps.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tf_interop {
namespace {

using Sources = std::vector<std::vector<int>>;

StepOrder OrderOf(const Sources& sources) {
  return StepOrder(sources, std::vector<bool>(sources.size(), true));
}

Sources RandomSources(int count, unsigned seed) {
  std::mt19937 random(seed);
  Sources sources(count);
  for (int step = 1; step < count; ++step) {
    for (int source = std::max(0, step - 5); source < step; ++source) {
      if (random() % 3 == 0) sources[step].push_back(source);
    }
  }
  return sources;
}

TEST(StepOrderTest, KnowsAChain) {
  EXPECT_TRUE(OrderOf({}).is_chain());
  EXPECT_TRUE(OrderOf({{}, {0}, {0, 1}}).is_chain());
  EXPECT_FALSE(OrderOf({{}, {}, {0, 1}}).is_chain());
  EXPECT_FALSE(OrderOf({{}, {0}, {0}}).is_chain());
}

TEST(ReadyStepsTest, TheLongestPathGoesFirst) {
  const StepOrder order = OrderOf({{}, {}, {1}, {0, 2}});
  const LanePlan plan = PlanOfOneCoreEach(order);
  ReadySteps ready(order, plan);
  EXPECT_EQ(ready.free_count(), 2);
  EXPECT_EQ(ready.Take(), 1);
  EXPECT_EQ(ready.Take(), 0);
  EXPECT_EQ(ready.Take(), ReadySteps::kNone);
  EXPECT_EQ(ready.TakeAfter(0), ReadySteps::kNone);
  EXPECT_EQ(ready.TakeAfter(1), 2);
  EXPECT_EQ(ready.TakeAfter(2), 3);
  EXPECT_FALSE(ready.is_over());
  EXPECT_EQ(ready.TakeAfter(3), ReadySteps::kNone);
  EXPECT_TRUE(ready.is_over());
}

TEST(ReadyStepsTest, AStepThatReadsTheResultFollows) {
  const StepOrder order = OrderOf({{}, {}, {}, {0}});
  const LanePlan plan{{false, false, false, false}, {4, 3, 2, 1}};
  ReadySteps ready(order, plan);
  ASSERT_EQ(ready.Take(), 0);
  EXPECT_EQ(ready.TakeAfter(0), 3);  // although others have higher ranks
  EXPECT_EQ(ready.TakeAfter(3), 1);
}

TEST(ReadyStepsTest, AWideStepRunsAlone) {
  const StepOrder order = OrderOf({{}, {}, {}, {}});
  const LanePlan plan{{true, false, false, true}, {3, 2, 1, 0}};
  ReadySteps ready(order, plan);
  EXPECT_EQ(ready.Take(), 0);
  EXPECT_EQ(ready.free_count(), 0);
  EXPECT_EQ(ready.Take(), ReadySteps::kNone);
  EXPECT_EQ(ready.TakeAfter(0), 1);
  EXPECT_EQ(ready.free_count(), 1);  // not the other wide one
  EXPECT_EQ(ready.Take(), 2);
  EXPECT_EQ(ready.Take(), ReadySteps::kNone);
  EXPECT_EQ(ready.TakeAfter(1), ReadySteps::kNone);
  EXPECT_EQ(ready.TakeAfter(2), 3);
}

TEST(ReadyStepsTest, AStoppedRunIsOverWhenItsStepsAre) {
  const StepOrder order = OrderOf({{}, {}, {0}});
  const LanePlan plan = PlanOfOneCoreEach(order);
  ReadySteps ready(order, plan);
  ASSERT_EQ(ready.Take(), 0);
  ready.Stop();
  EXPECT_FALSE(ready.is_over());
  EXPECT_EQ(ready.Take(), ReadySteps::kNone);
  EXPECT_EQ(ready.TakeAfter(0), ReadySteps::kNone);
  EXPECT_TRUE(ready.is_over());
  ready.Wait();  // returns at once
}

TEST(ReadyStepsTest, ThreadsRunEachStepOnceAfterItsSources) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const Sources sources = RandomSources(60, seed);
    const StepOrder order = OrderOf(sources);
    LanePlan plan = PlanOfOneCoreEach(order);
    for (size_t step = 0; step < plan.is_wide.size(); ++step)
      plan.is_wide[step] = step % 7 == seed % 7;
    ReadySteps ready(order, plan);
    std::vector<int> runs(sources.size());  // not atomic: what runs too early is a data race
    std::atomic<int> running = 0;
    const auto work = [&] {
      while (!ready.is_over()) {
        ready.Wait();
        for (int step = ready.Take(); step != ReadySteps::kNone; step = ready.TakeAfter(step)) {
          const int others = running++;
          if (plan.is_wide[step]) {
            EXPECT_EQ(others, 0);
          }
          for (const int source : sources[step]) EXPECT_EQ(runs[source], 1);
          ++runs[step];
          --running;
        }
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(runs, std::vector<int>(sources.size(), 1));
  }
}

// ---- Plans from times of steps: what is divided, what shares the cores, and how long that takes.

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
    times.Record(cores, Times(6, us));
    times.Plan();
  };
  record(2, 90);
  EXPECT_EQ(times.BeginRun(2).plan, nullptr);
  record(1, 100);
  ASSERT_NE(times.BeginRun(2).plan, nullptr);
  EXPECT_FALSE(times.BeginRun(2).plan->is_wide[1]);
  EXPECT_EQ(times.BeginRun(2).simulated_us, 4 * 100);  // two of six steps run beside others
  EXPECT_EQ(times.BeginRun(4).plan, nullptr);
  record(2, 50);  // the least counts: the first runs fill caches
  EXPECT_TRUE(times.BeginRun(2).plan->is_wide[1]);
  record(2, 90);
  EXPECT_TRUE(times.BeginRun(2).plan->is_wide[1]);
}

TEST(StepTimesTest, SimulatesAUsualRun) {
  StepTimes times(kOrder);
  // Each step is once as fast as 100 us, but a usual run takes 780 us on one core.
  for (int slow = 0; slow < 20; ++slow) {
    Times us(6, 136);
    us[slow % 6] = 100;
    times.Record(1, us);
  }
  times.Record(2, Times(6, 90));
  times.Plan();
  EXPECT_DOUBLE_EQ(times.BeginRun(2).simulated_us, 4 * 100 * 780.0 / 600);
}

TEST(StepTimesTest, KeepsAPlanUnlessAnotherIsFaster) {
  StepTimes times(kOrder);
  const auto record = [&](int cores, const Times& us) {
    times.Record(cores, us);
    times.Plan();
  };
  record(1, Times(6, 100));
  record(2, Times(6, 90));
  const auto first = times.BeginRun(2);
  EXPECT_TRUE(first.is_new);
  for (int i = 0; i < 10; ++i) times.BeginRun(2);
  EXPECT_FALSE(times.BeginRun(2).is_new);
  const double before_us = times.BeginRun(2).simulated_us;
  record(1, {99, 100, 100, 100, 100, 100});
  EXPECT_EQ(times.BeginRun(2).plan, first.plan);
  EXPECT_NEAR(times.BeginRun(2).simulated_us, before_us, 1);
  record(2, Times(6, 50));
  EXPECT_NE(times.BeginRun(2).plan, first.plan);
  EXPECT_TRUE(times.BeginRun(2).is_new);
}

}  // namespace
}  // namespace tf_interop
