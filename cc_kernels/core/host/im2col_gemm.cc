// IM2COL_GEMM: matrix products over patches of the image (Chellapilla et al., "High Performance
// Convolutional Neural Networks for Document Processing", 2006), in blocks that stay in the cache.
#include <algorithm>

#include "Eigen/Core"
#include "cc_kernels/core/host/float_convolution.h"

namespace tf_interop {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<Eigen::Dynamic>;
using MatrixMap = Eigen::Map<Matrix, Eigen::Unaligned, Stride>;
using ConstMatrixMap = Eigen::Map<const Matrix, Eigen::Unaligned, Stride>;

// Floats of scratch that one worker's block of patches should fill: half a typical L2.
constexpr int64_t kBlockFloats = 128 * 1024;
constexpr int64_t kFilterColumns = 128;  // columns of a filter gradient for each item
constexpr int64_t kImageColumns = 64;    // channels of an image gradient for each item

int64_t GroupImageChannels(const Convolution& c) { return c.image_channels / c.group_count; }
int64_t GroupOutputChannels(const Convolution& c) { return c.output_channels / c.group_count; }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a block whose rows have `row_floats` floats, for a matrix of `rows` rows.
int64_t BlockRows(int64_t rows, int64_t row_floats) {
  return std::clamp<int64_t>(kBlockFloats / row_floats, 1, rows);
}

int64_t OutputPixels(const Convolution& c) { return c.output_height * c.output_width; }

// True where the image of a group is itself the matrix of patches.
bool IsMatrixProduct(const Convolution& c) {
  return c.filter_height == 1 && c.filter_width == 1 && c.stride_height == 1 &&
         c.stride_width == 1 && c.pad_top == 0 && c.pad_bottom == 0 && c.pad_left == 0 &&
         c.pad_right == 0;
}

// Calls visit(row, image pixel or -1 where it lies in the padding) for `rows` output pixels of one
// image from `first` on, as read by the filter tap (r, s).
template <typename Visit>
void ForEachTapPixel(const Convolution& c, int64_t first, int64_t rows, int64_t r, int64_t s,
                     const Visit& visit) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t p = (first + row) / c.output_width;
    const int64_t q = (first + row) % c.output_width;
    const int64_t h = ImagePosition(p, r, c.stride_height, c.dilation_height, c.pad_top);
    const int64_t w = ImagePosition(q, s, c.stride_width, c.dilation_width, c.pad_left);
    const bool inside = h >= 0 && h < c.image_height && w >= 0 && w < c.image_width;
    visit(row, inside ? h * c.image_width + w : int64_t{-1});
  }
}

// Gathers `channels` channels of a tap's pixels into rows of `row_stride` floats.
void GatherTap(const Convolution& c, const float* image, int64_t first, int64_t rows, int64_t r,
               int64_t s, int64_t channels, int64_t row_stride, float* gathered) {
  ForEachTapPixel(c, first, rows, r, s, [&](int64_t row, int64_t pixel) {
    float* const to = gathered + row * row_stride;
    if (pixel < 0) {
      std::fill_n(to, channels, 0.0f);
    } else {
      std::copy_n(image + pixel * c.image_channels, channels, to);
    }
  });
}

int64_t PatchFloats(const Convolution& c) {
  return c.filter_height * c.filter_width * GroupImageChannels(c);
}

// Items are blocks of output pixels of one image and group: output = patches * filter.
void Forward(const Convolution& c, const FloatTensors& tensors, float* scratch,
             const ParallelFor& parallel_for) {
  const int64_t channels = GroupImageChannels(c), filters = GroupOutputChannels(c);
  const int64_t patch = PatchFloats(c), pixels = OutputPixels(c);
  const int64_t block = BlockRows(pixels, patch), blocks = CeilDiv(pixels, block);
  const bool matrix_product = IsMatrixProduct(c);
  ForEachItem(c.batch * c.group_count * blocks, parallel_for, [&](int worker, int64_t item) {
    const int64_t first = item % blocks * block;
    const int64_t group = item / blocks % c.group_count;
    const int64_t n = item / blocks / c.group_count;
    const int64_t rows = std::min(block, pixels - first);
    const float* const image =
        tensors.image + n * c.image_height * c.image_width * c.image_channels + group * channels;
    float* const gathered = scratch + worker * block * patch;
    if (!matrix_product) {
      for (int64_t r = 0; r < c.filter_height; ++r) {
        for (int64_t s = 0; s < c.filter_width; ++s) {
          GatherTap(c, image, first, rows, r, s, channels, patch,
                    gathered + (r * c.filter_width + s) * channels);
        }
      }
    }
    const ConstMatrixMap patches(matrix_product ? image + first * c.image_channels : gathered, rows,
                                 patch, Stride(matrix_product ? c.image_channels : patch));
    const ConstMatrixMap filter(tensors.filter + group * filters, patch, filters,
                                Stride(c.output_channels));
    MatrixMap output(tensors.output + (n * pixels + first) * c.output_channels + group * filters,
                     rows, filters, Stride(c.output_channels));
    output.noalias() = patches * filter;
  });
}

