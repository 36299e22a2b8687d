// DIRECT: loops over output pixels and filter taps, innermost over contiguous channels. The
// depthwise form with multiplier 1 has one channel per group, so its innermost loop runs over the
// groups instead.
#include <algorithm>
#include <vector>

#include "cc_kernels/core/host/nhwc_convolution.h"

namespace tf_interop {
namespace {

bool OneChannelPerGroup(const Convolution& c) {
  return c.image_channels == c.group_count && c.output_channels == c.group_count;
}

// Rows of output pixels in a batch.
int64_t OutputRows(const Convolution& c) { return c.batch * c.output_depth * c.output_height; }

// Calls visit(image pixel, output pixel) for every pair of pixels that `tap` joins, of which the
// output pixel is in the row of that number.
template <typename Visit>
void ForEachPairInRow(const Convolution& c, int64_t row, const Tap& tap, const Visit& visit) {
  const int64_t p = row % c.output_height;
  const int64_t o = row / c.output_height % c.output_depth;
  const int64_t n = row / c.output_height / c.output_depth;
  const int64_t d = ImagePosition(o, tap.depth, c.stride_depth, c.dilation_depth, c.pad_front);
  const int64_t h = ImagePosition(p, tap.row, c.stride_height, c.dilation_height, c.pad_top);
  if (d < 0 || d >= c.image_depth || h < 0 || h >= c.image_height) return;
  const int64_t image_row = (n * c.image_depth + d) * c.image_height + h;
  for (int64_t q = 0; q < c.output_width; ++q) {
    const int64_t w = ImagePosition(q, tap.column, c.stride_width, c.dilation_width, c.pad_left);
    if (w < 0 || w >= c.image_width) continue;
    visit(image_row * c.image_width + w, row * c.output_width + q);
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

template <typename T>
void Forward(const Convolution& c, const NhwcTensors<T>& tensors, const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_elements = c.image_channels / c.group_count * c.output_channels;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(OutputRows(c), parallel_for, [&](int, int64_t row) {
    std::fill_n(tensors.output + row * c.output_width * c.output_channels,
                c.output_width * c.output_channels, T(0));
    for (int64_t tap = 0; tap < c.taps(); ++tap) {
      const T* const filter = tensors.filter + tap * tap_elements;
      ForEachPairInRow(c, row, TapAt(c, tap), [&](int64_t image_pixel, int64_t output_pixel) {
        const T* const x = tensors.image + image_pixel * c.image_channels;
        T* const y = tensors.output + output_pixel * c.output_channels;
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
template <typename T>
void BackwardInput(const Convolution& c, const NhwcTensors<T>& tensors,
                   const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_elements = c.image_channels / c.group_count * c.output_channels;
  const int64_t image_elements = c.image_pixels() * c.image_channels;
  const int64_t rows = c.output_depth * c.output_height;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(c.batch, parallel_for, [&](int, int64_t n) {
    std::fill_n(tensors.image + n * image_elements, image_elements, T(0));
    for (int64_t row = n * rows; row < (n + 1) * rows; ++row) {
      for (int64_t tap = 0; tap < c.taps(); ++tap) {
        const T* const filter = tensors.filter + tap * tap_elements;
        ForEachPairInRow(c, row, TapAt(c, tap), [&](int64_t image_pixel, int64_t output_pixel) {
          T* const dx = tensors.image + image_pixel * c.image_channels;
          const T* const dy = tensors.output + output_pixel * c.output_channels;
          if (one_channel) {
            for (int64_t i = 0; i < c.image_channels; ++i) dx[i] += dy[i] * filter[i];
            return;
          }
          ForEachChannel(c, [&](int64_t i, int64_t k, int64_t f) {
            T sum = 0;
            for (int64_t j = 0; j < filters; ++j) sum += dy[k + j] * filter[f + j];
            dx[i] += sum;
          });
        });
      }
    }
  });
}

// Items are taps. Sums run over every pixel of the batch, so they are kept in double.
template <typename T>
void BackwardFilter(const Convolution& c, const NhwcTensors<T>& tensors,
                    const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_elements = c.image_channels / c.group_count * c.output_channels;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(c.taps(), parallel_for, [&](int, int64_t tap) {
    std::vector<double> sums(tap_elements, 0.0);
    for (int64_t row = 0; row < OutputRows(c); ++row) {
      ForEachPairInRow(c, row, TapAt(c, tap), [&](int64_t image_pixel, int64_t output_pixel) {
        const T* const x = tensors.image + image_pixel * c.image_channels;
        const T* const dy = tensors.output + output_pixel * c.output_channels;
        if (one_channel) {
          for (int64_t i = 0; i < c.image_channels; ++i) sums[i] += x[i] * dy[i];
          return;
        }
        ForEachChannel(c, [&](int64_t i, int64_t k, int64_t f) {
          for (int64_t j = 0; j < filters; ++j) sums[f + j] += x[i] * dy[k + j];
        });
      });
    }
    std::copy(sums.begin(), sums.end(), tensors.filter + tap * tap_elements);
  });
}

}  // namespace

template <typename T>
void RunDirect(const Convolution& c, const NhwcTensors<T>& tensors,
               const ParallelFor& parallel_for) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      return Forward(c, tensors, parallel_for);
    case ConvolutionKind::kBackwardInput:
      return BackwardInput(c, tensors, parallel_for);
    case ConvolutionKind::kBackwardFilter:
      return BackwardFilter(c, tensors, parallel_for);
  }
}

template void RunDirect(const Convolution&, const NhwcTensors<float>&, const ParallelFor&);
template void RunDirect(const Convolution&, const NhwcTensors<double>&, const ParallelFor&);

}  // namespace tf_interop
