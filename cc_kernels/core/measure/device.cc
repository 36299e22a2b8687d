#include "cc_kernels/core/measure/device.h"

#include <cstdlib>
#include <cstring>
#include <string>

namespace tf_interop {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

Status HostMeasuringDevice::Describe(DeviceDescription* description) {
  *description = DeviceDescription();
  description->name = "CPU";
  return Status::Ok();
}

Status HostMeasuringDevice::Allocate(size_t bytes, void** data) {
  if (posix_memalign(data, kAlignment, bytes) == 0) return Status::Ok();
  *data = nullptr;
  return ResourceExhausted("No " + std::to_string(bytes) + " bytes of host memory.");
}

void HostMeasuringDevice::Free(void* data) { std::free(data); }

Status HostMeasuringDevice::CopyToDevice(const void* from, size_t bytes, void* to) {
  std::memcpy(to, from, bytes);
  return Status::Ok();
}

Status HostMeasuringDevice::CopyFromDevice(const void* from, size_t bytes, void* to) {
  std::memcpy(to, from, bytes);
  return Status::Ok();
}

Status HostMeasuringDevice::StartTimer() {
  stream_->Enqueue([this] {
    start_ = std::chrono::steady_clock::now();
    return Status::Ok();
  });
  return Status::Ok();
}

Status HostMeasuringDevice::StopTimer() {
  stream_->Enqueue([this] {
    stop_ = std::chrono::steady_clock::now();
    return Status::Ok();
  });
  return Status::Ok();
}

Status HostMeasuringDevice::ReadTimer(double* elapsed_us) {
  TF_INTEROP_RETURN_IF_ERROR(Synchronize());
  *elapsed_us = std::chrono::duration<double, std::micro>(stop_ - start_).count();
  return Status::Ok();
}

Status HostMeasuringDevice::Synchronize() {
  stream_->Synchronize();
  return stream_->TakeError();
}

}  // namespace tf_interop
