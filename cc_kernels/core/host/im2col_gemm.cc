// IM2COL_GEMM: matrix products over patches of the image (Chellapilla et al., "High Performance
// Convolutional Neural Networks for Document Processing", 2006), in blocks that stay in the cache.
#include <algorithm>

#include "Eigen/Core"
#include "cc_kernels/core/host/nhwc_convolution.h"

namespace tf_interop {
namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Stride = Eigen::OuterStride<Eigen::Dynamic>;
template <typename T>
using MatrixMap = Eigen::Map<Matrix<T>, Eigen::Unaligned, Stride>;
template <typename T>
using ConstMatrixMap = Eigen::Map<const Matrix<T>, Eigen::Unaligned, Stride>;

// Elements of scratch that one worker's block of patches should fill: half a typical L2 in float.
constexpr int64_t kBlockElements = int64_t{128} << 10;
constexpr int64_t kFilterColumns = 128;  // columns of a filter gradient for each item
constexpr int64_t kImageColumns = 64;    // channels of an image gradient for each item

int64_t GroupImageChannels(const Convolution& c) { return c.image_channels / c.group_count; }
int64_t GroupOutputChannels(const Convolution& c) { return c.output_channels / c.group_count; }

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rows of a block whose rows have `row_elements` elements, for a matrix of `rows` rows.
int64_t BlockRows(int64_t rows, int64_t row_elements) {
  return std::clamp<int64_t>(kBlockElements / row_elements, 1, rows);
}

// True where the image of a group is itself the matrix of patches.
bool IsMatrixProduct(const Convolution& c) {
  return c.taps() == 1 && c.stride_depth == 1 && c.stride_height == 1 && c.stride_width == 1 &&
         c.pad_front == 0 && c.pad_back == 0 && c.pad_top == 0 && c.pad_bottom == 0 &&
         c.pad_left == 0 && c.pad_right == 0;
}

// Calls visit(row, image pixel or -1 where it lies in the padding) for `rows` output pixels of one
// image from `first` on, as read by `tap`.
template <typename Visit>
void ForEachTapPixel(const Convolution& c, int64_t first, int64_t rows, const Tap& tap,
                     const Visit& visit) {
  int64_t q = first % c.output_width;
  int64_t p = first / c.output_width % c.output_height;
  int64_t o = first / c.output_width / c.output_height;
  // The image row of the output row (o, p), or -1 in the padding.
  const auto image_row = [&] {
    const int64_t d = ImagePosition(o, tap.depth, c.stride_depth, c.dilation_depth, c.pad_front);
    const int64_t h = ImagePosition(p, tap.row, c.stride_height, c.dilation_height, c.pad_top);
    const bool inside = d >= 0 && d < c.image_depth && h >= 0 && h < c.image_height;
    return inside ? d * c.image_height + h : int64_t{-1};
  };
  int64_t from = image_row();
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t w = ImagePosition(q, tap.column, c.stride_width, c.dilation_width, c.pad_left);
    const bool inside = from >= 0 && w >= 0 && w < c.image_width;
    visit(row, inside ? from * c.image_width + w : int64_t{-1});
    if (++q < c.output_width) continue;
    q = 0;
    if (++p == c.output_height) {
      p = 0;
      ++o;
    }
    from = image_row();
  }
}

// Gathers `channels` channels of a tap's pixels into rows of `row_stride` elements.
template <typename T>
void GatherTap(const Convolution& c, const T* image, int64_t first, int64_t rows, const Tap& tap,
               int64_t channels, int64_t row_stride, T* gathered) {
  ForEachTapPixel(c, first, rows, tap, [&](int64_t row, int64_t pixel) {
    T* const to = gathered + row * row_stride;
    if (pixel < 0) {
      std::fill_n(to, channels, T(0));
    } else {
      std::copy_n(image + pixel * c.image_channels, channels, to);
    }
  });
}

int64_t PatchElements(const Convolution& c) { return c.taps() * GroupImageChannels(c); }

// Items are blocks of output pixels of one image and group: output = patches * filter.
template <typename T>
void Forward(const Convolution& c, const NhwcTensors<T>& tensors, T* scratch,
             const ParallelFor& parallel_for) {
  const int64_t channels = GroupImageChannels(c), filters = GroupOutputChannels(c);
  const int64_t patch = PatchElements(c), pixels = c.output_pixels();
  const int64_t block = BlockRows(pixels, patch), blocks = CeilDiv(pixels, block);
  const bool matrix_product = IsMatrixProduct(c);
  ForEachItem(c.batch * c.group_count * blocks, parallel_for, [&](int worker, int64_t item) {
    const int64_t first = item % blocks * block;
    const int64_t group = item / blocks % c.group_count;
    const int64_t n = item / blocks / c.group_count;
    const int64_t rows = std::min(block, pixels - first);
    const T* const image =
        tensors.image + n * c.image_pixels() * c.image_channels + group * channels;
    T* const gathered = scratch + worker * block * patch;
    if (!matrix_product) {
      ForEachTap(c, [&](const Tap& tap, int64_t index) {
        GatherTap(c, image, first, rows, tap, channels, patch, gathered + index * channels);
      });
    }
    const ConstMatrixMap<T> patches(matrix_product ? image + first * c.image_channels : gathered,
                                    rows, patch, Stride(matrix_product ? c.image_channels : patch));
    const ConstMatrixMap<T> filter(tensors.filter + group * filters, patch, filters,
                                   Stride(c.output_channels));
    MatrixMap<T> output(tensors.output + (n * pixels + first) * c.output_channels + group * filters,
                        rows, filters, Stride(c.output_channels));
    output.noalias() = patches * filter;
  });
}

