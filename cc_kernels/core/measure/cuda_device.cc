#include "cc_kernels/core/measure/cuda_device.h"

#include <cuda.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "cc_kernels/core/cudnn/cuda_driver.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#ifdef TF_INTEROP_HAS_CUPTI
#include "cc_kernels/core/measure/cupti_tracer.h"
#endif

namespace tf_interop {
namespace {

#ifdef TF_INTEROP_HAS_CUPTI
Status FindTracer(const CudaDriver& driver, CuptiTracer** tracer) {
  int driver_version = 0;
  TF_INTEROP_RETURN_IF_ERROR(
      driver.Check(driver.cuDriverGetVersion(&driver_version), "cuDriverGetVersion"));
  return CuptiTracer::Get(driver_version, tracer);
}
#endif

// 12080 is 12.8.
std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

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
  std::unique_ptr<CudaMeasuringDevice> created(new CudaMeasuringDevice(*driver, first, context));
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

Status CudaMeasuringDevice::Describe(DeviceDescription* description) {
  *description = DeviceDescription();
  int32_t major = 0, minor = 0;
  for (const auto& [attribute, value] : std::initializer_list<std::pair<CUdevice_attribute, int*>>{
           {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
           {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
           {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &description->sm_count},
           {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &description->registers},
           {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
            &description->shared_memory_bytes},
           {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &description->threads},
           {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, &description->blocks},
           {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK,
            &description->reserved_shared_memory_bytes}}) {
    TF_INTEROP_RETURN_IF_ERROR(driver_.Check(
        driver_.cuDeviceGetAttribute(value, attribute, device_), "cuDeviceGetAttribute"));
  }
  description->compute_capability = std::to_string(major) + "." + std::to_string(minor);

  char name[256] = "";
  TF_INTEROP_RETURN_IF_ERROR(
      driver_.Check(driver_.cuDeviceGetName(name, sizeof(name), device_), "cuDeviceGetName"));
  description->name = name;
  size_t memory_bytes = 0;
  TF_INTEROP_RETURN_IF_ERROR(
      driver_.Check(driver_.cuDeviceTotalMem(&memory_bytes, device_), "cuDeviceTotalMem"));
  description->memory_bytes = static_cast<int64_t>(memory_bytes);
  int cuda_version = 0;
  TF_INTEROP_RETURN_IF_ERROR(
      driver_.Check(driver_.cuDriverGetVersion(&cuda_version), "cuDriverGetVersion"));
  description->cuda = CudaVersionText(cuda_version);
  const CudnnLibrary* cudnn = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudnnLibrary::Get(&cudnn));
  description->cudnn = cudnn->version();
  return Status::Ok();
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

#ifdef TF_INTEROP_HAS_CUPTI

Status CudaMeasuringDevice::StartTrace() {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  CuptiTracer* tracer = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(FindTracer(driver_, &tracer));
  return tracer->Start();
}

Status CudaMeasuringDevice::StopTrace(std::vector<TracedKernel>* kernels) {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  CuptiTracer* tracer = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(FindTracer(driver_, &tracer));
  return tracer->Stop(kernels);
}

#else

Status CudaMeasuringDevice::StartTrace() {
  return Unavailable(
      "Expected a library that traces GPU kernels, got one that was built without. Build it where "
      "CUPTI's headers are found.");
}

Status CudaMeasuringDevice::StopTrace(std::vector<TracedKernel>*) { return StartTrace(); }

#endif

Status CudaMeasuringDevice::Synchronize() {
  ScopedContext scope(driver_, context_);
  TF_INTEROP_RETURN_IF_ERROR(scope.status());
  return driver_.Check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize");
}

}  // namespace tf_interop
