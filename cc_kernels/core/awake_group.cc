#include "cc_kernels/core/awake_group.h"

#include <chrono>
#include <thread>
#include <utility>

namespace tf_interop {
namespace {

// The group whose work this thread runs, and the thread's number in it.
struct Place {
  const AwakeGroup* group = nullptr;
  int number = -1;
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

}  // namespace

AwakeGroup::AwakeGroup(int cores) : helpers_(cores - 1) {}

void AwakeGroup::Begin(Pool pool) {
  pool_ = std::move(pool);
  is_leased_.store(true, std::memory_order_release);
  AskForHelpers();
}

void AwakeGroup::AskForHelpers() {
  for (size_t i = 0; i < helpers_.size(); ++i) {
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
    if (!Give(&work)) work();
    return;
  }
  AskForHelpers();
  const Place outer = place;
  place = {this, -1};
  work();
  Waiting wait;
  while (given_.load(std::memory_order_acquire) > 0) {
    if (TakeBack()) {
      wait = {};
    } else {
      wait();
    }
  }
  place = outer;
}

bool AwakeGroup::Give(std::function<void()>* work) {
  for (Helper& helper : helpers_) {
    State state = State::kIdle;
    if (helper.state.load(std::memory_order_relaxed) != state ||
        !helper.state.compare_exchange_strong(state, State::kReserved)) {
      continue;
    }
    helper.work = std::move(*work);
    given_.fetch_add(1, std::memory_order_relaxed);
    helper.state.store(State::kGiven, std::memory_order_release);
    return true;
  }
  return false;
}

bool AwakeGroup::TakeBack() {
  for (Helper& helper : helpers_) {
    State state = State::kGiven;
    if (helper.state.load(std::memory_order_relaxed) != state ||
        !helper.state.compare_exchange_strong(state, State::kReserved)) {
      continue;
    }
    const std::function<void()> work = std::exchange(helper.work, nullptr);
    helper.state.store(State::kIdle, std::memory_order_release);
    work();
    given_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }
  return false;
}

void AwakeGroup::Help(int number) {
  Place& place = CurrentPlace();
  const Place outer = std::exchange(place, {this, number});
  Helper& helper = helpers_[number];
  helper.state.store(State::kIdle, std::memory_order_release);
  Waiting wait;
  while (true) {
    State state = helper.state.load(std::memory_order_relaxed);
    if (state == State::kGiven && helper.state.compare_exchange_strong(state, State::kWorking)) {
      std::exchange(helper.work, nullptr)();
      helper.state.store(State::kIdle, std::memory_order_release);
      given_.fetch_sub(1, std::memory_order_release);
      wait = {};
      continue;
    }
    if (wait.sleeps() || !is_leased_.load(std::memory_order_acquire)) {
      state = State::kIdle;
      if (helper.state.compare_exchange_strong(state, State::kAbsent)) break;
    }
    wait();
  }
  place = outer;
}

}  // namespace tf_interop
