// Notes the GPU kernels that run in this process, with CUPTI's activity API. This header needs no
// header of CUPTI's.
#ifndef TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_
#define TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_

#include <vector>

#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

struct CuptiLibrary;

// One for the process, as CUPTI is. Not thread-safe: one trace at a time. Outside of a trace
// nothing is recorded.
class CuptiTracer {
 public:
  // Opens CUPTI with the first call, whose failure is final: kUnavailable where there is none.
  // `driver_version` is what cuDriverGetVersion gives.
  static Status Get(int driver_version, CuptiTracer** tracer);

  // Begins a trace. Returns kUnavailable with CUPTI's reason, such as that another tool (Nsight,
  // TensorFlow's profiler) holds CUPTI, or that the GPU is virtual.
  Status Start();

  // Ends the trace that Start began and gives its kernels in the order in which they started; all
  // of them have ended by now. Returns kUnavailable where any of them may be missing, or none came.
  Status Stop(std::vector<TracedKernel>* kernels);

 private:
  explicit CuptiTracer(const CuptiLibrary& library) : library_(library) {}

  const CuptiLibrary& library_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_CUPTI_TRACER_H_
