// Convolutions that tests run on every backend.
#ifndef TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
#define TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_

#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// A small convolution with SAME padding.
Convolution MakeConvolution(ConvolutionKind kind = ConvolutionKind::kForward,
                            Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// The same with bias and Relu.
Convolution MakeFused();

// Geometries of which each has something that the others lack.
std::vector<Convolution> Geometries();

std::vector<Convolution> WithEveryKindLayoutAndType(const std::vector<Convolution>& geometries);

// Forward, with and without bias, with every activation.
std::vector<Convolution> WithEveryEpilogue(const std::vector<Convolution>& geometries);

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
