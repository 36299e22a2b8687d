// Convolutions with fewer multiplications: Winograd's F(4x4, 3x3) and F(2x2, 5x5).
//
// A tile of 4x4 results of a 3x3 filter takes 36 products for each pair of channels, in place of
// 144, and one of 2x2 results of a 5x5 filter 36 in place of 100. Tiles of 6x6 pixels and the
// filter are transformed; the results are transformed products. So the work between is a matrix
// product for each of 36 planes. (A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural
// Networks", CVPR 2016, sections 4.2 and 4.3)
//
// The points of the transforms are 0, ±5/8, ±3/2 and infinity. The paper's are 0, ±1, ±2 and
// infinity, with which the error is 1.9 to 2.1 times as large (root mean square; 3x3, 64 to 256
// channels of pixels after a rectifier).
#ifndef TF_INTEROP_TF_WINOGRAD_H_
#define TF_INTEROP_TF_WINOGRAD_H_

#include <cstdint>
#include <tuple>

#include "cc_kernels/tf/fused_ops.h"

namespace tf_interop {

inline constexpr int kWinogradPlanes = 36;
inline constexpr int kWinogradChannels = 8;  // `depth` and `channels` must be multiples of this
// That a transform takes for a channel of a tile. Only for deciding whether to divide the work.
inline constexpr int64_t kWinogradTransformCycles = 10;

// A convolution with strides of 1. The image and the results are in NHWC.
struct WinogradShape {
  int64_t images = 0;
  int64_t height = 0;
  int64_t width = 0;
  int64_t depth = 0;
  int64_t above = 0;  // padding
  int64_t left = 0;
  int64_t rows = 0;  // of the results
  int64_t columns = 0;
  int64_t channels = 0;
  int64_t filter_size = 3;  // of both dimensions: 3 or 5

  // The size of a tile's results.
  int64_t tile_size() const { return 7 - filter_size; }
  int64_t tile_rows() const { return (rows + tile_size() - 1) / tile_size(); }
  int64_t tile_columns() const { return (columns + tile_size() - 1) / tile_size(); }
  int64_t tiles() const { return images * tile_rows() * tile_columns(); }
  // Those of an ordinary convolution.
  int64_t products() const {
    return images * rows * columns * depth * channels * filter_size * filter_size;
  }

  bool operator==(const WinogradShape& other) const {
    const auto all = [](const WinogradShape& shape) {
      return std::tie(shape.images, shape.height, shape.width, shape.depth, shape.above, shape.left,
                      shape.rows, shape.columns, shape.channels, shape.filter_size);
    };
    return all(*this) == all(other);
  }
};

// Planes begin so many values after each other: an odd number of cache lines, because otherwise
// many of them would share a few places of the cache.
int64_t WinogradPlaneSize(int64_t rows, int64_t columns);

// Transforms rows from `first` to `last` of a filter in HWIO, each `width` values for each pixel;
// there are `rows`. Each plane is a matrix of them. With `is_reversed` the filter's pixels are read
// from the last to the first, as for the gradient of a convolution's input.
void TransformWinogradFilter(const float* filter, int64_t filter_size, int64_t rows, int64_t width,
                             int64_t first, int64_t last, bool is_reversed, float* planes);

// Transforms tiles from `first` to `last`. Each tile is a row of `depth` in each plane; planes
// begin `plane_size` after each other.
void TransformWinogradTiles(const WinogradShape& shape, const float* image, int64_t first,
                            int64_t last, float* planes, int64_t plane_size);

// As TransformWinogradTiles for the gradient of a convolution's results, from which the gradient of
// its filter is computed. Each tile is a row of `channels`.
void TransformWinogradGradients(const WinogradShape& shape, const float* gradient, int64_t first,
                                int64_t last, float* planes, int64_t plane_size);

// The gradient of a filter in HWIO, for rows of `channels` from `first` to `last`; there are
// `depth` in each plane. A plane is the product of the transposed tiles of the image and those of
// the gradient.
void TransformWinogradSums(const WinogradShape& shape, const float* planes, int64_t first,
                           int64_t last, float* filter);

// The reverse of TransformWinogradTiles for rows of `channels`. Adds `bias` and what is in `output`
// if `fused` has them. Takes no activation but kRelu and kRelu6.
void TransformWinogradProducts(const WinogradShape& shape, const float* planes, int64_t plane_size,
                               int64_t first, int64_t last, const FusedOps& fused,
                               const float* bias, float* output);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_WINOGRAD_H_
