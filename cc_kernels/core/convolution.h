// One convolution with every size known, as a backend prepares and runs it.
#ifndef TF_INTEROP_CORE_CONVOLUTION_H_
#define TF_INTEROP_CORE_CONVOLUTION_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

#include "cc_kernels/core/c_api.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

enum class ConvolutionKind { kForward, kBackwardInput, kBackwardFilter };
enum class DataType { kFloat, kHalf, kBFloat16, kDouble };
enum class Layout { kNHWC, kNCHW };  // of volumes: NDHWC, NCDHW
enum class Activation { kNone, kRelu, kRelu6, kLeakyRelu, kElu };
// By number. All but the first are ops of TensorFlow.
inline constexpr const char* kActivationNames[] = {"none", "Relu", "Relu6", "LeakyRelu", "Elu"};

// A convolution  image [N, H, W, C] * filter [R, S, C / group_count, K] -> output [N, P, Q, K].
//
// Each kind computes a different one of the three tensors. `layout` applies to image and output;
// the filter is always HWIO, as TensorFlow stores it. A depthwise convolution with multiplier M is
// the grouped one with group_count == C and K == C * M: TensorFlow's depthwise filter [R, S, C, M]
// has the same bytes as [R, S, 1, C * M].
//
// With a spatial rank of 3, images are volumes [N, D, H, W, C] and filters are DHWIO. With rank 2,
// every depth keeps its default, so code that handles depths works for both.
struct Convolution : TfiSizes {
  Convolution() : TfiSizes() {
    spatial_rank = 2;
    image_depth = filter_depth = output_depth = 1;
    stride_depth = stride_height = stride_width = 1;
    dilation_depth = dilation_height = dilation_width = 1;
    group_count = 1;
  }

  ConvolutionKind kind = ConvolutionKind::kForward;
  DataType dtype = DataType::kFloat;
  Layout layout = Layout::kNHWC;

  // Forward only: output = activation(convolution + bias).
  bool has_bias = false;
  Activation activation = Activation::kNone;
  float leaky_relu_alpha = 0.2f;

  bool operator==(const Convolution& other) const;

  // Pixels of one image, taps of the filter, pixels of one output.
  int64_t image_pixels() const { return image_depth * image_height * image_width; }
  int64_t taps() const { return filter_depth * filter_height * filter_width; }
  int64_t output_pixels() const { return output_depth * output_height * output_width; }

  int64_t image_elements() const { return batch * image_pixels() * image_channels; }
  int64_t filter_elements() const {
    return taps() * (image_channels / group_count) * output_channels;
  }
  int64_t output_elements() const { return batch * output_pixels() * output_channels; }

  // Includes padding. A double, because sizes beyond any machine would overflow 64 bits.
  double multiply_adds() const {
    const int64_t of_one_element = taps() * (image_channels / group_count);
    return static_cast<double>(output_elements()) * static_cast<double>(of_one_element);
  }

  // Elements of the tensor that this kind computes.
  int64_t result_elements() const;

  // False if one of the three tensors is empty. Any elements of the result are then 0.
  bool computes_something() const {
    return image_elements() != 0 && filter_elements() != 0 && output_elements() != 0;
  }
};

// One line for messages, with every field that is not at its default.
std::string ToString(const Convolution& convolution);
const char* ToString(ConvolutionKind kind);
const char* ToString(DataType dtype);
const char* ToString(Activation activation);

size_t SizeOf(DataType dtype);

// Checks that sizes are consistent and that their products fit into 64 bits. Returns
// kInvalidArgument with the field and its expected and actual values.
Status Validate(const Convolution& convolution);

// The sizes along one dimension.
struct SpatialSizes {
  int64_t image, filter, output, stride, dilation, pad_before, pad_after;
};
// The sizes along depth, height and width.
std::array<SpatialSizes, 3> SpatialSizesOf(const Convolution& convolution);

// The tensors of one convolution, in the order of its TensorFlow op:
//   forward          inputs: image, filter, bias (where has_bias)   result: output
//   backward-input   inputs: filter, output gradient                 result: image gradient
//   backward-filter  inputs: image, output gradient                  result: filter gradient
// Bias has the convolution's dtype and output_channels elements.
struct ConvolutionBuffers {
  const void* inputs[3] = {nullptr, nullptr, nullptr};
  void* result = nullptr;
  // The result of Backend::TransformFilter, which is read instead of the filter among the inputs.
  // Null if the launch transforms the filter itself.
  const void* transformed_filter = nullptr;

  bool operator==(const ConvolutionBuffers& other) const {
    return std::equal(std::begin(inputs), std::end(inputs), std::begin(other.inputs)) &&
           result == other.result && transformed_filter == other.transformed_filter;
  }
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CONVOLUTION_H_
