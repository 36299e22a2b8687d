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

// Kernels are made on it. A call needs memory of its own, and on a GPU a stream.
class KernelDevice : public tensorflow::DeviceBase {
 public:
  // A CPU over the pool of `threads`, which is TensorFlow's own; one for each pool, never freed.
  // Null gives a device whose kernels compute on the calling thread.
  static KernelDevice* OverThreads(const Eigen::ThreadPoolDevice* threads);
  // By XLA's number of the GPU; never freed.
  static KernelDevice* OfGpu(int number);

  // Kernels allocate nothing on a GPU while they are made.
  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override;
  const tensorflow::DeviceAttributes& attributes() const override { return attributes_; }
  const std::string& name() const override { return attributes_.name(); }
  const std::string& device_type() const override { return attributes_.device_type(); }

 private:
  KernelDevice(const std::string& name, const char* type);

  const tensorflow::DeviceAttributes attributes_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_XLA_DEVICES_H_
