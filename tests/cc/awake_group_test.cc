// Groups of threads that are awake: every part runs once and before the caller goes on, whether
// helpers come at once, late, or never.
#include "cc_kernels/core/awake_group.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace tf_interop {
namespace {

// Runs each closure on a thread of its own, after a delay.
class Threads {
 public:
  explicit Threads(std::chrono::microseconds delay = {}) : delay_(delay) {}
  ~Threads() { Join(); }

  AwakeGroup::Pool pool() {
    return [this](std::function<void()> work) {
      const std::lock_guard<std::mutex> lock(mutex_);
      ++count_;
      threads_.emplace_back([this, work = std::move(work)] {
        std::this_thread::sleep_for(delay_);
        work();
      });
    };
  }
  void Join() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (std::thread& each : threads_) each.join();
    threads_.clear();
  }
  int count() const { return count_; }

 private:
  const std::chrono::microseconds delay_;
  std::mutex mutex_;
  std::vector<std::thread> threads_;
  std::atomic<int> count_ = 0;
};

// Divides parts as oneDNN and Eigen do: the root schedules the second half again and again.
void RunParts(AwakeGroup* group, int first, int last, std::vector<int>* runs) {
  while (last - first > 1) {
    const int middle = first + (last - first) / 2;
    group->Schedule([=] { RunParts(group, middle, last, runs); });
    last = middle;
  }
  ++(*runs)[first];  // not atomic: what runs it twice, or does not wait, is a data race
}

void RunRegions(AwakeGroup* group, int regions, int parts) {
  for (int i = 0; i < regions; ++i) {
    std::vector<int> runs(parts);
    group->Schedule([&] { RunParts(group, 0, parts, &runs); });
    ASSERT_EQ(runs, std::vector<int>(parts, 1));
  }
}

class AwakeGroupTest : public testing::TestWithParam<int> {};

TEST_P(AwakeGroupTest, RunsEveryPartOnceBeforeScheduleReturns) {
  Threads threads;
  AwakeGroup group(GetParam());
  EXPECT_EQ(group.cores(), GetParam());
  for (int lease = 0; lease < 20; ++lease) {
    group.Begin(threads.pool());
    for (const int parts : {1, 2, 3, 8, 33}) RunRegions(&group, 20, parts);
    group.End();
  }
  threads.Join();
}

INSTANTIATE_TEST_SUITE_P(Cores, AwakeGroupTest, testing::Values(1, 2, 3, 8));

TEST(AwakeGroupTest, NeedsNoHelper) {
  AwakeGroup group(4);
  std::vector<std::function<void()>> asked;
  group.Begin([&](std::function<void()> work) { asked.push_back(std::move(work)); });
  RunRegions(&group, 100, 16);
  group.End();
  EXPECT_EQ(asked.size(), 3u);            // once each, although none came
  for (const auto& work : asked) work();  // they come after the lease, and leave
}

TEST(AwakeGroupTest, HelpersMayComeLate) {
  Threads threads(std::chrono::microseconds(300));
  AwakeGroup group(3);
  for (int lease = 0; lease < 50; ++lease) {
    group.Begin(threads.pool());
    RunRegions(&group, 30, 12);
    group.End();
  }
  threads.Join();
}

#if defined(__linux__)
cpu_set_t Affinity() {
  cpu_set_t cores;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  return cores;
}

// A helper that runs on the caller's own thread begins on its core.
void HelpOnThisThread() {
  AwakeGroup group(2);
  std::function<void()> help;
  group.Begin([&](std::function<void()> work) { help = std::move(work); });
  group.End();
  ASSERT_NE(help, nullptr);
  help();
}

TEST(AwakeGroupTest, AHelperLeavesTheCallersCoreAndKeepsItsAffinity) {
  const cpu_set_t allowed = Affinity();
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "Needs two cores.";
  bool has_moved = false;
  for (int i = 0; i < 10 && !has_moved; ++i) {  // the system may move the thread, too
    const int core = sched_getcpu();
    HelpOnThisThread();
    has_moved = sched_getcpu() != core;
  }
  EXPECT_TRUE(has_moved);
  const cpu_set_t after = Affinity();
  EXPECT_TRUE(CPU_EQUAL(&after, &allowed));
}