// Items are blocks of channels of one image and group: per tap, the product of output gradient and
// filter is added to the pixels that the tap reads (col2im).
template <typename T>
void BackwardInput(const Convolution& c, const NhwcTensors<T>& tensors, T* scratch,
                   const ParallelFor& parallel_for) {
  const int64_t channels = GroupImageChannels(c), filters = GroupOutputChannels(c);
  const int64_t pixels = c.output_pixels();
  const int64_t columns = std::min(channels, kImageColumns);
  const int64_t column_blocks = CeilDiv(channels, columns);
  const int64_t block = BlockRows(pixels, columns);
  ForEachItem(c.batch * c.group_count * column_blocks, parallel_for, [&](int worker, int64_t item) {
    const int64_t column = item % column_blocks * columns;
    const int64_t group = item / column_blocks % c.group_count;
    const int64_t n = item / column_blocks / c.group_count;
    const int64_t width = std::min(columns, channels - column);
    const int64_t image_pixels = c.image_pixels();
    T* const image =
        tensors.image + n * image_pixels * c.image_channels + group * channels + column;
    for (int64_t pixel = 0; pixel < image_pixels; ++pixel) {
      std::fill_n(image + pixel * c.image_channels, width, T(0));
    }
    for (int64_t first = 0; first < pixels; first += block) {
      const int64_t rows = std::min(block, pixels - first);
      const ConstMatrixMap<T> gradient(
          tensors.output + (n * pixels + first) * c.output_channels + group * filters, rows,
          filters, Stride(c.output_channels));
      for (int64_t tap = 0; tap < c.taps(); ++tap) {
        const ConstMatrixMap<T> filter(
            tensors.filter + (tap * channels + column) * c.output_channels + group * filters, width,
            filters, Stride(c.output_channels));
        MatrixMap<T> product(scratch + worker * block * columns, rows, width, Stride(width));
        product.noalias() = gradient * filter.transpose();
        ForEachTapPixel(c, first, rows, TapAt(c, tap), [&](int64_t row, int64_t pixel) {
          if (pixel < 0) return;
          T* const to = image + pixel * c.image_channels;
          const T* const from = product.data() + row * width;
          for (int64_t i = 0; i < width; ++i) to[i] += from[i];
        });
      }
    }
  });
}

// Items are blocks of columns of one tap and group: filter gradient = tap's pixels^T * output
// gradient, summed over blocks of pixels and images in order.
template <typename T>
void BackwardFilter(const Convolution& c, const NhwcTensors<T>& tensors, T* scratch,
                    const ParallelFor& parallel_for) {
  const int64_t channels = GroupImageChannels(c), filters = GroupOutputChannels(c);
  const int64_t pixels = c.output_pixels();
  const int64_t columns = std::min(filters, kFilterColumns);
  const int64_t column_blocks = CeilDiv(filters, columns);
  const int64_t block = BlockRows(pixels, channels);
  const bool matrix_product = IsMatrixProduct(c);
  ForEachItem(c.taps() * c.group_count * column_blocks, parallel_for,
              [&](int worker, int64_t item) {
                const int64_t column = item % column_blocks * columns;
                const int64_t group = item / column_blocks % c.group_count;
                const int64_t tap = item / column_blocks / c.group_count;
                const int64_t width = std::min(columns, filters - column);
                MatrixMap<T> filter(
                    tensors.filter + tap * channels * c.output_channels + group * filters + column,
                    channels, width, Stride(c.output_channels));
                filter.setZero();
                T* const gathered = scratch + worker * block * channels;
                for (int64_t n = 0; n < c.batch; ++n) {
                  const T* const image =
                      tensors.image + n * c.image_pixels() * c.image_channels + group * channels;
                  for (int64_t first = 0; first < pixels; first += block) {
                    const int64_t rows = std::min(block, pixels - first);
                    if (!matrix_product) {
                      GatherTap(c, image, first, rows, TapAt(c, tap), channels, channels, gathered);
                    }
                    const ConstMatrixMap<T> tap_pixels(
                        matrix_product ? image + first * c.image_channels : gathered, rows,
                        channels, Stride(matrix_product ? c.image_channels : channels));
                    const ConstMatrixMap<T> gradient(tensors.output +
                                                         (n * pixels + first) * c.output_channels +
                                                         group * filters + column,
                                                     rows, width, Stride(c.output_channels));
                    filter.noalias() += tap_pixels.transpose() * gradient;
                  }
                }
              });
}

}  // namespace

size_t Im2colGemmScratchElements(const Convolution& c) {
  const int64_t pixels = c.output_pixels(), channels = GroupImageChannels(c);
  switch (c.kind) {
    case ConvolutionKind::kForward:
      if (IsMatrixProduct(c)) return 0;
      return kWorkers * BlockRows(pixels, PatchElements(c)) * PatchElements(c);
    case ConvolutionKind::kBackwardInput: {
      const int64_t columns = std::min(channels, kImageColumns);
      return kWorkers * BlockRows(pixels, columns) * columns;
    }
    case ConvolutionKind::kBackwardFilter:
      return IsMatrixProduct(c) ? 0 : kWorkers * BlockRows(pixels, channels) * channels;
  }
  return 0;
}

template <typename T>
void RunIm2colGemm(const Convolution& c, const NhwcTensors<T>& tensors, T* scratch,
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

template void RunIm2colGemm(const Convolution&, const NhwcTensors<float>&, float*,
                            const ParallelFor&);
template void RunIm2colGemm(const Convolution&, const NhwcTensors<double>&, double*,
                            const ParallelFor&);

}  // namespace tf_interop
