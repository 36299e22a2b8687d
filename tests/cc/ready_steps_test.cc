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

}  // namespace
}  // namespace tf_interop
