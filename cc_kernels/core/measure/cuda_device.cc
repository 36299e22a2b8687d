// The GPU as a device to measure on.
#include <cuda.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "cc_kernels/core/cudnn/backend.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "cc_kernels/core/measure/device.h"

namespace tf_interop {
namespace {

// 12080 is 12.8.
std::string CudaVersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

CUdeviceptr Address(const void* data) { return reinterpret_cast<CUdeviceptr>(data); }

class CudaMeasuringDevice : public MeasuringDevice {
 public:
  CudaMeasuringDevice(const CudaDriver& driver, CUdevice device, CUcontext context)
      : driver_(driver), device_(device), context_(context) {}

  ~CudaMeasuringDevice() override {
    const ScopedContext scope(driver_, context_);
    if (stream_ != nullptr && scope.status().ok()) (void)driver_.cuStreamDestroy(stream_);
  }

  Status Create() {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    TF_INTEROP_RETURN_IF_ERROR(
        TF_INTEROP_CALL(driver_, cuStreamCreateWithPriority, &stream_, CU_STREAM_NON_BLOCKING, 0));
    return FindCudnnBackend(stream_, &backend_);
  }

  Status Describe(DeviceDescription* description) override {
    *description = DeviceDescription();
    int32_t major = 0, minor = 0;
    for (const auto& [attribute, value] :
         std::initializer_list<std::pair<CUdevice_attribute, int*>>{
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
      TF_INTEROP_RETURN_IF_ERROR(
          TF_INTEROP_CALL(driver_, cuDeviceGetAttribute, value, attribute, device_));
    }
    description->compute_capability = std::to_string(major) + "." + std::to_string(minor);

    char name[256] = "";
    TF_INTEROP_RETURN_IF_ERROR(
        TF_INTEROP_CALL(driver_, cuDeviceGetName, name, sizeof(name), device_));
    description->name = name;
    size_t memory_bytes = 0;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver_, cuDeviceTotalMem, &memory_bytes, device_));
    description->memory_bytes = static_cast<int64_t>(memory_bytes);
    int cuda_version = 0;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver_, cuDriverGetVersion, &cuda_version));
    description->cuda = CudaVersionText(cuda_version);
    const CudnnLibrary* cudnn = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(CudnnLibrary::Get(&cudnn));
    description->cudnn = cudnn->version();
    return Status::Ok();
  }

  Status Allocate(size_t bytes, void** data) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    CUdeviceptr address = 0;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver_, cuMemAlloc, &address, bytes));
    *data = reinterpret_cast<void*>(address);
    return Status::Ok();
  }

  void Free(void* data) override {
    const ScopedContext scope(driver_, context_);
    // The caller could do nothing about a failure.
    if (scope.status().ok()) (void)driver_.cuMemFree(Address(data));
  }

  // Copies go to the stream, which does not wait for the default stream: a plain copy of pageable
  // memory may return before the data has arrived on the device.
  Status CopyToDevice(const void* from, size_t bytes, void* to) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    TF_INTEROP_RETURN_IF_ERROR(
        TF_INTEROP_CALL(driver_, cuMemcpyHtoDAsync, Address(to), from, bytes, stream_));
    return Synchronize();
  }

  Status CopyFromDevice(const void* from, size_t bytes, void* to) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    TF_INTEROP_RETURN_IF_ERROR(
        TF_INTEROP_CALL(driver_, cuMemcpyDtoHAsync, to, Address(from), bytes, stream_));
    return Synchronize();
  }

  bool IsBefore(const TimeMark& begin) const override { return !begin.ReadNs(); }

  Backend* backend() override { return backend_; }
  // Twice the largest L2 cache, that of a B200.
  size_t cold_bytes() const override { return size_t{256} << 20; }
  Stream stream() const override { return stream_; }

#ifdef TF_INTEROP_HAS_CUPTI

  Status StartTrace() override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    int driver_version = 0;
    TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver_, cuDriverGetVersion, &driver_version));
    return StartKernelTrace(driver_version);
  }

  Status StopTrace(std::vector<TracedKernel>* kernels) override {
    TF_INTEROP_ENTER_CONTEXT(driver_, context_);
    return StopKernelTrace(kernels);
  }

#else

  Status StartTrace() override {
    return Unavailable(
        "This library was built without CUPTI, so it cannot trace GPU kernels. Build it where the "
        "CUPTI headers are found.");
  }

  Status StopTrace(std::vector<TracedKernel>*) override { return StartTrace(); }

#endif

 private:
  const CudaDriver& driver_;
  const CUdevice device_;
  const CUcontext context_;
  CUstream stream_ = nullptr;
  Backend* backend_ = nullptr;
};

}  // namespace

Status OpenCudaDevice(std::unique_ptr<MeasuringDevice>* device) {
  const CudaDriver* driver = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(CudaDriver::Get(&driver));
  CUdevice first = 0;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(*driver, cuDeviceGet, &first, 0));
  CUcontext context = nullptr;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(*driver, cuDevicePrimaryCtxRetain, &context, first));
  auto created = std::make_unique<CudaMeasuringDevice>(*driver, first, context);
  TF_INTEROP_RETURN_IF_ERROR(created->Create());
  *device = std::move(created);
  return Status::Ok();
}

}  // namespace tf_interop
