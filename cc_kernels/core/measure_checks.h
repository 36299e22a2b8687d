// What every measurement checks of what it is asked for, and how it fails.
#ifndef TF_INTEROP_CORE_MEASURE_CHECKS_H_
#define TF_INTEROP_CORE_MEASURE_CHECKS_H_

#include <exception>
#include <new>
#include <string>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/measure.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

Status CheckOptions(const MeasureOptions& options);

// Checks that the convolution is valid and computes something from something.
Status CheckHasWork(const Convolution& convolution);

// What Prepare says of an algorithm. A name that the backend does not know comes from a list that
// was made elsewhere: it is refused like an algorithm that cannot run, and others go on.
Status AsRefusal(const std::string& algorithm, const Status& status);

// Host memory may run out in any container.
template <typename Measure>
Status Guarded(const Measure& measure) {
  try {
    return measure();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("Out of host memory for the operands of a measurement.");
  } catch (const std::exception& error) {
    return Internal(std::string("A measurement failed: ") + error.what());
  }
}

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_CHECKS_H_
