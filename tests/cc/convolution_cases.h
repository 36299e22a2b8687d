// Convolutions for the tests of all backends.
#ifndef TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
#define TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_

#include <vector>

#include "cc_kernels/core/convolution.h"

namespace tf_interop {

inline constexpr ConvolutionKind kKinds[] = {
    ConvolutionKind::kForward, ConvolutionKind::kBackwardInput, ConvolutionKind::kBackwardFilter};

// Set output sizes and, for "SAME", pads from the other fields.
void CompleteSame(Convolution* c);
void CompleteFromPads(Convolution* c);

// A small convolution with SAME padding.
Convolution MakeConvolution(ConvolutionKind kind = ConvolutionKind::kForward,
                            Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// The same for volumes, with a different size in each spatial dimension.
Convolution MakeVolume();

// A small convolution with bias and Relu.
Convolution MakeFused(Layout layout = Layout::kNHWC, DataType dtype = DataType::kFloat);

// A small convolution with different padding before and after.
Convolution MakeAsymmetric();

// A 1x1 convolution of one image of one row of pixels.
Convolution MakePointwise(int64_t pixels, int64_t image_channels = 1, int64_t output_channels = 1);

// Each differs from the others in some respect.
std::vector<Convolution> Geometries();
std::vector<Convolution> VolumeGeometries();

// Every kind and layout of `geometries` in these types.
std::vector<Convolution> WithEveryKindAndLayout(const std::vector<Convolution>& geometries,
                                                const std::vector<DataType>& dtypes = {
                                                    DataType::kFloat, DataType::kHalf});

// Small forward convolutions in float, half and double, with and without bias, with every
// activation.
std::vector<Convolution> EveryEpilogue();

}  // namespace tf_interop

#endif  // TF_INTEROP_TESTS_CC_CONVOLUTION_CASES_H_
