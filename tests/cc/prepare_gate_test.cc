// Threads that prepare under different settings of TensorFlow's switches.
#include "cc_kernels/core/prepare_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/stage_runner.h"
#include "tests/cc/convolution_cases.h"

namespace tf_interop {
namespace {

// Notes the switch with each convolution that is prepared.
class SwitchBackend : public HostBackend {
 public:
  SwitchBackend() : HostBackend([](int, const std::function<void(int)>&) {}) {}

  void set_allow_tf32(bool allow) override { allow_tf32_ = allow; }
  void set_deterministic(bool deterministic) override { deterministic_ = deterministic; }

  Status Prepare(const Convolution& convolution, const std::string& algorithm,
                 size_t workspace_limit_bytes,
                 std::shared_ptr<const PreparedConvolution>* prepared) override {
    seen_by_thread().push_back({allow_tf32_, deterministic_});
    std::this_thread::yield();
    return HostBackend::Prepare(convolution, algorithm, workspace_limit_bytes, prepared);
  }

  // What the calling thread's convolutions were prepared under.
  static std::vector<PrepareSwitches>& seen_by_thread() {
    static thread_local std::vector<PrepareSwitches> seen;
    return seen;
  }

 private:
  std::atomic<bool> allow_tf32_{true};
  std::atomic<bool> deterministic_{false};
};

constexpr size_t kWorkspaceLimit = 1 << 20;

Status PrepareStageOf(int count, Backend* backend) {
  std::vector<StageStep> steps(count);
  for (int i = 0; i < count; ++i) {
    steps[i].name = std::to_string(i);
    steps[i].convolution = MakeConvolution();
    steps[i].lane = i;
  }
  PreparedStage stage;
  return PrepareStage(backend, steps, kWorkspaceLimit, &stage);
}

TEST(PrepareGateTest, PreparesEveryStageUnderOneValue) {
  SwitchBackend backend;
  PrepareGate gate;
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 300; ++i) {
        // Two threads agree most of the time, and all change their mind now and then.
        const PrepareSwitches switches = {(i / 20) % 2 == 0, (i / 10 + thread) % 3 == 0};
        SwitchBackend::seen_by_thread().clear();
        const Status status =
            gate.Prepare(&backend, switches, [&] { return PrepareStageOf(4, &backend); });
        if (!status.ok() ||
            SwitchBackend::seen_by_thread() != std::vector<PrepareSwitches>(4, switches))
          ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Meets as many threads as it is told to, or gives up.
class Meeting {
 public:
  explicit Meeting(int expected) : expected_(expected) {}
  bool Arrive() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [this] { return arrived_ >= expected_; });
  }

 private:
  const int expected_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
};

TEST(PrepareGateTest, ThreadsThatAgreePrepareAtTheSameTime) {
  SwitchBackend backend;
  PrepareGate gate;
  // Leaves the value that the gate does not start with.
  ASSERT_TRUE(gate.Prepare(&backend, {false, true}, [] { return Status::Ok(); }).ok());
  Meeting meeting(2);
  std::atomic<int> met{0};
  const auto prepare = [&] {
    (void)gate.Prepare(&backend, {false, true}, [&] {
      if (meeting.Arrive()) ++met;
      return Status::Ok();
    });
  };
  std::thread first(prepare), second(prepare);
  first.join();
  second.join();
  EXPECT_EQ(met, 2);
}

TEST(PrepareGateTest, TellsEveryBackend) {
  SwitchBackend first, second;
  PrepareGate gate;
  for (SwitchBackend* backend : {&first, &second}) {
    SwitchBackend::seen_by_thread().clear();
    ASSERT_TRUE(
        gate.Prepare(backend, {false, true}, [&] { return PrepareStageOf(1, backend); }).ok());
    EXPECT_EQ(SwitchBackend::seen_by_thread(), std::vector<PrepareSwitches>(1, {false, true}));
  }
}

TEST(PrepareGateTest, ChangesOneSwitchAlone) {
  struct Noting : HostBackend {
    Noting() : HostBackend([](int, const std::function<void(int)>&) {}) {}
    void set_allow_tf32(bool allow) override { seen.allow_tf32 = allow; }
    void set_deterministic(bool deterministic) override { seen.deterministic = deterministic; }
    PrepareSwitches seen;
  } backend;
  PrepareGate gate;
  for (const PrepareSwitches& switches :
       {PrepareSwitches{true, true}, {false, true}, {false, false}, {true, false}}) {
    ASSERT_TRUE(gate.Prepare(&backend, switches, [] { return Status::Ok(); }).ok());
    EXPECT_EQ(backend.seen, switches);
  }
}

TEST(PrepareGateTest, HandsOnErrors) {
  SwitchBackend backend;
  PrepareGate gate;
  for (const bool allow : {true, false}) {
    const Status status = gate.Prepare(&backend, {allow}, [] { return Internal("no"); });
    EXPECT_EQ(status.code(), StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace tf_interop
