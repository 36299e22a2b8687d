// Devices for TensorFlow's own kernels inside compiled functions. They have only what kernels that
// compute without state need: threads, memory and a stream.
#ifndef TF_INTEROP_XLA_DEVICES_H_
#define TF_INTEROP_XLA_DEVICES_H_

#include <string>

#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device_base.h"

namespace Eigen {
struct ThreadPoolDevice;
}  // namespace Eigen

namespace tf_interop {

// A CPU over the threads that XLA computes with.
class HostDevice : public tensorflow::DeviceBase {
 public:
  // The device over the pool of `threads`, which is TensorFlow's own; one for each pool, never
  // freed. Null gives a device whose kernels compute on the calling thread.
  static HostDevice* Over(const Eigen::ThreadPoolDevice* threads);

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  const tensorflow::DeviceAttributes& attributes() const override { return attributes_; }
  const std::string& name() const override { return attributes_.name(); }
  const std::string& device_type() const override { return attributes_.device_type(); }

 private:
  struct Workers;

  explicit HostDevice(Workers* workers);

  const tensorflow::DeviceAttributes attributes_;
};

// A GPU. Kernels are made on it, but a call needs memory and a stream of its own.
class GpuDevice : public tensorflow::DeviceBase {
 public:
  // By XLA's number of the GPU; never freed.
  static GpuDevice* Number(int number);

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  const tensorflow::DeviceAttributes& attributes() const override { return attributes_; }
  const std::string& name() const override { return attributes_.name(); }
  const std::string& device_type() const override { return attributes_.device_type(); }

 private:
  explicit GpuDevice(int number);

  const tensorflow::DeviceAttributes attributes_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_XLA_DEVICES_H_
