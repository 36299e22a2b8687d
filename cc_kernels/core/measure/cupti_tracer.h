// Notes the GPU kernels that run in this process, with CUPTI's activity API. This header needs no
// header of CUPTI's.
#ifndef TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_
#define TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_

#include <vector>

#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Begins a trace. Returns kUnavailable if there is no CUPTI, or with CUPTI's reason, such as
// that another tool (Nsight, TensorFlow's profiler) holds it, or that the GPU is virtual. CUPTI is
// opened with the first call, whose failure is final; `driver_version` is what cuDriverGetVersion
// gives.
//
// One trace at a time, as CUPTI is one for the process. Outside of a trace CUPTI is not attached to
// the process: attached, it slows every launch down, also while it records nothing.
Status StartKernelTrace(int driver_version);

// Ends the trace and gives its kernels in the order in which they started; all of them have ended
// by now. Returns kUnavailable where any of them may be missing, or none came.
Status StopKernelTrace(std::vector<TracedKernel>* kernels);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_
