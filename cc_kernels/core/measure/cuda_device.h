// An NVIDIA GPU as a device to measure on: its primary context, a stream, and two events that take
// the time. This header needs no header of CUDA's.
#ifndef TF_INTEROP_CORE_MEASURE_CUDA_DEVICE_H_
#define TF_INTEROP_CORE_MEASURE_CUDA_DEVICE_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "cc_kernels/core/cudnn/backend.h"
#include "cc_kernels/core/measure/device.h"

struct CUevent_st;  // what CUevent points to

namespace tf_interop {

class CuptiTracer;

// The stream lives until the process ends, as all that the cudnn backend owns: its cuDNN handles
// still name the stream after the last measurement. Make one for a process.
class CudaMeasuringDevice : public MeasuringDevice {
 public:
  // Takes the first GPU that the driver lists (CUDA_VISIBLE_DEVICES says which that is). Returns
  // kUnavailable where there is no NVIDIA driver, no GPU, or no cuDNN of version 9.0 or newer.
  static Status Create(std::unique_ptr<CudaMeasuringDevice>* device);

  ~CudaMeasuringDevice() override;

  Backend* backend() override { return backend_; }
  // As the driver and cuDNN give it.
  Status Describe(DeviceDescription* description) override;
  // The second is a guess that no measurement stands behind.
  MeasuringDefaults defaults() const override { return {size_t{64} << 20, size_t{256} << 20}; }
  Stream stream() const override { return stream_; }
  Status Allocate(size_t bytes, void** data) override;
  void Free(void* data) override;
  Status CopyToDevice(const void* from, size_t bytes, void* to) override;
  Status CopyFromDevice(const void* from, size_t bytes, void* to) override;
  Status StartTimer() override;
  Status StopTimer() override;
  Status ReadTimer(double* elapsed_us) override;
  // With CUPTI, opened at run time; see CuptiTracer.
  Status StartTrace() override;
  Status StopTrace(std::vector<TracedKernel>* kernels) override;
  Status Synchronize() override;

 private:
  CudaMeasuringDevice(const CudaDriver& driver, int device, CUctx_st* context)
      : driver_(driver), device_(device), context_(context) {}

  Status CreateStreamAndEvents();
  Status FindTracer(CuptiTracer** tracer);
  // Calls `work` while the context is current.
  template <typename Work>
  Status InContext(const Work& work);

  const CudaDriver& driver_;
  const int device_;  // a CUdevice
  CUctx_st* const context_;
  CUstream_st* stream_ = nullptr;
  CUevent_st* start_ = nullptr;
  CUevent_st* stop_ = nullptr;
  CudnnBackend* backend_ = nullptr;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_CUDA_DEVICE_H_
