#include "cc_kernels/tf/convolution_ways.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/tf/convolution_shape.h"
#include "cc_kernels/tf/matrix_product.h"
#include "cc_kernels/tf/onednn_calls.h"
#include "cc_kernels/tf/winograd_convolution.h"
#include "cc_kernels/tf/winograd_filter_gradient.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

enum class Kind { kConvolution, kInputGradient, kFilterGradient };

// The one of the inputs that has pixels, or gradients of pixels.
int ImageInput(Kind kind) { return kind == Kind::kInputGradient ? 2 : 0; }

// A shape that an input has, or that a gradient's input of sizes says.
std::optional<TensorShape> ShapeOf(const Tensor& input, bool has_sizes) {
  return has_sizes ? ShapeOfSizes(input) : input.shape();
}

class WinogradWay : public OtherWay {
 public:
  WinogradWay(const FusedOps& fused, Kind kind, std::unique_ptr<WinogradConvolution> convolution)
      : fused_(fused), kind_(kind), convolution_(std::move(convolution)) {}

  absl::string_view name() const override { return kWinogradConvolution; }
  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    return convolution_->Run(
        context, fused_, FloatsOf(*context, ImageInput(kind_)), FloatsOf(*context, 1),
        fused_.has_bias ? FloatsOf(*context, 2) : nullptr, FloatsOf(results[0]));
  }

 private:
  const FusedOps fused_;
  const Kind kind_;
  const std::unique_ptr<WinogradConvolution> convolution_;
};

class WinogradFilterWay : public OtherWay {
 public:
  explicit WinogradFilterWay(std::unique_ptr<WinogradFilterGradient> gradient)
      : gradient_(std::move(gradient)) {}

  absl::string_view name() const override { return kWinogradConvolution; }
  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    return gradient_->Run(context, FloatsOf(*context, 0), FloatsOf(*context, 2),
                          FloatsOf(results[0]));
  }

 private:
  const std::unique_ptr<WinogradFilterGradient> gradient_;
};

// With a filter of one pixel, a convolution is a product of two matrices, and so is each gradient.
class PointwiseProduct : public OtherWay {
 public:
  PointwiseProduct(Kind kind, std::unique_ptr<MatrixProduct> product)
      : kind_(kind), product_(std::move(product)) {}

  absl::string_view name() const override { return "TfInterop>PointwiseProduct"; }
  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    Tensor scratchpad;
    TF_RETURN_IF_ERROR(context->allocate_temp(
        tensorflow::DT_FLOAT, TensorShape({product_->scratchpad_floats()}), &scratchpad));
    DeviceThreads threads(*context->device()->tensorflow_cpu_worker_threads());
    const OneDnnPtr<dnnl_stream> stream = MakeStream(&threads);
    return product_->Run(stream.get(), FloatsOf(*context, ImageInput(kind_)),
                         FloatsOf(*context, kind_ == Kind::kFilterGradient ? 2 : 1),
                         FloatsOf(results[0]), static_cast<float*>(scratchpad.data()));
  }

 private:
  const Kind kind_;
  const std::unique_ptr<MatrixProduct> product_;
};

std::unique_ptr<MatrixProduct> MakePointwiseProduct(const ConvolutionShape& shape, Kind kind,
                                                    int cores) {
  const int64_t pixels = shape.images * shape.image[0] * shape.image[1];
  const auto describe = [](int64_t rows, int64_t columns, bool is_transposed = false) {
    return Describe({rows, columns}, 2, is_transposed ? dnnl_ba : dnnl_ab);
  };
  switch (kind) {
    case Kind::kConvolution:
      return MatrixProduct::Make(describe(pixels, shape.depth),
                                 describe(shape.depth, shape.channels),
                                 describe(pixels, shape.channels), cores);
    case Kind::kInputGradient:
      return MatrixProduct::Make(describe(pixels, shape.channels),
                                 describe(shape.channels, shape.depth, /*is_transposed=*/true),
                                 describe(pixels, shape.depth), cores);
    case Kind::kFilterGradient:
      return MatrixProduct::Make(describe(shape.depth, pixels, /*is_transposed=*/true),
                                 describe(pixels, shape.channels),
                                 describe(shape.depth, shape.channels), cores);
  }
  return nullptr;
}

