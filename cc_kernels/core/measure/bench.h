// Where ways to run convolutions are timed: a device with copies of all operands and results. See
// alone.h for how.
#ifndef TF_INTEROP_CORE_MEASURE_BENCH_H_
#define TF_INTEROP_CORE_MEASURE_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/measure/alone.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/measure/problem.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Device memory that is freed with the object, once nothing uses it any more.
class DeviceMemory {
 public:
  explicit DeviceMemory(MeasuringDevice* device) : device_(device) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // Null for no bytes.
  Status Allocate(size_t bytes, void** data);
  Status AllocateCopy(const Bytes& bytes, void** data);

 private:
  MeasuringDevice* const device_;
  std::vector<void*> allocated_;
};

// A prepared stage with the workspaces of its lanes.
struct Runnable {
  PreparedStage stage;
  std::vector<void*> workspaces;
};

// The device, and the copies of all tensors that runs go through.
class Bench {
 public:
  explicit Bench(MeasuringDevice* device) : device_(device), memory_(device) {}

  // `runs` is how often anything will be run.
  Status SetUp(const std::vector<const MeasuredProblem*>& problems, const MeasureOptions& options,
               int64_t runs);

  // Lanes of one number share a workspace: the ways to run never run at the same time.
  Status AllocateWorkspaces(const std::vector<Runnable*>& ways);

  // Runs on the first copy, and gives the result of the only step.
  Status RunForResult(const Runnable& runnable, Bytes* result);

  // Runs on the next copy.
  Status TimeRun(const Runnable& runnable, double* elapsed_us);

  // Runs on the next copy. `traced` is why there are no kernels; the result is the run's own.
  Status TraceRun(const Runnable& runnable, std::vector<TracedKernel>* kernels, Status* traced);

 private:
  Status RunOn(const Runnable& runnable, StageBuffers* copy);
  Status RunOnNextCopy(const Runnable& runnable);

  MeasuringDevice* const device_;
  std::vector<StageBuffers> copies_;  // without workspaces
  size_t next_copy_ = 0;
  void* head_start_ = nullptr;
  size_t head_start_bytes_ = 0;
  DeviceMemory memory_;
};

// Times the ways to run by turns; times[i] are those of ways[i].
Status TimeByTurns(Bench* bench, const std::vector<const Runnable*>& ways,
                   const MeasureOptions& options, std::vector<TfiTime>* times);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_BENCH_H_
