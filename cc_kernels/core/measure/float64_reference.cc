#include "cc_kernels/core/measure/float64_reference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace tf_interop {
namespace {

// Elements between neighbours of an image or an output.
struct Strides {
  int64_t batch, depth, height, width, channel;
};

Strides StridesOf(Layout layout, int64_t depth, int64_t height, int64_t width, int64_t channels) {
  const int64_t pixels = depth * height * width;
  if (layout == Layout::kNHWC) {
    return {pixels * channels, height * width * channels, width * channels, channels, 1};
  }
  return {pixels * channels, height * width, width, 1, pixels};
}

Strides ImageStrides(const Convolution& c) {
  return StridesOf(c.layout, c.image_depth, c.image_height, c.image_width, c.image_channels);
}

Strides OutputStrides(const Convolution& c) {
  return StridesOf(c.layout, c.output_depth, c.output_height, c.output_width, c.output_channels);
}

// Calls visit(image, filter, output) with the offsets of every product of one output pixel and one
// filter tap, where `image` and `output` are those of the first channels.
template <typename Visit>
void ForEachChannelPair(const Convolution& c, int64_t image, int64_t filter, int64_t output,
                        const Visit& visit) {
  const int64_t group_channels = c.image_channels / c.group_count;
  const int64_t group_filters = c.output_channels / c.group_count;
  const int64_t image_channel = ImageStrides(c).channel;
  const int64_t output_channel = OutputStrides(c).channel;
  for (int64_t group = 0; group < c.group_count; ++group) {
    for (int64_t i = 0; i < group_channels; ++i) {
      const int64_t x = image + (group * group_channels + i) * image_channel;
      for (int64_t j = 0; j < group_filters; ++j) {
        const int64_t k = group * group_filters + j;
        visit(x, filter + i * c.output_channels + k, output + k * output_channel);
      }
    }
  }
}

// Calls visit(output position, tap, image position) along one spatial dimension. Taps that read
// padding are left out: they add zero.
template <typename Visit>
void ForEachPosition(int64_t image, int64_t filter, int64_t output, int64_t stride,
                     int64_t dilation, int64_t pad_before, const Visit& visit) {
  for (int64_t position = 0; position < output; ++position) {
    for (int64_t tap = 0; tap < filter; ++tap) {
      const int64_t read = position * stride + tap * dilation - pad_before;
      if (read >= 0 && read < image) visit(position, tap, read);
    }
  }
}

// The same as ForEachChannelPair for the whole convolution.
template <typename Visit>
void ForEachProduct(const Convolution& c, const Visit& visit) {
  const Strides image = ImageStrides(c), output = OutputStrides(c);
  const int64_t tap_elements = c.image_channels / c.group_count * c.output_channels;
  const auto along_width = [&](int64_t x, int64_t row, int64_t y) {
    ForEachPosition(c.image_width, c.filter_width, c.output_width, c.stride_width, c.dilation_width,
                    c.pad_left, [&](int64_t q, int64_t s, int64_t w) {
                      ForEachChannelPair(c, x + w * image.width,
                                         (row * c.filter_width + s) * tap_elements,
                                         y + q * output.width, visit);
                    });
  };
  const auto along_height = [&](int64_t x, int64_t plane, int64_t y) {
    ForEachPosition(c.image_height, c.filter_height, c.output_height, c.stride_height,
                    c.dilation_height, c.pad_top, [&](int64_t p, int64_t r, int64_t h) {
                      along_width(x + h * image.height, plane * c.filter_height + r,
                                  y + p * output.height);
                    });
  };
  for (int64_t n = 0; n < c.batch; ++n) {
    ForEachPosition(c.image_depth, c.filter_depth, c.output_depth, c.stride_depth, c.dilation_depth,
                    c.pad_front, [&](int64_t o, int64_t t, int64_t d) {
                      along_height(n * image.batch + d * image.depth, t,
                                   n * output.batch + o * output.depth);
                    });
  }
}

double Activate(const Convolution& c, double x) {
  switch (c.activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kRelu6:
      return std::clamp(x, 0.0, 6.0);
    case Activation::kLeakyRelu:
      return x > 0 ? x : x * static_cast<double>(c.leaky_relu_alpha);
    case Activation::kElu:
      return x > 0 ? x : std::expm1(x);
  }
  return x;
}

}  // namespace

double MultiplyAdds(const Convolution& c) {
  double product = 1;
  for (const int64_t size :
       {c.batch, c.output_depth, c.output_height, c.output_width, c.output_channels, c.filter_depth,
        c.filter_height, c.filter_width, c.image_channels / c.group_count}) {
    product *= static_cast<double>(size);
  }
  return product;
}

std::vector<double> ComputeInFloat64(const Convolution& c,
                                     const std::vector<std::vector<double>>& inputs) {
  std::vector<double> result(c.result_elements(), 0.0);
  const double* const first = inputs[0].data();
  const double* const second = inputs[1].data();
  switch (c.kind) {
    case ConvolutionKind::kForward: {
      ForEachProduct(c,
                     [&](int64_t x, int64_t f, int64_t y) { result[y] += first[x] * second[f]; });
      const int64_t channel_stride = OutputStrides(c).channel;
      for (size_t y = 0; y < result.size(); ++y) {
        const int64_t k = static_cast<int64_t>(y) / channel_stride % c.output_channels;
        result[y] = Activate(c, result[y] + (c.has_bias ? inputs[2][k] : 0.0));
      }
      break;
    }
    case ConvolutionKind::kBackwardInput:
      ForEachProduct(c,
                     [&](int64_t x, int64_t f, int64_t y) { result[x] += first[f] * second[y]; });
      break;
    case ConvolutionKind::kBackwardFilter:
      ForEachProduct(c,
                     [&](int64_t x, int64_t f, int64_t y) { result[f] += first[x] * second[y]; });
      break;
  }
  return result;
}

}  // namespace tf_interop
