// Other ways for convolutions whose filters change from call to call, and for the gradients of
// their inputs and filters: Winograd's, and one matrix product for filters of one pixel.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/tf/kernel_convolution.h"
#include "cc_kernels/tf/matrix_product.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/onednn_calls.h"
#include "cc_kernels/tf/other_way.h"
#include "cc_kernels/tf/winograd_convolution.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// The one of the inputs that has pixels, or gradients of pixels.
int ImageInput(ConvolutionKind kind) { return kind == ConvolutionKind::kBackwardInput ? 2 : 0; }

class WinogradWay : public OtherWay {
 public:
  WinogradWay(const FusedOps& fused, ConvolutionKind kind,
              std::unique_ptr<WinogradConvolution> convolution)
      : fused_(fused), kind_(kind), convolution_(std::move(convolution)) {}

  absl::string_view name() const override { return kWinogradConvolution; }
  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    return convolution_->Run(
        context, fused_, FloatsOf(*context, ImageInput(kind_)), FloatsOf(*context, 1),
        fused_.has_bias ? FloatsOf(*context, 2) : nullptr, FloatsOf(results[0]));
  }

 private:
  const FusedOps fused_;
  const ConvolutionKind kind_;
  const std::unique_ptr<WinogradConvolution> convolution_;
};

// For each core in one product, so that its planes stay in the caches.
constexpr int64_t kMostTilesOfCore = 256;

// The gradients of the results are transformed as the results of a convolution are, but the other
// way round, and the products are summed over the tiles. So in each plane a matrix of all pixels is
// multiplied with one of all gradients.
class WinogradFilterGradient : public OtherWay {
 public:
  // Null if oneDNN has no such product.
  static std::unique_ptr<OtherWay> Make(const WinogradShape& shape, int cores) {
    std::unique_ptr<WinogradFilterGradient> made(new WinogradFilterGradient(shape, cores));
    made->first_ = made->MakeProduct(cores, /*adds=*/false);
    if (made->first_ == nullptr) return nullptr;
    if (made->product_tiles_ == shape.tiles()) return made;
    made->next_ = made->MakeProduct(cores, /*adds=*/true);
    return made->next_ != nullptr ? std::move(made) : nullptr;
  }

  absl::string_view name() const override { return kWinogradConvolution; }

  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    const tensorflow::DeviceBase& device = *context->device();
    const float* const image = FloatsOf(*context, 0);
    const float* const gradient = FloatsOf(*context, 2);
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
                 TransformWinogradSums(shape_, sums, first, last, FloatsOf(results[0]));
               });
    return absl::OkStatus();
  }

 private:
  WinogradFilterGradient(const WinogradShape& shape, int cores) : shape_(shape) {
    const int64_t products = DivideUp(shape.tiles(), kMostTilesOfCore * cores);
    product_tiles_ = DivideUp(shape.tiles(), products);
    image_plane_ = WinogradPlaneSize(product_tiles_, shape.depth);
    gradient_plane_ = WinogradPlaneSize(product_tiles_, shape.channels);
    sum_plane_ = WinogradPlaneSize(shape.depth, shape.channels);
  }

  static int64_t DivideUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

  std::unique_ptr<MatrixProduct> MakeProduct(int cores, bool adds) const {
    return MatrixProduct::Make(
        DescribeMatrices(kWinogradPlanes, image_plane_, shape_.depth, product_tiles_,
                         /*are_transposed=*/true),
        DescribeMatrices(kWinogradPlanes, gradient_plane_, product_tiles_, shape_.channels),
        DescribeMatrices(kWinogradPlanes, sum_plane_, shape_.depth, shape_.channels), cores, adds);
  }

  const WinogradShape shape_;
  int64_t product_tiles_ = 0;  // of one product
  int64_t image_plane_ = 0;    // sizes of planes
  int64_t gradient_plane_ = 0;
  int64_t sum_plane_ = 0;
  // The first product is written over the sums, and the others are added to them.
  std::unique_ptr<MatrixProduct> first_;
  std::unique_ptr<MatrixProduct> next_;  // null if there is one product
};

// With a filter of one pixel, a convolution is a product of two matrices, and so is each gradient.
class PointwiseProduct : public OtherWay {
 public:
  PointwiseProduct(ConvolutionKind kind, std::unique_ptr<MatrixProduct> product)
      : kind_(kind), product_(std::move(product)) {}

