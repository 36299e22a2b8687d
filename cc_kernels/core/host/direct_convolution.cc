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

// A row of output pixels: its number in the batch, and the place that this stands for.
struct OutputRow {
  int64_t index, image, depth, height;
};

OutputRow OutputRowAt(const Convolution& c, int64_t index) {
  return {index, index / (c.output_depth * c.output_height),
          index / c.output_height % c.output_depth, index % c.output_height};
}

// Calls visit(row) for every row of output pixels of `count` images from `first` on.
template <typename Visit>
void ForEachOutputRow(const Convolution& c, int64_t first, int64_t count, const Visit& visit) {
  int64_t index = first * c.output_depth * c.output_height;
  for (int64_t image = first; image < first + count; ++image) {
    for (int64_t depth = 0; depth < c.output_depth; ++depth) {
      for (int64_t height = 0; height < c.output_height; ++height) {
        visit(OutputRow{index++, image, depth, height});
      }
    }
  }
}

// Calls visit(image pixel, output pixel) for every pair of pixels that `tap` joins, of which the
// output pixel is in `row`.
template <typename Visit>
void ForEachPairInRow(const Convolution& c, const OutputRow& row, const Tap& tap,
                      const Visit& visit) {
  const int64_t d =
      ImagePosition(row.depth, tap.depth, c.stride_depth, c.dilation_depth, c.pad_front);
  const int64_t h =
      ImagePosition(row.height, tap.row, c.stride_height, c.dilation_height, c.pad_top);
  if (d < 0 || d >= c.image_depth || h < 0 || h >= c.image_height) return;
  const int64_t image_row = (row.image * c.image_depth + d) * c.image_height + h;
  for (int64_t q = 0; q < c.output_width; ++q) {
    const int64_t w = ImagePosition(q, tap.column, c.stride_width, c.dilation_width, c.pad_left);
    if (w < 0 || w >= c.image_width) continue;
    visit(image_row * c.image_width + w, row.index * c.output_width + q);
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
  ForEachItem(OutputRows(c), parallel_for, [&](int, int64_t item) {
    const OutputRow row = OutputRowAt(c, item);
    std::fill_n(tensors.output + item * c.output_width * c.output_channels,
                c.output_width * c.output_channels, T(0));
    ForEachTap(c, [&](const Tap& tap, int64_t tap_index) {
      const T* const filter = tensors.filter + tap_index * tap_elements;
      ForEachPairInRow(c, row, tap, [&](int64_t image_pixel, int64_t output_pixel) {
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
    });
  });
}

// Items are images: pixels of different output rows add to the same image pixel.
template <typename T>
void BackwardInput(const Convolution& c, const NhwcTensors<T>& tensors,
                   const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_elements = c.image_channels / c.group_count * c.output_channels;
  const int64_t image_elements = c.image_pixels() * c.image_channels;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(c.batch, parallel_for, [&](int, int64_t n) {
    std::fill_n(tensors.image + n * image_elements, image_elements, T(0));
    ForEachOutputRow(c, n, 1, [&](const OutputRow& row) {
      ForEachTap(c, [&](const Tap& tap, int64_t tap_index) {
        const T* const filter = tensors.filter + tap_index * tap_elements;
        ForEachPairInRow(c, row, tap, [&](int64_t image_pixel, int64_t output_pixel) {
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
      });
    });
  });
}

// Items are taps. Sums run over every pixel of the batch, so they are kept in double.
template <typename T>
void BackwardFilter(const Convolution& c, const NhwcTensors<T>& tensors,
                    const ParallelFor& parallel_for) {
  const int64_t filters = c.output_channels / c.group_count;
  const int64_t tap_elements = c.image_channels / c.group_count * c.output_channels;
  const bool one_channel = OneChannelPerGroup(c);
  ForEachItem(c.taps(), parallel_for, [&](int, int64_t item) {
    const Tap tap = TapAt(c, item);
    std::vector<double> sums(tap_elements, 0.0);
    const auto add_products = [&](int64_t image_pixel, int64_t output_pixel) {
      const T* const x = tensors.image + image_pixel * c.image_channels;
      const T* const dy = tensors.output + output_pixel * c.output_channels;
      if (one_channel) {
        for (int64_t i = 0; i < c.image_channels; ++i) sums[i] += x[i] * dy[i];
        return;
      }
      ForEachChannel(c, [&](int64_t i, int64_t k, int64_t f) {
        for (int64_t j = 0; j < filters; ++j) sums[f + j] += x[i] * dy[k + j];
      });
    };
    ForEachOutputRow(c, 0, c.batch,
                     [&](const OutputRow& row) { ForEachPairInRow(c, row, tap, add_products); });
    std::copy(sums.begin(), sums.end(), tensors.filter + item * tap_elements);
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
