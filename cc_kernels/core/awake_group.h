// Threads that stay awake while a unit runs.
#ifndef TF_INTEROP_CORE_AWAKE_GROUP_H_
#define TF_INTEROP_CORE_AWAKE_GROUP_H_

#include <atomic>
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
// A helper is a closure on a pool of the caller's, so no thread is made. It leaves when the lease
// ends, or after a while without work. One that does not come, because the pool is busy or another
// program has the core, is not waited for. A group must outlive the closures on the pool.
class AwakeGroup {
 public:
  // Runs a closure on a thread of a pool, some time.
  using Pool = std::function<void(std::function<void()>)>;

  // `cores` includes the caller's.
  explicit AwakeGroup(int cores);

  // Begins a lease: asks for helpers from `pool`.
  void Begin(Pool pool);
  // Ends it; all work is done. Helpers may leave later, and may come to the next lease instead.
  void End() { is_leased_.store(false, std::memory_order_release); }

  // Returns after `work` and all that it scheduled; on a helper, or inside `work`, some time
  // before.
  void Schedule(std::function<void()> work);
  int cores() const { return static_cast<int>(helpers_.size()) + 1; }
  // The number of a helper, from 0; -1 on any other thread.
  int CurrentHelper() const;

 private:
  enum class State {
    kAbsent,
    kAsked,  // its closure has not begun
    kIdle,
    kReserved,  // a giver writes its work
    kGiven,
    kWorking,
  };
  struct alignas(64) Helper {
    std::atomic<State> state{State::kAbsent};
    std::function<void()> work;
  };

  void AskForHelpers();
  void Help(int number);
  // Gives work to an idle helper; false if there is none.
  bool Give(std::function<void()>* work);
  // Runs the work that a helper has not begun; false if there is none.
  bool TakeBack();

  std::vector<Helper> helpers_;
  std::atomic<int> given_{0};  // parts that are not done
  std::atomic<bool> is_leased_{false};
  Pool pool_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_AWAKE_GROUP_H_
