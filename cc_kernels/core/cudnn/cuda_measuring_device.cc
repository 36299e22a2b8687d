#include "cc_kernels/core/cudnn/cuda_measuring_device.h"

#include <cuda.h>

#include "cc_kernels/core/cudnn/cuda_driver.h"

namespace tf_interop {
namespace {

CUdeviceptr Address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

}  // namespace

Status CudaMeasuringDevice::Create(std::unique_ptr<CudaMeasuringDevice>* device) {
  const CudaDriver* driver = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  CUdevice first = 0;
  TF_INTEROP_RETURN_IF_ERROR(driver->Check(driver->cuDeviceGet(&first, 0), "cuDeviceGet"));
  CUcontext context = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(
      driver->Check(driver->cuDevicePrimaryCtxRetain(&context, first), "cuDevicePrimaryCtxRetain"));
  std::unique_ptr<CudaMeasuringDevice> created(new CudaMeasuringDevice(*driver, context));
  TF_INTEROP_RETURN_IF_ERROR(created->CreateStreamAndEvents());
  TF_INTEROP_RETURN_IF_ERROR(CudnnBackend::ForStream(created->stream_, &created->backend_));
  *device = std::move(created);
  return Status::Ok();
}

CudaMeasuringDevice::~CudaMeasuringDevice() {
  ScopedContext scope(driver_, context_);
  if (!scope.status().ok()) return;
  for (CUevent event : {start_, stop_}) {
    // A failure to free is nothing that a caller could act on.
    if (event != nullptr) (void)driver_.cuEventDestroy(event);
  }
}

Status CudaMeasuringDevice::CreateStreamAndEvents() {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  TF_INTEROP_RETURN_IF_ERROR(
      driver_.Check(driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0),
                    "cuStreamCreateWithPriority"));
  TF_INTEROP_RETURN_IF_ERROR(
      driver_.Check(driver_.cuEventCreate(&start_, CU_EVENT_DEFAULT), "cuEventCreate"));
  return driver_.Check(driver_.cuEventCreate(&stop_, CU_EVENT_DEFAULT), "cuEventCreate");
}

Status CudaMeasuringDevice::Allocate(size_t bytes, void** data) {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  CUdeviceptr address = 0;
  TF_INTEROP_RETURN_IF_ERROR(driver_.Check(driver_.cuMemAlloc(&address, bytes), "cuMemAlloc"));
  *data = reinterpret_cast<void*>(address);
  return Status::Ok();
}

void CudaMeasuringDevice::Free(void* data) {
  ScopedContext scope(driver_, context_);
  // A failure to free is nothing that a caller could act on.
  if (scope.status().ok()) (void)driver_.cuMemFree(Address(data));
}

// Copies are enqueued on the stream, which does not wait for the default stream: a plain copy of
// pageable memory may return before it has arrived on the device.
Status CudaMeasuringDevice::CopyToDevice(const void* from, size_t bytes, void* to) {
  {
    ScopedContext scope(driver_, context_);
    TF_INTEROP_RETURN_IF_ERROR(scope.status());
    TF_INTEROP_RETURN_IF_ERROR(driver_.Check(
        driver_.cuMemcpyHtoDAsync(Address(to), from, bytes, stream_), "cuMemcpyHtoDAsync"));
  }
  return Synchronize();
}

Status CudaMeasuringDevice::CopyFromDevice(const void* from, size_t bytes, void* to) {
  {
    ScopedContext scope(driver_, context_);
    TF_INTEROP_RETURN_IF_ERROR(scope.status());
    TF_INTEROP_RETURN_IF_ERROR(driver_.Check(
        driver_.cuMemcpyDtoHAsync(to, Address(from), bytes, stream_), "cuMemcpyDtoHAsync"));
  }
  return Synchronize();
}

Status CudaMeasuringDevice::Record(CUevent_st* event) {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(driver_.cuEventRecord(event, stream_), "cuEventRecord");
}

Status CudaMeasuringDevice::StartTimer() { return Record(start_); }

Status CudaMeasuringDevice::StopTimer() { return Record(stop_); }

Status CudaMeasuringDevice::ReadTimer(double* elapsed_us) {
  TF_INTEROP_RETURN_IF_ERROR(Synchronize());
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  float elapsed_ms = 0;
  TF_INTEROP_RETURN_IF_ERROR(
      driver_.Check(driver_.cuEventElapsedTime(&elapsed_ms, start_, stop_), "cuEventElapsedTime"));
  *elapsed_us = elapsed_ms * 1e3;
  return Status::Ok();
}

Status CudaMeasuringDevice::Synchronize() {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

}  // namespace tf_interop
