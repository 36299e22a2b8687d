#include "cc_kernels/core/convolution.h"

#include <cstring>
#include <initializer_list>
#include <limits>
#include <sstream>

namespace tf_interop {
namespace {

// TensorFlow's own kernels and cuDNN's legacy API count in ints.
constexpr int64_t kLargestSize = std::numeric_limits<int>::max();
// The bytes of a tensor, and of several together in float, must fit into 64 bits.
constexpr int64_t kMostElements = int64_t{1} << 56;

// Output sizes follow from the others.
struct Bound {
  const char* field;
  int64_t TfiSizes::* size;
  int64_t least;
};
constexpr Bound kBounds[] = {{"batch", &TfiSizes::batch, 0},
                             {"image_depth", &TfiSizes::image_depth, 0},
                             {"image_height", &TfiSizes::image_height, 0},
                             {"image_width", &TfiSizes::image_width, 0},
                             {"image_channels", &TfiSizes::image_channels, 1},
                             {"filter_depth", &TfiSizes::filter_depth, 1},
                             {"filter_height", &TfiSizes::filter_height, 1},
                             {"filter_width", &TfiSizes::filter_width, 1},
                             {"output_channels", &TfiSizes::output_channels, 0},
                             {"stride_depth", &TfiSizes::stride_depth, 1},
                             {"stride_height", &TfiSizes::stride_height, 1},
                             {"stride_width", &TfiSizes::stride_width, 1},
                             {"dilation_depth", &TfiSizes::dilation_depth, 1},
                             {"dilation_height", &TfiSizes::dilation_height, 1},
                             {"dilation_width", &TfiSizes::dilation_width, 1},
                             {"pad_front", &TfiSizes::pad_front, 0},
                             {"pad_back", &TfiSizes::pad_back, 0},
                             {"pad_top", &TfiSizes::pad_top, 0},
                             {"pad_bottom", &TfiSizes::pad_bottom, 0},
                             {"pad_left", &TfiSizes::pad_left, 0},
                             {"pad_right", &TfiSizes::pad_right, 0},
                             {"group_count", &TfiSizes::group_count, 1}};

Status CheckBounds(const Convolution& c) {
  for (const auto& [field, size, least] : kBounds) {
    if (c.*size >= least && c.*size <= kLargestSize) continue;
    const bool is_small = c.*size < least;
    return InvalidArgument(
        std::string("Expected ") + field + " to be at " + (is_small ? "least " : "most ") +
        std::to_string(is_small ? least : kLargestSize) + ", got " + std::to_string(c.*size) + ".");
  }
  return Status::Ok();
}

// Checks the number of elements of a tensor. No size is negative.
Status CheckElements(const char* tensor, std::initializer_list<int64_t> sizes) {
  int64_t elements = 1;
  bool fits = true;
  for (const int64_t size : sizes) {
    if (size == 0) return Status::Ok();
    fits = fits && !__builtin_mul_overflow(elements, size, &elements) && elements <= kMostElements;
  }
  if (fits) return Status::Ok();
  return InvalidArgument(std::string("Expected ") + tensor + " of at most " +
                         std::to_string(kMostElements) + " elements, got more.");
}

// Checks that output = floor((image + pads - effective filter) / stride) + 1, or 0 if the filter
// does not fit.
Status CheckSpatial(const char* dimension, const SpatialSizes& s) {
  const int64_t effective_filter = (s.filter - 1) * s.dilation + 1;
  const int64_t slack = s.image + s.pad_before + s.pad_after - effective_filter;
  const int64_t expected = slack < 0 ? 0 : slack / s.stride + 1;
  if (s.output == expected) return Status::Ok();
  std::ostringstream message;
  message << "Expected output " << dimension << " " << expected << " from image " << s.image
          << ", filter " << s.filter << ", stride " << s.stride << ", dilation " << s.dilation
          << " and pads " << s.pad_before << "+" << s.pad_after << ", got " << s.output << ".";
  return InvalidArgument(message.str());
}

Status CheckDepth(const Convolution& c) {
  if (c.spatial_rank != 2 && c.spatial_rank != 3) {
    return InvalidArgument("Expected a spatial rank of 2 or 3, got " +
                           std::to_string(c.spatial_rank) + ".");
  }
  const bool is_flat = c.image_depth == 1 && c.filter_depth == 1 && c.output_depth == 1 &&
                       c.stride_depth == 1 && c.dilation_depth == 1 && c.pad_front == 0 &&
                       c.pad_back == 0;
  if (c.spatial_rank == 2 && !is_flat) {
    return InvalidArgument("Expected no depth with a spatial rank of 2, got image " +
                           std::to_string(c.image_depth) + ", filter " +
                           std::to_string(c.filter_depth) + ".");
  }
  return Status::Ok();
}

// Returns "4x6x5", say, or "6x5" without a depth.
std::string Spatial(const Convolution& c, int64_t depth, int64_t height, int64_t width) {
  const std::string flat = std::to_string(height) + "x" + std::to_string(width);
  return c.spatial_rank == 3 ? std::to_string(depth) + "x" + flat : flat;
}

const char* LayoutName(const Convolution& c) {
  if (c.spatial_rank == 3) return c.layout == Layout::kNHWC ? "NDHWC" : "NCDHW";
  return c.layout == Layout::kNHWC ? "NHWC" : "NCHW";
}

}  // namespace

bool Convolution::operator==(const Convolution& other) const {
  // TfiSizes has no padding.
  return std::memcmp(static_cast<const TfiSizes*>(this), static_cast<const TfiSizes*>(&other),
                     sizeof(TfiSizes)) == 0 &&
         kind == other.kind && dtype == other.dtype && layout == other.layout &&
         has_bias == other.has_bias && activation == other.activation &&
         leaky_relu_alpha == other.leaky_relu_alpha;
}

int64_t Convolution::result_elements() const {
  if (kind == ConvolutionKind::kForward) return output_elements();
  return kind == ConvolutionKind::kBackwardInput ? image_elements() : filter_elements();
}

const char* ToString(ConvolutionKind kind) {
  static constexpr const char* names[] = {"forward", "backward-input", "backward-filter"};
  return names[static_cast<int>(kind)];
}

const char* ToString(DataType dtype) {
  static constexpr const char* names[] = {"float", "half", "bfloat16", "double"};
  return names[static_cast<int>(dtype)];
}

const char* ToString(Activation activation) {
  return kActivationNames[static_cast<int>(activation)];
}

std::string ToString(const Convolution& c) {
  std::ostringstream text;
  text << ToString(c.kind) << " " << ToString(c.dtype) << " " << LayoutName(c) << " image "
       << c.batch << "x" << Spatial(c, c.image_depth, c.image_height, c.image_width) << "x"
       << c.image_channels << " filter "
       << Spatial(c, c.filter_depth, c.filter_height, c.filter_width) << "x"
       << c.image_channels / c.group_count << "x" << c.output_channels << " output "
       << Spatial(c, c.output_depth, c.output_height, c.output_width);
  if (c.stride_depth != 1 || c.stride_height != 1 || c.stride_width != 1) {
    text << " stride " << Spatial(c, c.stride_depth, c.stride_height, c.stride_width);
  }
  if (c.dilation_depth != 1 || c.dilation_height != 1 || c.dilation_width != 1) {
    text << " dilation " << Spatial(c, c.dilation_depth, c.dilation_height, c.dilation_width);
  }
  const bool pads_depth = c.pad_front != 0 || c.pad_back != 0;
  if (pads_depth || c.pad_top != 0 || c.pad_bottom != 0 || c.pad_left != 0 || c.pad_right != 0) {
    text << " pads ";
    if (c.spatial_rank == 3) text << c.pad_front << "," << c.pad_back << ",";
    text << c.pad_top << "," << c.pad_bottom << "," << c.pad_left << "," << c.pad_right;
  }
  if (c.group_count != 1) text << " groups " << c.group_count;
  if (c.has_bias) text << " bias";
  if (c.activation != Activation::kNone) text << " " << ToString(c.activation);
  return text.str();
}

std::array<SpatialSizes, 3> SpatialSizesOf(const Convolution& c) {
  return {{{c.image_depth, c.filter_depth, c.output_depth, c.stride_depth, c.dilation_depth,
            c.pad_front, c.pad_back},
           {c.image_height, c.filter_height, c.output_height, c.stride_height, c.dilation_height,
            c.pad_top, c.pad_bottom},
           {c.image_width, c.filter_width, c.output_width, c.stride_width, c.dilation_width,
            c.pad_left, c.pad_right}}};
}

size_t SizeOf(DataType dtype) {
  if (dtype == DataType::kDouble) return 8;
  return dtype == DataType::kFloat ? 4 : 2;
}

Status Validate(const Convolution& c) {
  TF_INTEROP_RETURN_IF_ERROR(CheckDepth(c));
  TF_INTEROP_RETURN_IF_ERROR(CheckBounds(c));
  if (c.image_channels % c.group_count != 0 || c.output_channels % c.group_count != 0) {
    return InvalidArgument("Expected image_channels " + std::to_string(c.image_channels) +
                           " and output_channels " + std::to_string(c.output_channels) +
                           " to be multiples of group_count " + std::to_string(c.group_count) +
                           ".");
  }
  if (c.kind != ConvolutionKind::kForward && (c.has_bias || c.activation != Activation::kNone)) {
    return InvalidArgument(std::string("Expected no bias and no activation on a ") +
                           ToString(c.kind) + " convolution.");
  }
  const std::array<SpatialSizes, 3> spatial = SpatialSizesOf(c);
  TF_INTEROP_RETURN_IF_ERROR(CheckSpatial("depth", spatial[0]));
  TF_INTEROP_RETURN_IF_ERROR(CheckSpatial("height", spatial[1]));
  TF_INTEROP_RETURN_IF_ERROR(CheckSpatial("width", spatial[2]));
  TF_INTEROP_RETURN_IF_ERROR(CheckElements(
      "an image", {c.batch, c.image_depth, c.image_height, c.image_width, c.image_channels}));
  TF_INTEROP_RETURN_IF_ERROR(
      CheckElements("a filter", {c.filter_depth, c.filter_height, c.filter_width,
                                 c.image_channels / c.group_count, c.output_channels}));
  return CheckElements(
      "an output", {c.batch, c.output_depth, c.output_height, c.output_width, c.output_channels});
}

}  // namespace tf_interop
