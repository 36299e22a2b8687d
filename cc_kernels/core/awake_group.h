// Threads that stay awake while a unit runs.
#ifndef TF_INTEROP_CORE_AWAKE_GROUP_H_
#define TF_INTEROP_CORE_AWAKE_GROUP_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

namespace tf_interop {

// A calling thread and its helpers, for one caller at a time.
//
// A thread pool puts the caller of an operation to sleep, and wakes a thread for each operation,
// which takes longer than a small operation. Here the caller runs what it schedules, and gives the
// parts that this schedules in turn to helpers, which spin for them. Then it runs the parts that no
// helper has begun, and spins until the rest is done. So whoever waits for scheduled work after
// Schedule finds it done.
//
// Helpers also run whole tasks, such as operations that do not depend on each other. What a task
// schedules is divided like the caller's own work. A caller that waits for tasks helps meanwhile.
//
// A helper is a closure on a pool of the caller's, so no thread is made. Parts may be given to it
// before it comes. It leaves when the lease ends, or after a while without work. One that begins on
// the caller's core moves to another: Linux may have woken it there, and would let it wait for
// milliseconds. One that does not come, because the pool is busy or another program has the core,
// is not waited for. A group must outlive the closures on the pool.
class AwakeGroup {
 public:
  // Runs a closure on a thread of a pool, some time.
  using Pool = std::function<void(std::function<void()>)>;

  // `cores` includes the caller's.
  explicit AwakeGroup(int cores);

  // Begins a lease: asks for helpers from `pool`.
  void Begin(Pool pool);
  // Ends it; all work and all tasks are done. Helpers may leave later, and may come to the next
  // lease instead.
  void End() { is_leased_.store(false, std::memory_order_release); }

  // Returns after `work` and all that it scheduled; on a helper, or inside `work`, some time
  // before.
  void Schedule(std::function<void()> work);
  int cores() const { return static_cast<int>(helpers_.size()); }
  // The number of a thread that runs a part of scheduled work, from 0; -1 on any other thread.
  int CurrentHelper() const;

  // Gives a task to a helper that is idle; false if there is none.
  bool GiveTask(std::function<void()> task) { return Give(&task, &tasks_, /*is_task=*/true); }
  // The caller helps until `is_over` returns true.
  void HelpUntil(const std::function<bool()>& is_over);
  // The caller waits until all tasks are done, and runs those that no helper has begun.
  void FinishTasks() { WaitFor(&tasks_); }

 private:
  enum class State {
    kAbsent,
    kAsked,  // its closure has not begun, or does not know yet that its work was taken back
    kIdle,
    kReserved,  // a giver writes its work
    kGiven,
    kWorking,
  };
  struct alignas(64) Helper {
    std::atomic<State> state{State::kAbsent};
    std::function<void()> work;
    std::atomic<int>* given = nullptr;  // counts the work that is not done, together with others
    bool is_task = false;
  };

  using Clock = std::chrono::steady_clock;

  void AskForHelpers();
  // Yields the caller's core once in a lease, some time after its begin: a helper that is late may
  // wait for that core.
  void LetHelpersCome();
  void Help(int number);
  // Gives work to an idle helper, or a part to one that was asked; false if there is none.
  bool Give(std::function<void()>* work, std::atomic<int>* given, bool is_task);
  bool GiveIf(State state, std::function<void()>* work, std::atomic<int>* given, bool is_task);
  // Runs what this helper was given; false if that is nothing.
  bool RunGiven(int number);
  // Waits for all work that `given` counts, and runs what no helper has begun.
  void WaitFor(std::atomic<int>* given);
  bool TakeBack(std::atomic<int>* given);

  std::vector<Helper> helpers_;  // the last is the caller
  std::atomic<int> tasks_{0};    // that are not done
  std::atomic<bool> is_leased_{false};
  std::atomic<int> core_{-1};  // the caller's at the beginning; -1 if unknown
  std::atomic<bool> may_yield_{false};
  Clock::time_point begin_;
  Pool pool_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_AWAKE_GROUP_H_
