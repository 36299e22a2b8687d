// Convolutions that tests run on every backend.
#ifndef TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
#define TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_

#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

inline constexpr ConvolutionKind kKinds[] = {
    ConvolutionKind::kForward, ConvolutionKind::kBackwardInput, ConvolutionKind::kBackwardFilter};

// Fill in output sizes and, for "SAME", pads, from the other fields.
void CompleteSame(Convolution* c);
void CompleteFromPads(Convolution* c);

// A small convolution with SAME padding.
Convolution MakeConvolution(ConvolutionKind kind = ConvolutionKind::kForward,
                            Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// The same of volumes, with another size in each spatial dimension.
Convolution MakeVolume(ConvolutionKind kind = ConvolutionKind::kForward,
                       Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// A small convolution with bias and Relu.
Convolution MakeFused(Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// One whose paddings before and after differ.
Convolution MakeAsymmetric(ConvolutionKind kind = ConvolutionKind::kForward);

// A 1x1 convolution of one image of one row of pixels.
Convolution MakePointwise(int64_t pixels, int64_t image_channels = 1, int64_t output_channels = 1);

// Geometries of which each has something that the others lack.
std::vector<Convolution> Geometries();

// The same of volumes.
std::vector<Convolution> VolumeGeometries();

// Kinds and layouts of `geometries` in these types. Each costs the tests as much again.
std::vector<Convolution> WithEveryKindAndLayout(const std::vector<Convolution>& geometries,
                                                const std::vector<DataType>& dtypes = {
                                                    DataType::kFloat, DataType::kHalf});

// Forward, in float, half and double, with and without bias, with every activation.
std::vector<Convolution> WithEveryEpilogue(const std::vector<Convolution>& geometries);

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