TEST(AwakeGroupTest, AHelperStaysIfItMayUseNoOtherCore) {
  const cpu_set_t allowed = Affinity();
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  HelpOnThisThread();
  const cpu_set_t after = Affinity();
  EXPECT_TRUE(CPU_EQUAL(&after, &one));
  sched_setaffinity(0, sizeof(allowed), &allowed);
}
#endif

TEST(AwakeGroupTest, APartWaitsForAHelperThatWasAsked) {
  Threads threads(std::chrono::microseconds(300));
  AwakeGroup group(2);
  group.Begin(threads.pool());
  int helper = -1;
  group.Schedule([&] {
    group.Schedule([&] { helper = group.CurrentHelper(); });
    threads.Join();  // returns when the helper has left, because it had nothing else to do
  });
  EXPECT_EQ(helper, 0);
  group.End();
}

TEST(AwakeGroupTest, AHelperWithoutWorkLeavesAndIsAskedAgain) {
  Threads threads;
  AwakeGroup group(2);
  group.Begin(threads.pool());
  threads.Join();  // it leaves although the lease lasts
  EXPECT_EQ(threads.count(), 1);
  RunRegions(&group, 1, 2);
  EXPECT_EQ(threads.count(), 2);
  group.End();
  threads.Join();
}

// Runs tasks that each divide work, on whatever helpers come, and on the caller.
void RunTasks(AwakeGroup* group, int tasks, int parts) {
  std::vector<std::vector<int>> runs(tasks, std::vector<int>(parts));
  std::atomic<int> left = tasks;
  for (int i = 0; i < tasks; ++i) {
    const auto task = [group, parts, &left, of_task = &runs[i]] {
      EXPECT_EQ(group->CurrentHelper(), -1);  // so that oneDNN divides its work
      group->Schedule([&] { RunParts(group, 0, parts, of_task); });
      EXPECT_EQ(*of_task, std::vector<int>(parts, 1));
      --left;
    };
    if (!group->GiveTask(task)) task();
  }
  group->HelpUntil([&] { return left == 0; });
  group->FinishTasks();
  ASSERT_EQ(left, 0);
}

TEST_P(AwakeGroupTest, TasksDivideTheirWork) {
  Threads threads;
  AwakeGroup group(GetParam());
  for (int lease = 0; lease < 20; ++lease) {
    group.Begin(threads.pool());
    for (const int tasks : {1, 2, 7}) RunTasks(&group, tasks, 9);
    group.End();
  }
  threads.Join();
}

TEST(AwakeGroupTest, ACallerThatWaitsTakesPartsOfATask) {
  Threads threads;
  AwakeGroup group(2);
  group.Begin(threads.pool());
  std::atomic<bool> was_helped = false;
  while (!was_helped) {
    std::atomic<bool> is_over = false;
    const auto task = [&] {
      const std::thread::id helper = std::this_thread::get_id();
      group.Schedule([&] {
        group.Schedule([&] { was_helped = std::this_thread::get_id() != helper; });
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      });
      is_over = true;
    };
    if (!group.GiveTask(task)) {
      group.Schedule([] {});  // asks for a helper that has left
      continue;
    }
    group.HelpUntil([&] { return is_over.load(); });
    group.FinishTasks();
  }
  group.End();
  threads.Join();
}

TEST(AwakeGroupTest, WaitsForATaskThatAHelperHasBegun) {
  Threads threads;
  AwakeGroup group(2);
  group.Begin(threads.pool());
  for (int given = 0; given < 5;) {
    int runs = 0;  // not atomic: what does not wait is a data race
    const auto task = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ++runs;
    };
    if (!group.GiveTask(task)) {
      group.Schedule([] {});  // asks for a helper that has left
      continue;
    }
    group.FinishTasks();
    ASSERT_EQ(runs, 1);
    ++given;
  }
  group.End();
  threads.Join();
}

TEST(AwakeGroupTest, GroupsOfSeveralCallersDoNotMix) {
  std::vector<std::unique_ptr<Threads>> threads;
  std::vector<std::unique_ptr<AwakeGroup>> groups;
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(std::make_unique<Threads>());
    groups.push_back(std::make_unique<AwakeGroup>(3));
    callers.emplace_back([group = groups.back().get(), pool = threads.back()->pool()] {
      for (int lease = 0; lease < 10; ++lease) {
        group->Begin(pool);
        RunRegions(group, 50, 9);
        group->End();
      }
    });
  }
  for (std::thread& each : callers) each.join();
  for (const auto& each : threads) each->Join();
}

}  // namespace
}  // namespace tf_interop
