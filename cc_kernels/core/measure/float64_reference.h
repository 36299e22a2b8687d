// The definition of a convolution in double precision: what an algorithm's rounding error is
// measured against.
#ifndef TF_INTEROP_CORE_MEASURE_FLOAT64_REFERENCE_H_
#define TF_INTEROP_CORE_MEASURE_FLOAT64_REFERENCE_H_

#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// Multiply-adds of the convolution, padding counted as if it were data. A double, because sizes
// that no machine could compute overflow 64 bits.
double MultiplyAdds(const Convolution& convolution);

// The result, in the convolution's layout. `inputs` are the tensors of ConvolutionBuffers, in its
// order and in the convolution's layout. One thread, about a nanosecond for each multiply-add.
std::vector<double> ComputeInFloat64(const Convolution& convolution,
                                     const std::vector<std::vector<double>>& inputs);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_FLOAT64_REFERENCE_H_
