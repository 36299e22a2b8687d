// A device to measure on, and its implementation for the CPU. The one for GPUs is in
// cuda_device.cc.
#ifndef TF_INTEROP_CORE_MEASURE_DEVICE_H_
#define TF_INTEROP_CORE_MEASURE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/c_api.h"
#include "cc_kernels/core/host/stream.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Strings are empty if they do not apply.
struct DeviceDescription : TfiDescription {
  DeviceDescription() : TfiDescription() {}

  std::string name;
  std::string compute_capability;  // such as "9.0"
  std::string cudnn;               // such as "9.10.2"
  std::string cuda;                // supported by the driver, such as "12.8"
};

struct TracedKernel : TfiKernel {
  TracedKernel() : TfiKernel() {}

  std::string name;       // demangled
  uint64_t start_ns = 0;  // on a clock of the trace
};

// Not thread-safe: measurements must not disturb each other. All functions work on stream().
class MeasuringDevice {
 public:
  virtual ~MeasuringDevice() = default;

  virtual Backend* backend() = 0;
  virtual Status Describe(DeviceDescription* description) = 0;
  // A fill of this size evicts everything else from the caches.
  virtual size_t cold_bytes() const = 0;

  // The caller's stream of the stream contract.
  virtual Stream stream() const = 0;

  // Aligned to 64 bytes or more. `bytes` is not 0.
  virtual Status Allocate(size_t bytes, void** data) = 0;
  virtual void Free(void* data) = 0;

  // Both return after the copy. No pending work may use the memory.
  virtual Status CopyToDevice(const void* from, size_t bytes, void* to) = 0;
  virtual Status CopyFromDevice(const void* from, size_t bytes, void* to) = 0;

  // Whether the device has not passed `begin` yet. If it returns true right after all work between
  // two marks is enqueued, the device will not wait for the host between them. Always true if
  // enqueueing takes next to no time.
  virtual bool IsBefore(const TimeMark& begin) const {
    (void)begin;
    return true;
  }

  // Begins to record the GPU kernels of this process, if the device has any. This slows launches
  // down until StopTrace, so it does not belong in a timed section. Returns the reason if kernels
  // cannot be traced.
  virtual Status StartTrace() { return Status::Ok(); }
  // Ends the trace, after Synchronize, and sets the kernels in the order of their start. Returns
  // the reason if some of them may be missing.
  virtual Status StopTrace(std::vector<TracedKernel>* kernels) {
    kernels->clear();
    return Status::Ok();
  }

  // Waits for the stream. Returns the first error of its work.
  Status Synchronize() { return backend()->Synchronize(stream()); }
};

class HostMeasuringDevice : public MeasuringDevice {
 public:
  // The streams of `backend`, which outlives the device, are HostStreams.
  explicit HostMeasuringDevice(Backend* backend) : backend_(backend) {}

  Backend* backend() override { return backend_; }
  // Python finds the CPU's model without this library.
  Status Describe(DeviceDescription* description) override {
    *description = DeviceDescription();
    description->name = "CPU";
    return Status::Ok();
  }
  size_t cold_bytes() const override { return size_t{32} << 20; }
  Stream stream() const override { return stream_.get(); }
  Status Allocate(size_t bytes, void** data) override {
    if (posix_memalign(data, 64, bytes) == 0) return Status::Ok();
    *data = nullptr;
    return ResourceExhausted("Out of host memory: could not allocate " + std::to_string(bytes) +
                             " bytes.");
  }
  void Free(void* data) override { std::free(data); }
  Status CopyToDevice(const void* from, size_t bytes, void* to) override {
    std::memcpy(to, from, bytes);
    return Status::Ok();
  }
  Status CopyFromDevice(const void* from, size_t bytes, void* to) override {
    std::memcpy(to, from, bytes);
    return Status::Ok();
  }

 private:
  Backend* const backend_;
  const std::unique_ptr<HostStream> stream_ = std::make_unique<HostStream>();
};

// Opens the first GPU for measurements.
Status OpenCudaDevice(std::unique_ptr<MeasuringDevice>* device);

// ---- The GPU kernels of this process, from CUPTI's activity API (cupti_tracer.cc).

// Begins a trace; one at a time. Returns kUnavailable if there is no CUPTI, or with CUPTI's reason:
// another tool (Nsight, TensorFlow's profiler) uses it, or the GPU is virtual. The first call opens
// CUPTI; if that fails, so do all later calls. `driver_version` is from cuDriverGetVersion.
//
// CUPTI is attached to the process only during a trace, because it slows every launch down even
// while it records nothing.
Status StartKernelTrace(int driver_version);

// Ends the trace and sets `kernels`, all of which have ended, in the order of their start. Returns
// kUnavailable if there are none or some may be missing.
Status StopKernelTrace(std::vector<TracedKernel>* kernels);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_DEVICE_H_
