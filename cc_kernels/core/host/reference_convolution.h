// A convolution by its definition: plain loops over every kind, layout, type, rank and group count.
// The host backend uses it, and rounding errors are measured against it.
#ifndef TF_INTEROP_CORE_HOST_REFERENCE_CONVOLUTION_H_
#define TF_INTEROP_CORE_HOST_REFERENCE_CONVOLUTION_H_

#include <cstdint>
#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// Elements of the inputs, in the order of ConvolutionBuffers.
std::vector<int64_t> InputElements(const Convolution& convolution);

// Convert a tensor of `dtype` to doubles and back. Encode rounds to float first, and from there to
// half and bfloat16, to nearest with ties to even.
void Decode(DataType dtype, const void* tensor, int64_t elements, double* values);
std::vector<double> Decode(DataType dtype, const void* tensor, int64_t elements);
void Encode(DataType dtype, const double* values, int64_t elements, void* tensor);

// Computes the result, of result_elements(), from the inputs of ConvolutionBuffers. Uses one thread
// and about a nanosecond for each multiply-add, and produces the same bits every time.
void Convolve(const Convolution& convolution, const std::vector<const double*>& inputs,
              double* result);
std::vector<double> Convolve(const Convolution& convolution,
                             const std::vector<std::vector<double>>& inputs);

// Single elements of the result. `inputs` have the convolution's type.
std::vector<double> ConvolveAt(const Convolution& convolution,
                               const std::vector<const void*>& inputs,
                               const std::vector<int64_t>& places);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_HOST_REFERENCE_CONVOLUTION_H_
