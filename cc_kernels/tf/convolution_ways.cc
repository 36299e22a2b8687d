#include "cc_kernels/tf/convolution_ways.h"

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/tf/convolution_shape.h"
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
  // Null if oneDNN has no such product.
  static std::unique_ptr<PointwiseProduct> Make(const ConvolutionShape& shape, Kind kind,
                                                int cores) {
    const OneDnn& onednn = *FindOneDnn();
    const int64_t pixels = shape.images * shape.image[0] * shape.image[1];
    std::unique_ptr<PointwiseProduct> made(new PointwiseProduct(kind));
    const auto describe = [](int64_t rows, int64_t columns, bool is_transposed = false) {
      return Describe({rows, columns}, 2, is_transposed ? dnnl_ba : dnnl_ab);
    };
    switch (kind) {
      case Kind::kConvolution:
        made->left_ = describe(pixels, shape.depth);
        made->right_ = describe(shape.depth, shape.channels);
        made->result_ = describe(pixels, shape.channels);
        break;
      case Kind::kInputGradient:
        made->left_ = describe(pixels, shape.channels);
        made->right_ = describe(shape.channels, shape.depth, /*is_transposed=*/true);
        made->result_ = describe(pixels, shape.depth);
        break;
      case Kind::kFilterGradient:
        made->left_ = describe(shape.depth, pixels, /*is_transposed=*/true);
        made->right_ = describe(pixels, shape.channels);
        made->result_ = describe(shape.depth, shape.channels);
        break;
    }
    onednn.threadpool_interop_set_max_concurrency(cores);
    dnnl_primitive_desc_t desc = nullptr;
    onednn.matmul_primitive_desc_create(&desc, onednn.engine, made->left_.get(), made->right_.get(),
                                        /*bias_desc=*/nullptr, made->result_.get(),
                                        MakeAttributes().get());
    made->desc_.reset(desc);
    made->primitive_ = MakePrimitive(desc);
    if (made->primitive_ == nullptr) return nullptr;
    made->scratchpad_ = onednn.primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0);
    made->scratchpad_bytes_ =
        static_cast<int64_t>(onednn.memory_desc_get_size_v2(made->scratchpad_, /*index=*/0));
    return made;
  }

  absl::string_view name() const override { return "TfInterop>PointwiseProduct"; }

  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    const OneDnn& onednn = *FindOneDnn();
    Tensor scratchpad;
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_UINT8,
                                              TensorShape({scratchpad_bytes_}), &scratchpad));
    const auto memory_of = [&](const OneDnnPtr<dnnl_memory_desc>& desc, const Tensor& tensor) {
      return MakeMemory(desc.get(), tensor.data());
    };
    const auto left = memory_of(left_, context->input(ImageInput(kind_)));
    const auto right = memory_of(right_, context->input(kind_ == Kind::kFilterGradient ? 2 : 1));
    const auto result = memory_of(result_, *results[0]);
    const auto memory = MakeMemory(scratchpad_, scratchpad.data());
    const std::array<dnnl_exec_arg_t, 4> arguments = {{{DNNL_ARG_SRC, left.get()},
                                                       {DNNL_ARG_WEIGHTS, right.get()},
                                                       {DNNL_ARG_DST, result.get()},
                                                       {DNNL_ARG_SCRATCHPAD, memory.get()}}};
    DeviceThreads threads(*context->device()->tensorflow_cpu_worker_threads());
    const OneDnnPtr<dnnl_stream> stream = MakeStream(&threads);
    const dnnl_status_t status = onednn.primitive_execute(
        primitive_.get(), stream.get(), static_cast<int>(arguments.size()), arguments.data());
    if (status == dnnl_success) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("oneDNN's matrix product failed with status ", status));
  }

 private:
  explicit PointwiseProduct(Kind kind) : kind_(kind) {}

  const Kind kind_;
  OneDnnPtr<dnnl_memory_desc> left_, right_, result_;
  OneDnnPtr<dnnl_primitive_desc> desc_;
  OneDnnPtr<dnnl_primitive> primitive_;
  const_dnnl_memory_desc_t scratchpad_ = nullptr;  // of `desc_`
  int64_t scratchpad_bytes_ = 0;
};

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
    if (IsPointwise(attributes, *shape)) return PointwiseProduct::Make(*shape, kind, cores);
    const auto winograd = attributes.WinogradShapeFor(*shape);
    if (!winograd.has_value()) return nullptr;
    return MakeWinogradWay(attributes.fused, *winograd, kind, cores);
  };
}

}  // namespace tf_interop