// Items are blocks of channels of one image and group: per tap, the product of output gradient and
// filter is added to the pixels that the tap reads (col2im).
void BackwardInput(const Convolution& c, const FloatTensors& tensors, float* scratch,
                   const ParallelFor& parallel_for) {
  const int64_t channels = GroupImageChannels(c), filters = GroupOutputChannels(c);
  const int64_t pixels = OutputPixels(c);
  const int64_t columns = std::min(channels, kImageColumns);
  const int64_t column_blocks = CeilDiv(channels, columns);
  const int64_t block = BlockRows(pixels, columns);
  ForEachItem(c.batch * c.group_count * column_blocks, parallel_for, [&](int worker, int64_t item) {
    const int64_t column = item % column_blocks * columns;
    const int64_t group = item / column_blocks % c.group_count;
    const int64_t n = item / column_blocks / c.group_count;
    const int64_t width = std::min(columns, channels - column);
    const int64_t image_pixels = c.image_height * c.image_width;
    float* const image =
        tensors.image + n * image_pixels * c.image_channels + group * channels + column;
    for (int64_t pixel = 0; pixel < image_pixels; ++pixel) {
      std::fill_n(image + pixel * c.image_channels, width, 0.0f);
    }
    for (int64_t first = 0; first < pixels; first += block) {
      const int64_t rows = std::min(block, pixels - first);
      const ConstMatrixMap gradient(
          tensors.output + (n * pixels + first) * c.output_channels + group * filters, rows,
          filters, Stride(c.output_channels));
      for (int64_t r = 0; r < c.filter_height; ++r) {
        for (int64_t s = 0; s < c.filter_width; ++s) {
          const int64_t tap = r * c.filter_width + s;
          const ConstMatrixMap filter(
              tensors.filter + (tap * channels + column) * c.output_channels + group * filters,
              width, filters, Stride(c.output_channels));
          MatrixMap product(scratch + worker * block * columns, rows, width, Stride(width));
          product.noalias() = gradient * filter.transpose();
          ForEachTapPixel(c, first, rows, r, s, [&](int64_t row, int64_t pixel) {
            if (pixel < 0) return;
            float* const to = image + pixel * c.image_channels;
            const float* const from = product.data() + row * width;
            for (int64_t i = 0; i < width; ++i) to[i] += from[i];
          });
        }
      }
    }
  });
}

// Items are blocks of columns of one tap and group: filter gradient = tap's pixels^T * output
// gradient, summed over blocks of pixels and images in order.
void BackwardFilter(const Convolution& c, const FloatTensors& tensors, float* scratch,
                    const ParallelFor& parallel_for) {
  const int64_t channels = GroupImageChannels(c), filters = GroupOutputChannels(c);
  const int64_t pixels = OutputPixels(c);
  const int64_t columns = std::min(filters, kFilterColumns);
  const int64_t column_blocks = CeilDiv(filters, columns);
  const int64_t block = BlockRows(pixels, channels);
  const bool matrix_product = IsMatrixProduct(c);
  const int64_t taps = c.filter_height * c.filter_width;
  ForEachItem(taps * c.group_count * column_blocks, parallel_for, [&](int worker, int64_t item) {
    const int64_t column = item % column_blocks * columns;
    const int64_t group = item / column_blocks % c.group_count;
    const int64_t tap = item / column_blocks / c.group_count;
    const int64_t width = std::min(columns, filters - column);
    MatrixMap filter(tensors.filter + tap * channels * c.output_channels + group * filters + column,
                     channels, width, Stride(c.output_channels));
    filter.setZero();
    float* const gathered = scratch + worker * block * channels;
    for (int64_t n = 0; n < c.batch; ++n) {
      const float* const image =
          tensors.image + n * c.image_height * c.image_width * c.image_channels + group * channels;
      for (int64_t first = 0; first < pixels; first += block) {
        const int64_t rows = std::min(block, pixels - first);
        if (!matrix_product) {
          GatherTap(c, image, first, rows, tap / c.filter_width, tap % c.filter_width, channels,
                    channels, gathered);
        }
        const ConstMatrixMap tap_pixels(
            matrix_product ? image + first * c.image_channels : gathered, rows, channels,
            Stride(matrix_product ? c.image_channels : channels));
        const ConstMatrixMap gradient(
            tensors.output + (n * pixels + first) * c.output_channels + group * filters + column,
            rows, width, Stride(c.output_channels));
        filter.noalias() += tap_pixels.transpose() * gradient;
      }
    }
  });
}

}  // namespace

size_t Im2colGemmScratchFloats(const Convolution& c) {
  const int64_t pixels = OutputPixels(c), channels = GroupImageChannels(c);
  switch (c.kind) {
    case ConvolutionKind::kForward:
      if (IsMatrixProduct(c)) return 0;
      return kWorkers * BlockRows(pixels, PatchFloats(c)) * PatchFloats(c);
    case ConvolutionKind::kBackwardInput: {
      const int64_t columns = std::min(channels, kImageColumns);
      return kWorkers * BlockRows(pixels, columns) * columns;
    }
    case ConvolutionKind::kBackwardFilter:
      return IsMatrixProduct(c) ? 0 : kWorkers * BlockRows(pixels, channels) * channels;
  }
  return 0;
}

void RunIm2colGemm(const Convolution& c, const FloatTensors& tensors, float* scratch,
                   const ParallelFor& parallel_for) {
  switch (c.kind) {
    case ConvolutionKind::kForward:
      return Forward(c, tensors, scratch, parallel_for);
    case ConvolutionKind::kBackwardInput:
      return BackwardInput(c, tensors, scratch, parallel_for);
    case ConvolutionKind::kBackwardFilter:
      return BackwardFilter(c, tensors, scratch, parallel_for);
  }
}

}  // namespace tf_interop
