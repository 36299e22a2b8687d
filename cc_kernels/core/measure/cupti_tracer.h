// Records the GPU kernels of this process with CUPTI's activity API. Includes no CUPTI header.
#ifndef TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_
#define TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_

#include <vector>

#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Begins a trace; one at a time. Returns kUnavailable if there is no CUPTI, or with CUPTI's reason:
// another tool (Nsight, TensorFlow's profiler) uses it, or the GPU is virtual. The first call opens
// CUPTI; if that fails, so do all later calls. `driver_version` is from cuDriverGetVersion.
//
// CUPTI is attached to the process only during a trace, because it slows every launch down even
// while it records nothing.
Status StartKernelTrace(int driver_version);

// Ends the trace and sets `kernels`, all of which have ended, in the order of their start. Returns
// kUnavailable if there are none or some may be missing.
Status StopKernelTrace(std::vector<TracedKernel>* kernels);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_
