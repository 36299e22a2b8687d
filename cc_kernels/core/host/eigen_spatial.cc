// EIGEN_SPATIAL: Eigen's spatial convolution, which is also TensorFlow's on a CPU without oneDNN. A
// matrix product over an expression that stands for the patches of the image: they are read while
// the product packs its operands, and never stored as a whole.
#include "cc_kernels/core/host/nhwc_convolution.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_interop {
namespace {

template <typename T, int kRank>
using ConstTensor = Eigen::TensorMap<Eigen::Tensor<const T, kRank, Eigen::RowMajor>>;
template <typename T, int kRank>
using MutableTensor = Eigen::TensorMap<Eigen::Tensor<T, kRank, Eigen::RowMajor>>;
using Extents = Eigen::array<Eigen::Index, 2>;

template <typename T>
void ConvolveImage(const Convolution& c, const T* image, const T* filter, T* output) {
  const ConstTensor<T, 4> pixels(image, 1, c.image_height, c.image_width, c.image_channels);
  const Eigen::Index taps = c.filter_height * c.filter_width * c.image_channels;
  const ConstTensor<T, 2> taps_by_output(filter, taps, c.output_channels);
  MutableTensor<T, 2> result(output, c.output_height * c.output_width, c.output_channels);
  // In a row-major tensor what Eigen calls rows is the width, and its columns are the height.
  const auto patches = pixels.extract_image_patches(
      c.filter_width, c.filter_height, c.stride_width, c.stride_height, c.dilation_width,
      c.dilation_height, 1, 1, c.pad_left, c.pad_right, c.pad_top, c.pad_bottom, T(0));
  const Eigen::array<Eigen::IndexPair<Eigen::Index>, 1> sum_over_taps = {{{1, 0}}};
  result =
      patches.reshape(Extents{{result.dimension(0), taps}}).contract(taps_by_output, sum_over_taps);
}

}  // namespace

bool CanRunEigenSpatial(const Convolution& c) {
  return c.kind == ConvolutionKind::kForward && c.group_count == 1 && c.spatial_rank == 2;
}

template <typename T>
void RunEigenSpatial(const Convolution& c, const NhwcTensors<T>& tensors,
                     const ParallelFor& parallel_for) {
  const int64_t image_elements = c.image_pixels() * c.image_channels;
  const int64_t output_elements = c.output_pixels() * c.output_channels;
  ForEachItem(c.batch, parallel_for, [&](int, int64_t n) {
    ConvolveImage(c, tensors.image + n * image_elements, tensors.filter,
                  tensors.output + n * output_elements);
  });
}

template void RunEigenSpatial(const Convolution&, const NhwcTensors<float>&, const ParallelFor&);
template void RunEigenSpatial(const Convolution&, const NhwcTensors<double>&, const ParallelFor&);

}  // namespace tf_interop
