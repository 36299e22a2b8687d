#include "cc_kernels/tf/step_lanes.h"

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "cc_kernels/core/awake_group.h"
#include "cc_kernels/tf/inline_executor.h"
#include "cc_kernels/tf/primitive_cache.h"

namespace tf_interop {
namespace {

// The first error of a run, from any thread.
class FirstError {
 public:
  void Update(const absl::Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    first_.Update(status);
  }
  absl::Status Get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return first_;
  }

 private:
  std::mutex mutex_;
  absl::Status first_;  // guarded by mutex_
};

// Runs the steps that `ready` gives to the calling thread, from `step` on. `offer` asks another
// thread to take steps, too, and returns whether it will; `run_step` runs one.
void RunReady(ReadySteps* ready, int step, const std::function<bool()>& offer,
              const std::function<absl::Status(int)>& run_step, FirstError* error) {
  while (step != ReadySteps::kNone) {
    for (int others = ready->free_count(); others > 0 && offer(); --others) {
    }
    const absl::Status status = run_step(step);
    if (!status.ok()) {
      error->Update(status);
      ready->Stop();
    }
    step = ready->TakeAfter(step);
  }
}

}  // namespace

absl::Status RunByExecutor(tensorflow::OpKernelContext* context, const Steps& steps,
                           const LanePlan& plan, StepsRun* run) {
  struct Shared {
    Shared(const StepOrder& order, const LanePlan& plan) : ready(order, plan) {}
    ReadySteps ready;
    std::function<void(int)> lane;
    std::atomic<int> lanes{1};
  };
  // A closure on the pool may come after the run. It finds no step then.
  const auto shared = std::make_shared<Shared>(steps.order, plan);
  const int most_lanes = context->device()->tensorflow_cpu_worker_threads()->num_threads;
  FirstError error;
  const Runner runner = PoolRunner(context);
  const auto offer = [&, shared] {
    if (shared->lanes.fetch_add(1) >= most_lanes) {
      shared->lanes.fetch_sub(1);
      return false;
    }
    runner([shared] {
      const int step = shared->ready.Take();
      if (step != ReadySteps::kNone) shared->lane(step);
      shared->lanes.fetch_sub(1);
    });
    return true;
  };
  shared->lane = [&](int first) {
    StepsRun::Lane lane(run);
    const auto run_step = [&](int step) { return lane.Run(steps.steps[step], context->device()); };
    RunReady(&shared->ready, first, offer, run_step, &error);
  };
  while (!shared->ready.is_over()) {
    shared->ready.Wait();
    const int step = shared->ready.Take();
    if (step != ReadySteps::kNone) shared->lane(step);
  }
  return error.Get();
}

absl::Status RunByGroup(const tensorflow::OpKernelContext& context, const Steps& steps,
                        const LanePlan& plan,
                        absl::Span<const tensorflow::DataType> primitive_types, NarrowDevice* all,
                        StepsRun* run) {
  AwakeGroup* const group = all->group();
  NarrowDevice one(context.device(), /*cores=*/1);
  ReadySteps ready(steps.order, plan);
  FirstError error;
  std::function<void(int)> lane;
  const auto offer = [&] {
    return group->GiveTask([&] {
      const int step = ready.Take();
      if (step != ReadySteps::kNone) lane(step);
    });
  };
  lane = [&](int first) {
    StepsRun::Lane of_thread(run);
    const auto run_step = [&](int step) {
      NarrowDevice* const device = plan.is_wide[step] ? all : &one;
      const NarrowPrimitives primitives(primitive_types, device->cores());
      return of_thread.Run(steps.steps[step], device);
    };
    RunReady(&ready, first, offer, run_step, &error);
  };
  while (!ready.is_over()) {
    const int step = ready.Take();
    if (step != ReadySteps::kNone) {
      lane(step);
    } else {
      group->HelpUntil([&] { return ready.is_over() || ready.free_count() > 0; });
    }
  }
  group->FinishTasks();
  return error.Get();
}

}  // namespace tf_interop
