#include "cc_kernels/core/host/host_measuring_device.h"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace tf_interop {
namespace {

constexpr size_t kAlignment = 64;

// As the kernel gives it; not on every architecture.
std::string CpuModel() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU";
}

int UsableCores() {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof(cores), &cores) == 0) return CPU_COUNT(&cores);
  // More cores than the set has room for.
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

Status HostMeasuringDevice::Create(Backend* backend, std::unique_ptr<HostMeasuringDevice>* device) {
  std::unique_ptr<HostStream> stream;
  TF_INTEROP_RETURN_IF_ERROR(HostStream::Create(&stream));
  device->reset(new HostMeasuringDevice(backend, std::move(stream)));
  return Status::Ok();
}

Status HostMeasuringDevice::Describe(DeviceDescription* description) {
  *description = DeviceDescription();
  description->name = CpuModel();
  description->sm_count = UsableCores();
  description->memory_bytes =
      static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
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