std::unique_ptr<OtherWay> MakeWinogradWay(const FusedOps& fused, WinogradShape shape, Kind kind,
                                          int cores) {
  if (kind == Kind::kInputGradient) {
    std::swap(shape.depth, shape.channels);
    std::swap(shape.height, shape.rows);
    std::swap(shape.width, shape.columns);
    shape.above = shape.filter_size - 1 - shape.above;
    shape.left = shape.filter_size - 1 - shape.left;
  }
  if (!MayGain(shape)) return nullptr;
  if (kind == Kind::kFilterGradient) {
    auto gradient = WinogradFilterGradient::Make(shape, cores);
    if (gradient == nullptr) return nullptr;
    return std::make_unique<WinogradFilterWay>(std::move(gradient));
  }
  auto convolution =
      WinogradConvolution::MakeForAnyFilter(shape, cores, kind == Kind::kInputGradient);
  if (convolution == nullptr) return nullptr;
  return std::make_unique<WinogradWay>(fused, kind, std::move(convolution));
}

bool IsPointwise(const ConvolutionAttributes& attributes, const ConvolutionShape& shape) {
  const auto is_one_pixel = [&](int i) {
    const Window& window = shape.windows[i];
    return shape.filter[i] == 1 && window.stride == 1 && window.output_size == shape.image[i];
  };
  return shape.groups == 1 && attributes.data_format == tensorflow::FORMAT_NHWC &&
         is_one_pixel(0) && is_one_pixel(1) && !attributes.fused.has_bias &&
         attributes.fused.activation == FusedActivation::kNone;
}

}  // namespace

OtherWayMaker FindConvolutionWays(const OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();
  Kind kind = Kind::kConvolution;
  if (absl::EndsWith(op, "Conv2DBackpropInput")) {
    kind = Kind::kInputGradient;
  } else if (absl::EndsWith(op, "Conv2DBackpropFilter")) {
    kind = Kind::kFilterGradient;
  } else if (!absl::EndsWith(op, "Conv2D")) {
    return nullptr;
  }
  if (!absl::StartsWith(op, "_MklNative")) return nullptr;
  const auto attributes = ConvolutionAttributes::Read(kernel.def(), /*is_depthwise=*/false);
  if (!attributes.has_value() || attributes->fused.has_summand) return nullptr;
  return [kind, attributes = *attributes](const OpKernelContext& context,
                                          int cores) -> std::unique_ptr<OtherWay> {
    const auto image = ShapeOf(context.input(0), kind == Kind::kInputGradient);
    const auto filter = ShapeOf(context.input(1), kind == Kind::kFilterGradient);
    if (!image.has_value() || !filter.has_value()) return nullptr;
    const auto shape = attributes.ShapeFor(*image, *filter);
    if (!shape.has_value()) return nullptr;
    const auto& [rows, columns] = shape->windows;
    if (attributes.fused.has_bias && context.input(2).shape() != TensorShape({shape->channels})) {
      return nullptr;
    }
    if (kind != Kind::kConvolution &&
        context.input(2).shape() !=
            tensorflow::ShapeFromFormat(attributes.data_format, shape->images, rows.output_size,
                                        columns.output_size, shape->channels)) {
      return nullptr;
    }
    if (IsPointwise(attributes, *shape)) {
      auto product = MakePointwiseProduct(*shape, kind, cores);
      if (product == nullptr) return nullptr;
      return std::make_unique<PointwiseProduct>(kind, std::move(product));
    }
    const auto winograd = attributes.WinogradShapeFor(*shape);
    if (!winograd.has_value()) return nullptr;
    return MakeWinogradWay(attributes.fused, *winograd, kind, cores);
  };
}

}  // namespace tf_interop