  absl::string_view name() const override { return "TfInterop>PointwiseProduct"; }
  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    Tensor scratchpad;
    TF_RETURN_IF_ERROR(context->allocate_temp(
        tensorflow::DT_FLOAT, TensorShape({product_->scratchpad_floats()}), &scratchpad));
    DeviceThreads threads(*context->device()->tensorflow_cpu_worker_threads());
    const OneDnnPtr<dnnl_stream> stream = MakeStream(&threads);
    return product_->Run(stream.get(), FloatsOf(*context, ImageInput(kind_)),
                         FloatsOf(*context, kind_ == ConvolutionKind::kBackwardFilter ? 2 : 1),
                         FloatsOf(results[0]), static_cast<float*>(scratchpad.data()));
  }

 private:
  const ConvolutionKind kind_;
  const std::unique_ptr<MatrixProduct> product_;
};

std::unique_ptr<MatrixProduct> MakePointwiseProduct(const Convolution& c, int cores) {
  const int64_t pixels = c.batch * c.image_pixels();
  const auto describe = [](int64_t rows, int64_t columns, bool is_transposed = false) {
    return Describe({rows, columns}, 2, is_transposed ? dnnl_ba : dnnl_ab);
  };
  switch (c.kind) {
    case ConvolutionKind::kForward:
      return MatrixProduct::Make(describe(pixels, c.image_channels),
                                 describe(c.image_channels, c.output_channels),
                                 describe(pixels, c.output_channels), cores);
    case ConvolutionKind::kBackwardInput:
      return MatrixProduct::Make(
          describe(pixels, c.output_channels),
          describe(c.output_channels, c.image_channels, /*is_transposed=*/true),
          describe(pixels, c.image_channels), cores);
    case ConvolutionKind::kBackwardFilter:
      return MatrixProduct::Make(describe(c.image_channels, pixels, /*is_transposed=*/true),
                                 describe(pixels, c.output_channels),
                                 describe(c.image_channels, c.output_channels), cores);
  }
  return nullptr;
}

std::unique_ptr<OtherWay> MakeWinogradWay(const FusedOps& fused, WinogradShape shape,
                                          ConvolutionKind kind, int cores) {
  if (kind == ConvolutionKind::kBackwardInput) {
    std::swap(shape.depth, shape.channels);
    std::swap(shape.height, shape.rows);
    std::swap(shape.width, shape.columns);
    shape.above = shape.filter_size - 1 - shape.above;
    shape.left = shape.filter_size - 1 - shape.left;
  }
  if (!MayGain(shape)) return nullptr;
  if (kind == ConvolutionKind::kBackwardFilter) return WinogradFilterGradient::Make(shape, cores);
  auto convolution =
      WinogradConvolution::MakeForAnyFilter(shape, cores, kind == ConvolutionKind::kBackwardInput);
  if (convolution == nullptr) return nullptr;
  return std::make_unique<WinogradWay>(fused, kind, std::move(convolution));
}

bool IsPointwise(const Convolution& c, const FusedOps& fused) {
  const auto sizes = SpatialSizesOf(c);
  return c.group_count == 1 && c.layout == Layout::kNHWC && !fused.has_bias &&
         fused.activation == FusedActivation::kNone &&
         absl::c_all_of(sizes, [](const SpatialSizes& along) {
           return along.filter == 1 && along.stride == 1 && along.output == along.image;
         });
}

}  // namespace

OtherWayMaker FindConvolutionWays(const OpKernel& kernel) {
  const auto of_kernel = KernelConvolution::Read(kernel);
  if (!of_kernel.has_value() || of_kernel->step.depthwise || of_kernel->fused.has_summand) {
    return nullptr;
  }
  return [of_kernel = *of_kernel](const OpKernelContext& context,
                                  int cores) -> std::unique_ptr<OtherWay> {
    const auto convolution = of_kernel.Resolve(context);
    if (!convolution.has_value() || !of_kernel.HasBiasFor(*convolution, context)) return nullptr;
    const ConvolutionKind kind = convolution->kind;
    if (IsPointwise(*convolution, of_kernel.fused)) {
      auto product = MakePointwiseProduct(*convolution, cores);
      if (product == nullptr) return nullptr;
      return std::make_unique<PointwiseProduct>(kind, std::move(product));
    }
    const auto winograd = of_kernel.WinogradShapeFor(*convolution);
    if (!winograd.has_value()) return nullptr;
    return MakeWinogradWay(of_kernel.fused, *winograd, kind, cores);
  };
}

}  // namespace tf_interop
