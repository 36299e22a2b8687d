// What measuring needs of a device beyond its backend: what it is, memory, a caller's stream, the
// time that passes between two points of that stream, and a trace of the GPU kernels that run.
#ifndef TF_INTEROP_CORE_MEASURING_DEVICE_H_
#define TF_INTEROP_CORE_MEASURING_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// What one streaming multiprocessor has for the blocks that reside on it.
struct SmLimits {
  int32_t registers = 0;  // of 32 bits
  int32_t shared_memory_bytes = 0;
  int32_t threads = 0;
  int32_t blocks = 0;
  int32_t reserved_shared_memory_bytes = 0;  // what each block takes beside what it asks for
};

// What was measured on; texts are empty where a device has no such thing.
struct DeviceDescription {
  std::string name;
  std::string compute_capability;  // such as "9.0"
  int32_t sm_count = 0;            // of a CPU: the cores that the process may use
  int64_t memory_bytes = 0;
  std::optional<SmLimits> sm_limits;
  std::string cudnn;  // such as "9.10.2"
  std::string cuda;   // the version that the driver supports, such as "12.8"
};

// A GPU kernel that ran.
struct TracedKernel {
  std::string name;  // as in its source
  int32_t grid[3] = {0, 0, 0};
  int32_t block[3] = {0, 0, 0};
  int32_t registers_per_thread = 0;
  int64_t shared_memory_bytes = 0;  // static and dynamic, per block
  double elapsed_us = 0;
};

// What fits one kind of device, for options that leave it open.
struct MeasuringDefaults {
  // More than the largest cache holds.
  size_t cache_bytes = 0;
  // As many bytes as take longer to fill than a stage takes to enqueue; 0 where enqueueing costs
  // next to nothing beside the work.
  size_t head_start_bytes = 0;
};

// Not thread-safe: one measurement at a time, or they disturb each other. All functions that name
// no stream work on stream().
class MeasuringDevice {
 public:
  virtual ~MeasuringDevice() = default;

  virtual Backend* backend() = 0;
  virtual Status Describe(DeviceDescription* description) = 0;
  virtual MeasuringDefaults defaults() const = 0;

  // The caller's stream in the sense of the stream contract.
  virtual Stream stream() const = 0;

  // Device memory, aligned to 64 bytes or more. `bytes` is not 0.
  virtual Status Allocate(size_t bytes, void** data) = 0;
  virtual void Free(void* data) = 0;

  // Both are done when they return; no work that uses the memory may be pending.
  virtual Status CopyToDevice(const void* from, size_t bytes, void* to) = 0;
  virtual Status CopyFromDevice(const void* from, size_t bytes, void* to) = 0;

  // A timed section: what is enqueued on the stream between the two calls.
  virtual Status StartTimer() = 0;
  virtual Status StopTimer() = 0;
  // Waits for the end of the section and gives the time from its start to its end on the device.
  virtual Status ReadTimer(double* elapsed_us) = 0;

  // Begins to note the GPU kernels that run in this process. That slows launches down: not to be
  // done in a timed section. Returns the reason where kernels cannot be traced; a device that has
  // none traces none.
  virtual Status StartTrace() { return Status::Ok(); }
  // Ends what StartTrace began, behind Synchronize, and gives the kernels in the order in which
  // they started. Returns the reason where some of them may be missing.
  virtual Status StopTrace(std::vector<TracedKernel>* kernels) {
    kernels->clear();
    return Status::Ok();
  }

  // Waits for all that is on the stream. Returns the first error of work that ran there.
  virtual Status Synchronize() = 0;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURING_DEVICE_H_
