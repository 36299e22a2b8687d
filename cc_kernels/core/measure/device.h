// What measuring needs of a device beyond its backend: what it is, memory, a caller's stream, the
// time that passes between two points of that stream, and a trace of the GPU kernels that run. And
// the CPU as such a device; cuda_device.h has the other.
#ifndef TF_INTEROP_CORE_MEASURE_DEVICE_H_
#define TF_INTEROP_CORE_MEASURE_DEVICE_H_

#include <chrono>
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

// What was measured on; texts are empty if a device has no such thing.
struct DeviceDescription : TfiDescription {
  DeviceDescription() : TfiDescription() {}

  std::string name;
  std::string compute_capability;  // such as "9.0"
  std::string cudnn;               // such as "9.10.2"
  std::string cuda;                // the version that the driver supports, such as "12.8"
};

// A GPU kernel that ran.
struct TracedKernel : TfiKernel {
  TracedKernel() : TfiKernel() {}

  std::string name;       // as in its source
  uint64_t start_ns = 0;  // on a clock of the trace
};

// Not thread-safe: one measurement at a time, or they disturb each other. All functions that name
// no stream work on stream().
class MeasuringDevice {
 public:
  virtual ~MeasuringDevice() = default;

  virtual Backend* backend() = 0;
  virtual Status Describe(DeviceDescription* description) = 0;
  // So many that nothing else is left in a cache once they are filled.
  virtual size_t cold_bytes() const = 0;

  // The caller's stream in the sense of the stream contract.
  virtual Stream stream() const = 0;

  // Device memory, aligned to 64 bytes or more. `bytes` is not 0.
  virtual Status Allocate(size_t bytes, void** data) = 0;
  virtual void Free(void* data) = 0;

  // Both are done when they return; no work that uses the memory may be pending.
  virtual Status CopyToDevice(const void* from, size_t bytes, void* to) = 0;
  virtual Status CopyFromDevice(const void* from, size_t bytes, void* to) = 0;

  // Enqueues the filling of `bytes` bytes.
  virtual Status Fill(void* data, unsigned char value, size_t bytes) = 0;

  // A timed section: what is enqueued on the stream between the two calls.
  virtual Status StartTimer() = 0;
  virtual Status StopTimer() = 0;
  // To be asked right after StopTimer: whether the device has not come to the section's start yet,
  // so that it waits for the host nowhere in it. Always so where enqueueing costs next to nothing
  // beside the work.
  virtual Status IsStillAhead(bool* ahead) {
    *ahead = true;
    return Status::Ok();
  }
  // Waits for the end of the section and gives the time from its start to its end on the device.
  virtual Status ReadTimer(double* elapsed_us) = 0;

  // Begins to note the GPU kernels that run in this process. That slows launches down until
  // StopTrace: not to be done in a timed section. Returns the reason where kernels cannot be
  // traced; a device that has none traces none.
  virtual Status StartTrace() { return Status::Ok(); }
  // Ends what StartTrace began, after Synchronize, and gives the kernels in the order in which
  // they started. Returns the reason where some of them may be missing.
  virtual Status StopTrace(std::vector<TracedKernel>* kernels) {
    kernels->clear();
    return Status::Ok();
  }

  // Waits for all that is on the stream. Returns the first error of work that ran there.
  virtual Status Synchronize() = 0;
};

// The CPU: memory of the process, and a steady clock that is read by work on the stream.
class HostMeasuringDevice : public MeasuringDevice {
 public:
  // `backend` is one whose streams are HostStreams; it outlives the device. `stream` is the
  // caller's, with a thread.
  HostMeasuringDevice(Backend* backend, std::unique_ptr<HostStream> stream)
      : backend_(backend), stream_(std::move(stream)) {}

  Backend* backend() override { return backend_; }
  // That it is a CPU; whoever asks can tell its model without this library.
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
    return ResourceExhausted("No " + std::to_string(bytes) + " bytes of host memory.");
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
  Status Fill(void* data, unsigned char value, size_t bytes) override {
    stream_->Enqueue([=] {
      std::memset(data, value, bytes);
      return Status::Ok();
    });
    return Status::Ok();
  }
  Status StartTimer() override {
    stream_->Enqueue([this] {
      start_ = std::chrono::steady_clock::now();
      return Status::Ok();
    });
    return Status::Ok();
  }
  Status StopTimer() override {
    stream_->Enqueue([this] {
      stop_ = std::chrono::steady_clock::now();
      return Status::Ok();
    });
    return Status::Ok();
  }
  Status ReadTimer(double* elapsed_us) override {
    TF_INTEROP_RETURN_IF_ERROR(Synchronize());
    *elapsed_us = std::chrono::duration<double, std::micro>(stop_ - start_).count();
    return Status::Ok();
  }
  Status Synchronize() override {
    stream_->Synchronize();
    return stream_->TakeError();
  }

 private:
  Backend* const backend_;
  // Written on the stream's thread, read after Synchronize.
  std::chrono::steady_clock::time_point start_, stop_;
  // The last member, so that its thread ends before what it writes to.
  const std::unique_ptr<HostStream> stream_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_DEVICE_H_
