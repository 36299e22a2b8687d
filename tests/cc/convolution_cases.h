// Convolutions that tests run on every backend.
#ifndef TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
#define TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_

#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

// A small convolution with SAME padding.
Convolution MakeConvolution(ConvolutionKind kind = ConvolutionKind::kForward,
                            Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// The same of volumes, with another size in each spatial dimension.
Convolution MakeVolume(ConvolutionKind kind = ConvolutionKind::kForward,
                       Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// A small convolution with bias and Relu.
Convolution MakeFused(Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// Geometries of which each has something that the others lack.
std::vector<Convolution> Geometries();

// The same of volumes.
std::vector<Convolution> VolumeGeometries();

// float and half; the other two types cost the tests as much again and are tried on few.
std::vector<Convolution> WithEveryKindLayoutAndType(const std::vector<Convolution>& geometries);

// Kinds and layouts of `geometries` in one type.
std::vector<Convolution> WithEveryKindAndLayout(const std::vector<Convolution>& geometries,
                                                DataType dtype);

// Forward, with and without bias, with every activation.
std::vector<Convolution> WithEveryEpilogue(const std::vector<Convolution>& geometries);

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
