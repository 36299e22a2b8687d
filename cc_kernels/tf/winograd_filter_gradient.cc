#include "cc_kernels/tf/winograd_filter_gradient.h"

#include <algorithm>
#include <utility>

#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/onednn_calls.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

// For each core in one product, so that its planes stay in the caches.
constexpr int64_t kMostTilesOfCore = 256;

int64_t DivideUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

}  // namespace

WinogradFilterGradient::WinogradFilterGradient(const WinogradShape& shape, int cores)
    : shape_(shape) {
  const int64_t products = DivideUp(shape.tiles(), kMostTilesOfCore * cores);
  product_tiles_ = DivideUp(shape.tiles(), products);
  image_plane_ = WinogradPlaneSize(product_tiles_, shape.depth);
  gradient_plane_ = WinogradPlaneSize(product_tiles_, shape.channels);
  sum_plane_ = WinogradPlaneSize(shape.depth, shape.channels);
}

std::unique_ptr<WinogradFilterGradient> WinogradFilterGradient::Make(const WinogradShape& shape,
                                                                     int cores) {
  std::unique_ptr<WinogradFilterGradient> made(new WinogradFilterGradient(shape, cores));
  made->first_ = made->MakeProduct(cores, /*adds=*/false);
  if (made->first_ == nullptr) return nullptr;
  if (made->product_tiles_ == shape.tiles()) return made;
  made->next_ = made->MakeProduct(cores, /*adds=*/true);
  return made->next_ != nullptr ? std::move(made) : nullptr;
}

std::unique_ptr<MatrixProduct> WinogradFilterGradient::MakeProduct(int cores, bool adds) const {
  return MatrixProduct::Make(
      DescribeMatrices(kWinogradPlanes, image_plane_, shape_.depth, product_tiles_,
                       /*are_transposed=*/true),
      DescribeMatrices(kWinogradPlanes, gradient_plane_, product_tiles_, shape_.channels),
      DescribeMatrices(kWinogradPlanes, sum_plane_, shape_.depth, shape_.channels), cores, adds);
}

absl::Status WinogradFilterGradient::Run(tensorflow::OpKernelContext* context, const float* image,
                                         const float* gradient, float* filter) const {
  const tensorflow::DeviceBase& device = *context->device();
  const int64_t image_floats = kWinogradPlanes * image_plane_;
  const int64_t gradient_floats = kWinogradPlanes * gradient_plane_;
  const int64_t sum_floats = kWinogradPlanes * sum_plane_;
  const int64_t scratchpad_floats =
      std::max(first_->scratchpad_floats(), next_ != nullptr ? next_->scratchpad_floats() : 0);
  tensorflow::Tensor memory;
  TF_RETURN_IF_ERROR(context->allocate_temp(
      tensorflow::DT_FLOAT,
      tensorflow::TensorShape({image_floats + gradient_floats + sum_floats + scratchpad_floats}),
      &memory));
  float* const pixels = memory.flat<float>().data();
  float* const gradients = pixels + image_floats;
  float* const sums = gradients + gradient_floats;
  DeviceThreads threads(*device.tensorflow_cpu_worker_threads());
  const OneDnnPtr<dnnl_stream> stream = MakeStream(&threads);

  const int64_t tiles = shape_.tiles();
  for (int64_t first = 0; first < tiles; first += product_tiles_) {
    const int64_t count = std::min(product_tiles_, tiles - first);
    DivideWork(device, count, (shape_.depth + shape_.channels) * kWinogradTransformCycles,
               [&](int64_t from, int64_t to) {
                 TransformWinogradTiles(shape_, image, first + from, first + to,
                                        pixels + from * shape_.depth, image_plane_);
                 TransformWinogradGradients(shape_, gradient, first + from, first + to,
                                            gradients + from * shape_.channels, gradient_plane_);
               });
    // Tiles of the product before are multiplied with 0.
    if (count < product_tiles_) {
      for (int64_t plane = 0; plane < kWinogradPlanes; ++plane) {
        std::fill_n(gradients + plane * gradient_plane_ + count * shape_.channels,
                    (product_tiles_ - count) * shape_.channels, 0.0F);
      }
    }
    const MatrixProduct& product = first == 0 ? *first_ : *next_;
    TF_RETURN_IF_ERROR(product.Run(stream.get(), pixels, gradients, sums, sums + sum_floats));
  }
  DivideWork(device, shape_.depth, shape_.channels * kWinogradTransformCycles,
             [&](int64_t first, int64_t last) {
               TransformWinogradSums(shape_, sums, first, last, filter);
             });
  return absl::OkStatus();
}

}  // namespace tf_interop
