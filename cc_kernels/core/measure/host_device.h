// The CPU as a device to measure on: memory of the process, and a steady clock that is read by work
// on the stream.
#ifndef TF_INTEROP_CORE_MEASURE_HOST_DEVICE_H_
#define TF_INTEROP_CORE_MEASURE_HOST_DEVICE_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <utility>

#include "cc_kernels/core/host/host_stream.h"
#include "cc_kernels/core/measure/device.h"

namespace tf_interop {

class HostMeasuringDevice : public MeasuringDevice {
 public:
  // `backend` is one whose streams are HostStreams; it outlives the device. Returns
  // kResourceExhausted where the system gives no thread for the caller's stream.
  static Status Create(Backend* backend, std::unique_ptr<HostMeasuringDevice>* device);

  Backend* backend() override { return backend_; }
  // That it is a CPU; whoever asks can tell its model without this library.
  Status Describe(DeviceDescription* description) override;
  MeasuringDefaults defaults() const override { return {size_t{32} << 20, 0}; }
  Stream stream() const override { return stream_.get(); }
  Status Allocate(size_t bytes, void** data) override;
  void Free(void* data) override;
  Status CopyToDevice(const void* from, size_t bytes, void* to) override;
  Status CopyFromDevice(const void* from, size_t bytes, void* to) override;
  Status StartTimer() override;
  Status StopTimer() override;
  Status ReadTimer(double* elapsed_us) override;
  Status Synchronize() override;

 private:
  HostMeasuringDevice(Backend* backend, std::unique_ptr<HostStream> stream)
      : backend_(backend), stream_(std::move(stream)) {}

  Backend* const backend_;
  // Written on the stream's thread, read behind Synchronize.
  std::chrono::steady_clock::time_point start_, stop_;
  // The last member, so that its thread ends before what it writes to.
  const std::unique_ptr<HostStream> stream_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_HOST_DEVICE_H_
