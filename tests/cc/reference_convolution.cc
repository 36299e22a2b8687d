#include "tests/cc/reference_convolution.h"

#include <algorithm>
#include <cmath>

namespace tf_interop {
namespace {

// A pixel of an image or an output.
struct Pixel {
  int64_t d, h, w;
};

int64_t Offset(const Convolution& c, int64_t n, const Pixel& at, int64_t channel, const Pixel& size,
               int64_t channels) {
  if (c.layout == Layout::kNHWC) {
    return (((n * size.d + at.d) * size.h + at.h) * size.w + at.w) * channels + channel;
  }
  return (((n * channels + channel) * size.d + at.d) * size.h + at.h) * size.w + at.w;
}

Pixel PixelAt(const Pixel& size, int64_t index) {
  return {index / size.w / size.h, index / size.w % size.h, index % size.w};
}

double Activated(const Convolution& c, double x) {
  switch (c.activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return std::max(x, 0.0);
    case Activation::kRelu6:
      return std::min(std::max(x, 0.0), 6.0);
    case Activation::kLeakyRelu:
      return x > 0 ? x : x * static_cast<double>(c.leaky_relu_alpha);
    case Activation::kElu:
      return x > 0 ? x : std::exp(x) - 1;
  }
  return x;
}

// Calls visit(image offset, filter offset, output offset) for every product of the convolution.
template <typename Visit>
void ForEachProduct(const Convolution& c, const Visit& visit) {
  const int64_t group_channels = c.image_channels / c.group_count;
  const int64_t group_filters = c.output_channels / c.group_count;
  const Pixel image = {c.image_depth, c.image_height, c.image_width};
  const Pixel output = {c.output_depth, c.output_height, c.output_width};
  const Pixel filter = {c.filter_depth, c.filter_height, c.filter_width};
  for (int64_t n = 0; n < c.batch; ++n) {
    for (int64_t pixel = 0; pixel < output.d * output.h * output.w; ++pixel) {
      const Pixel y = PixelAt(output, pixel);
      for (int64_t tap = 0; tap < filter.d * filter.h * filter.w; ++tap) {
        const Pixel f = PixelAt(filter, tap);
        const Pixel x = {y.d * c.stride_depth + f.d * c.dilation_depth - c.pad_front,
                         y.h * c.stride_height + f.h * c.dilation_height - c.pad_top,
                         y.w * c.stride_width + f.w * c.dilation_width - c.pad_left};
        if (x.d < 0 || x.d >= image.d || x.h < 0 || x.h >= image.h || x.w < 0 || x.w >= image.w) {
          continue;
        }
        for (int64_t k = 0; k < c.output_channels; ++k) {
          const int64_t first = k / group_filters * group_channels;
          for (int64_t i = 0; i < group_channels; ++i) {
            visit(Offset(c, n, x, first + i, image, c.image_channels),
                  (tap * group_channels + i) * c.output_channels + k,
                  Offset(c, n, y, k, output, c.output_channels));
          }
        }
      }
    }
  }
}

}  // namespace

ReferenceTensors MakeReferenceTensors(const Convolution& c) {
  ReferenceTensors tensors;
  tensors.image.resize(c.image_elements());
  tensors.filter.resize(c.filter_elements());
  tensors.output.resize(c.output_elements());
  tensors.bias.resize(c.has_bias ? c.output_channels : 0);
  return tensors;
}

void RunReference(const Convolution& c, ReferenceTensors* t) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      std::fill(t->output.begin(), t->output.end(), 0.0);
      ForEachProduct(
          c, [&](int64_t x, int64_t f, int64_t y) { t->output[y] += t->image[x] * t->filter[f]; });
      for (int64_t y = 0; y < c.output_elements(); ++y) {
        const int64_t k =
            c.layout == Layout::kNHWC
                ? y % c.output_channels
                : y / (c.output_depth * c.output_height * c.output_width) % c.output_channels;
        t->output[y] = Activated(c, t->output[y] + (c.has_bias ? t->bias[k] : 0.0));
      }
      break;
    case ConvolutionKind::kBackwardInput:
      std::fill(t->image.begin(), t->image.end(), 0.0);
      ForEachProduct(
          c, [&](int64_t x, int64_t f, int64_t y) { t->image[x] += t->output[y] * t->filter[f]; });
      break;
    case ConvolutionKind::kBackwardFilter:
      std::fill(t->filter.begin(), t->filter.end(), 0.0);
      ForEachProduct(
          c, [&](int64_t x, int64_t f, int64_t y) { t->filter[f] += t->image[x] * t->output[y]; });
      break;
  }
}

void CompleteSame(Convolution* c) {
  const auto complete = [](int64_t image, int64_t filter, int64_t stride, int64_t dilation,
                           int64_t* output, int64_t* before, int64_t* after) {
    *output = (image + stride - 1) / stride;
    const int64_t total =
        std::max<int64_t>((*output - 1) * stride + (filter - 1) * dilation + 1 - image, 0);
    *before = total / 2;
    *after = total - *before;
  };
  complete(c->image_depth, c->filter_depth, c->stride_depth, c->dilation_depth, &c->output_depth,
           &c->pad_front, &c->pad_back);
  complete(c->image_height, c->filter_height, c->stride_height, c->dilation_height,
           &c->output_height, &c->pad_top, &c->pad_bottom);
  complete(c->image_width, c->filter_width, c->stride_width, c->dilation_width, &c->output_width,
           &c->pad_left, &c->pad_right);
}

void CompleteFromPads(Convolution* c) {
  const auto complete = [](int64_t image, int64_t filter, int64_t stride, int64_t dilation,
                           int64_t pads) {
    return (image + pads - (filter - 1) * dilation - 1) / stride + 1;
  };
  c->output_depth = complete(c->image_depth, c->filter_depth, c->stride_depth, c->dilation_depth,
                             c->pad_front + c->pad_back);
  c->output_height = complete(c->image_height, c->filter_height, c->stride_height,
                              c->dilation_height, c->pad_top + c->pad_bottom);
  c->output_width = complete(c->image_width, c->filter_width, c->stride_width, c->dilation_width,
                             c->pad_left + c->pad_right);
}

}  // namespace tf_interop
