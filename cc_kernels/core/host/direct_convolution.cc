// DIRECT: loops over output pixels and filter taps, innermost over contiguous channels. The
// depthwise form with multiplier 1 has one channel per group, so its innermost loop runs over the
// groups instead.
#include <algorithm>
#include <vector>

#include "cc_kernels/core/host/float_convolution.h"

namespace tf_interop {
namespace {

bool OneChannelPerGroup(const Convolution& c) {
  return c.image_channels == c.group_count && c.output_channels == c.group_count;
}

// Calls visit(image pixel, output pixel) for every pair of pixels of image n and output row p that
// tap (r, s) joins.
template <typename Visit>
void ForEachPairInRow(const Convolution& c, int64_t n, int64_t p, int64_t r, int64_t s,
                      const Visit& visit) {
  const int64_t h = ImagePosition(p, r, c.stride_height, c.dilation_height, c.pad_top);
  if (h < 0 || h >= c.image_height) return;
  for (int64_t q = 0; q < c.output_width; ++q) {
    const int64_t w = ImagePosition(q, s, c.stride_width, c.dilation_width, c.pad_left);
    if (w < 0 || w >= c.image_width) continue;
    visit((n * c.image_height + h) * c.image_width + w,
          (n * c.output_height + p) * c.output_width + q);
  }
}

// Calls visit(i, k, f) for every image channel i, with the first output channel k of its group and
// the offset f of its row in the tap's filter [C / group_count, K].
template <typename Visit>
void ForEachChannel(const Convolution& c, const Visit& visit) {
  const int64_t channels = c.image_channels / c.group_count;
  const int64_t filters = c.output_channels / c.group_count;
  for (int64_t i = 0; i < c.image_channels; ++i) {
    const int64_t k = i / channels * filters;
    visit(i, k, i % channels * c.output_channels + k);
  }
}

void Forward(const Convolution& c, const FloatTensors& tensors, const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_floats = c.image_channels / c.group_count * c.output_channels;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(c.batch * c.output_height, parallel_for, [&](int, int64_t item) {
    const int64_t n = item / c.output_height, p = item % c.output_height;
    std::fill_n(tensors.output + item * c.output_width * c.output_channels,
                c.output_width * c.output_channels, 0.0f);
    for (int64_t tap = 0; tap < c.filter_height * c.filter_width; ++tap) {
      const float* const filter = tensors.filter + tap * tap_floats;
      ForEachPairInRow(c, n, p, tap / c.filter_width, tap % c.filter_width,
                       [&](int64_t image_pixel, int64_t output_pixel) {
                         const float* const x = tensors.image + image_pixel * c.image_channels;
                         float* const y = tensors.output + output_pixel * c.output_channels;
                         if (one_channel) {
                           for (int64_t i = 0; i < c.image_channels; ++i) y[i] += x[i] * filter[i];
                           return;
                         }
                         ForEachChannel(c, [&](int64_t i, int64_t k, int64_t f) {
                           for (int64_t j = 0; j < filters; ++j) y[k + j] += x[i] * filter[f + j];
                         });
                       });
    }
  });
}

// Items are images: pixels of different output rows add to the same image pixel.
void BackwardInput(const Convolution& c, const FloatTensors& tensors,
                   const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_floats = c.image_channels / c.group_count * c.output_channels;
  const int64_t image_floats = c.image_height * c.image_width * c.image_channels;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(c.batch, parallel_for, [&](int, int64_t n) {
    std::fill_n(tensors.image + n * image_floats, image_floats, 0.0f);
    for (int64_t p = 0; p < c.output_height; ++p) {
      for (int64_t tap = 0; tap < c.filter_height * c.filter_width; ++tap) {
        const float* const filter = tensors.filter + tap * tap_floats;
        ForEachPairInRow(c, n, p, tap / c.filter_width, tap % c.filter_width,
                         [&](int64_t image_pixel, int64_t output_pixel) {
                           float* const dx = tensors.image + image_pixel * c.image_channels;
                           const float* const dy =
                               tensors.output + output_pixel * c.output_channels;
                           if (one_channel) {
                             for (int64_t i = 0; i < c.image_channels; ++i)
                               dx[i] += dy[i] * filter[i];
                             return;
                           }
                           ForEachChannel(c, [&](int64_t i, int64_t k, int64_t f) {
                             float sum = 0;
                             for (int64_t j = 0; j < filters; ++j) sum += dy[k + j] * filter[f + j];
                             dx[i] += sum;
                           });
                         });
      }
    }
  });
}

// Items are taps. Sums run over every pixel of the batch, so they are kept in double.
void BackwardFilter(const Convolution& c, const FloatTensors& tensors,
                    const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_floats = c.image_channels / c.group_count * c.output_channels;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(c.filter_height * c.filter_width, parallel_for, [&](int, int64_t tap) {
    std::vector<double> sums(tap_floats, 0.0);
    for (int64_t row = 0; row < c.batch * c.output_height; ++row) {
      ForEachPairInRow(c, row / c.output_height, row % c.output_height, tap / c.filter_width,
                       tap % c.filter_width, [&](int64_t image_pixel, int64_t output_pixel) {
                         const float* const x = tensors.image + image_pixel * c.image_channels;
                         const float* const dy = tensors.output + output_pixel * c.output_channels;
                         if (one_channel) {
                           for (int64_t i = 0; i < c.image_channels; ++i) sums[i] += x[i] * dy[i];
                           return;
                         }
                         ForEachChannel(c, [&](int64_t i, int64_t k, int64_t f) {
                           for (int64_t j = 0; j < filters; ++j) sums[f + j] += x[i] * dy[k + j];
                         });
                       });
    }
    std::copy(sums.begin(), sums.end(), tensors.filter + tap * tap_floats);
  });
}

}  // namespace

void RunDirect(const Convolution& c, const FloatTensors& tensors, const ParallelFor& parallel_for) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      return Forward(c, tensors, parallel_for);
    case ConvolutionKind::kBackwardInput:
      return BackwardInput(c, tensors, parallel_for);
    case ConvolutionKind::kBackwardFilter:
      return BackwardFilter(c, tensors, parallel_for);
  }
}

}  // namespace tf_interop
