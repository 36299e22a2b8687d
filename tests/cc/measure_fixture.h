// A device to measure on that says what was done with it.
#ifndef TF_INTEROP_TESTS_CC_MEASURE_FIXTURE_H_
#define TF_INTEROP_TESTS_CC_MEASURE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/measure/alone.h"
#include "cc_kernels/core/measure/host_device.h"

namespace tf_interop {

inline MeasureOptions FewRuns() {
  MeasureOptions options;
  options.warmup_runs = 1;
  options.repetitions = 3;
  options.cache_bytes = 0;
  return options;
}

// Counts device memory, and can refuse it.
class CountingDevice : public MeasuringDevice {
 public:
  explicit CountingDevice(Backend* backend) {
    EXPECT_TRUE(HostMeasuringDevice::Create(backend, &device_).ok());
  }
  ~CountingDevice() override { EXPECT_EQ(live, 0) << "device memory was not freed"; }

  Backend* backend() override { return device_->backend(); }
  Status Describe(DeviceDescription* description) override {
    return device_->Describe(description);
  }
  MeasuringDefaults defaults() const override { return device_->defaults(); }
  Stream stream() const override { return device_->stream(); }
  Status Allocate(size_t bytes, void** data) override {
    if (refuse_from-- <= 0) return ResourceExhausted("no memory");
    TF_INTEROP_RETURN_IF_ERROR(device_->Allocate(bytes, data));
    sizes.push_back(bytes);
    ++live;
    return Status::Ok();
  }
  void Free(void* data) override {
    --live;
    device_->Free(data);
  }
  Status CopyToDevice(const void* from, size_t bytes, void* to) override {
    return device_->CopyToDevice(from, bytes, to);
  }
  Status CopyFromDevice(const void* from, size_t bytes, void* to) override {
    return device_->CopyFromDevice(from, bytes, to);
  }
  Status StartTimer() override { return device_->StartTimer(); }
  Status StopTimer() override { return device_->StopTimer(); }
  Status ReadTimer(double* elapsed_us) override {
    ++sections;
    return device_->ReadTimer(elapsed_us);
  }
  Status Synchronize() override { return device_->Synchronize(); }
  Status StartTrace() override {
    sections_at_trace = sections;
    return start_trace;
  }
  Status StopTrace(std::vector<TracedKernel>* kernels) override {
    ++traces;
    *kernels = {TracedKernel()};
    return stop_trace;
  }

  Status start_trace, stop_trace;
  int traces = 0;
  int sections_at_trace = -1;
  std::vector<size_t> sizes;  // of all that was ever allocated
  int live = 0;
  int refuse_from = std::numeric_limits<int>::max();
  int sections = 0;

 private:
  std::unique_ptr<HostMeasuringDevice> device_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_MEASURE_FIXTURE_H_
