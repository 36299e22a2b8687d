// An NVIDIA GPU as a device to measure on: its primary context, a stream, and two events that take
// the time. Traces kernels with CUPTI.
#ifndef TF_INTEROP_CORE_MEASURE_CUDA_DEVICE_H_
#define TF_INTEROP_CORE_MEASURE_CUDA_DEVICE_H_

#include <memory>

#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Takes the first GPU that the driver lists (CUDA_VISIBLE_DEVICES says which that is). Returns
// kUnavailable if there is no NVIDIA driver, no GPU, or no cuDNN of version 9.0 or newer.
//
// The device's stream lives until the process ends, as all that the cudnn backend owns: its cuDNN
// handles still name the stream after the last measurement. Make one for a process.
Status OpenCudaDevice(std::unique_ptr<MeasuringDevice>* device);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_CUDA_DEVICE_H_
