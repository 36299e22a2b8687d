#include "cc_kernels/core/awake_group.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <chrono>
#include <thread>
#include <utility>

namespace tf_interop {
namespace {

// The group whose scheduled work this thread runs, and the thread's number in it. `given` counts
// the parts of that work which others run. All are empty outside scheduled work.
struct Place {
  const AwakeGroup* group = nullptr;
  int number = -1;
  std::atomic<int>* given = nullptr;
};

Place& CurrentPlace() {
  static thread_local Place place;
  return place;
}

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int CurrentCore() {
#if defined(__linux__)
  return sched_getcpu();
#else
  return -1;
#endif
}

// Waits a little longer each time: spins for some 50 us, then lets other threads run, then sleeps.
class Waiting {
 public:
  void operator()() {
    ++count_;
    if (count_ < kSpins) {
      Pause();
    } else if (count_ < kSpins + kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  bool sleeps() const { return count_ >= kSpins + kYields; }

 private:
  static constexpr int kSpins = 1500;
  static constexpr int kYields = 1000;
  int count_ = 0;
};

// Most threads come within 70 us.
constexpr auto kTimeToCome = std::chrono::microseconds(100);

// Moves the calling thread off a core if it is there. It may run on the same cores as before.
void LeaveCore(int core) {
#if defined(__linux__)
  cpu_set_t allowed;
  if (core < 0 || CurrentCore() != core || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) {
    return;
  }
  cpu_set_t others = allowed;
  CPU_CLR(core, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof(others), &others) == 0) {
    sched_setaffinity(0, sizeof(allowed), &allowed);
  }
#endif
}

}  // namespace

AwakeGroup::AwakeGroup(int cores) : helpers_(cores) {}

void AwakeGroup::Begin(Pool pool) {
  pool_ = std::move(pool);
  core_.store(CurrentCore(), std::memory_order_relaxed);
  may_yield_.store(true, std::memory_order_relaxed);
  begin_ = Clock::now();
  is_leased_.store(true, std::memory_order_release);
  AskForHelpers();
}

void AwakeGroup::AskForHelpers() {
  for (size_t i = 0; i + 1 < helpers_.size(); ++i) {
    State state = State::kAbsent;
    if (helpers_[i].state.load(std::memory_order_relaxed) == state &&
        helpers_[i].state.compare_exchange_strong(state, State::kAsked)) {
      pool_([this, i] { Help(static_cast<int>(i)); });
    }
  }
}

int AwakeGroup::CurrentHelper() const {
  const Place& place = CurrentPlace();
  return place.group == this ? place.number : -1;
}

void AwakeGroup::Schedule(std::function<void()> work) {
  Place& place = CurrentPlace();
  if (place.group == this) {
    if (!Give(&work, place.given, /*is_task=*/false)) work();
    return;
  }
  AskForHelpers();
  std::atomic<int> given{0};
  const Place outer = std::exchange(place, {this, -1, &given});
  work();
  WaitFor(&given);
  place = outer;
}

void AwakeGroup::WaitFor(std::atomic<int>* given) {
  Waiting wait;
  while (given->load(std::memory_order_acquire) > 0) {
    if (TakeBack(given)) {
      wait = {};
    } else {
      wait();
    }
  }
}

bool AwakeGroup::Give(std::function<void()>* work, std::atomic<int>* given, bool is_task) {
  if (GiveIf(State::kIdle, work, given, is_task)) return true;
  // A task stays with its helper, so it is for one that is there.
  const bool is_given = !is_task && GiveIf(State::kAsked, work, given, is_task);
  LetHelpersCome();
  return is_given;
}

bool AwakeGroup::GiveIf(State state, std::function<void()>* work, std::atomic<int>* given,
                        bool is_task) {
  for (Helper& helper : helpers_) {
    State expected = state;
    if (helper.state.load(std::memory_order_relaxed) != expected ||
        !helper.state.compare_exchange_strong(expected, State::kReserved)) {
      continue;
    }
    helper.work = std::move(*work);
    helper.given = given;
    helper.is_task = is_task;
    given->fetch_add(1, std::memory_order_relaxed);
    helper.state.store(State::kGiven, std::memory_order_release);
    return true;
  }
  return false;
}

void AwakeGroup::LetHelpersCome() {
  if (!may_yield_.load(std::memory_order_relaxed) || Clock::now() - begin_ < kTimeToCome ||
      CurrentCore() != core_.load(std::memory_order_relaxed)) {
    return;
  }
  if (may_yield_.exchange(false)) std::this_thread::yield();
}

bool AwakeGroup::TakeBack(std::atomic<int>* given) {
  for (Helper& helper : helpers_) {
    State state = State::kGiven;
    if (helper.state.load(std::memory_order_relaxed) != state ||
        !helper.state.compare_exchange_strong(state, State::kReserved)) {
      continue;
    }
    if (helper.given != given) {
      helper.state.store(State::kGiven, std::memory_order_release);
      continue;
    }
    const std::function<void()> work = std::exchange(helper.work, nullptr);
    helper.state.store(State::kAsked, std::memory_order_release);
    work();
    given->fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

bool AwakeGroup::RunGiven(int number) {
  Helper& helper = helpers_[number];
  State state = helper.state.load(std::memory_order_relaxed);
  if (state == State::kAsked) helper.state.compare_exchange_strong(state, State::kIdle);
  if (state != State::kGiven || !helper.state.compare_exchange_strong(state, State::kWorking)) {
    return false;
  }
  std::atomic<int>* const given = helper.given;
  Place& place = CurrentPlace();
  const Place outer = std::exchange(place, helper.is_task ? Place() : Place{this, number, given});
  std::exchange(helper.work, nullptr)();
  place = outer;
  helper.state.store(State::kIdle, std::memory_order_release);
  given->fetch_sub(1, std::memory_order_release);
  return true;
}

void AwakeGroup::Help(int number) {
  LeaveCore(core_.load(std::memory_order_relaxed));
  Helper& helper = helpers_[number];
  Waiting wait;
  while (true) {
    if (RunGiven(number)) {
      wait = {};
      continue;
    }
    if (wait.sleeps() || !is_leased_.load(std::memory_order_acquire)) {
      State state = State::kIdle;
      if (helper.state.compare_exchange_strong(state, State::kAbsent)) break;
    }
    wait();
  }
}

void AwakeGroup::HelpUntil(const std::function<bool()>& is_over) {
  const int number = cores() - 1;
  Helper& own = helpers_[number];
  own.state.store(State::kIdle, std::memory_order_release);
  Waiting wait;
  while (true) {
    if (RunGiven(number)) {
      wait = {};
      continue;
    }
    const bool may_leave = is_over();
    if (may_leave || wait.sleeps()) {  // nobody gives work to a thread that sleeps
      State state = State::kIdle;
      if (!own.state.compare_exchange_strong(state, State::kAbsent)) continue;
      if (may_leave) break;
      wait();
      own.state.store(State::kIdle, std::memory_order_release);
      continue;
    }
    wait();
  }
}

}  // namespace tf_interop
