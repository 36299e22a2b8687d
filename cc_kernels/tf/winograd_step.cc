#include "cc_kernels/tf/winograd_step.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/tf/onednn.h"
#include "cc_kernels/tf/winograd_convolution.h"
#include "cc_kernels/tf/winograd_filter_gradient.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/determinism.h"

namespace tf_interop {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

namespace {

constexpr int kTrials = 6;  // of both ways together, in turns

// A shape that an input has, or that a gradient's input of sizes says.
std::optional<TensorShape> ShapeOf(const Tensor& input, bool has_sizes) {
  if (!has_sizes) return input.shape();
  TensorShape shape;
  if (input.dtype() != tensorflow::DT_INT32 || input.shape() != TensorShape({4}) ||
      !tensorflow::TensorShapeUtils::MakeShape(input.vec<int32_t>(), &shape).ok()) {
    return std::nullopt;
  }
  return shape;
}

}  // namespace

struct WinogradStep::Ways {
  enum class State { kNew, kTrying, kKernel, kWinograd };

  bool has_winograd() const { return convolution != nullptr || filter_gradient != nullptr; }

  WinogradShape shape;
  TensorShape result;
  // One of them, or none if there is no such product.
  std::unique_ptr<WinogradConvolution> convolution;
  std::unique_ptr<WinogradFilterGradient> filter_gradient;
  std::mutex mutex;  // guards the rest
  State state = State::kNew;
  int trials = 0;
  double kernel_seconds = std::numeric_limits<double>::infinity();  // the least so far
  double winograd_seconds = std::numeric_limits<double>::infinity();
};

std::unique_ptr<WinogradStep> WinogradStep::Make(const OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();
  Kind kind = Kind::kConvolution;
  if (absl::EndsWith(op, "Conv2DBackpropInput")) {
    kind = Kind::kInputGradient;
  } else if (absl::EndsWith(op, "Conv2DBackpropFilter")) {
    kind = Kind::kFilterGradient;
  } else if (!absl::EndsWith(op, "Conv2D")) {
    return nullptr;
  }
  if (!absl::StartsWith(op, "_MklNative") || kernel.output_type(0) != tensorflow::DT_FLOAT ||
      FindOneDnn() == nullptr) {
    return nullptr;
  }
  const auto attributes = ConvolutionAttributes::Read(kernel.def(), /*is_depthwise=*/false);
  if (!attributes.has_value() || attributes->fused.has_summand) return nullptr;
  return std::unique_ptr<WinogradStep>(new WinogradStep(*attributes, kind));
}

std::optional<WinogradShape> WinogradStep::FindShape(const OpKernelContext& context) const {
  const auto image = ShapeOf(context.input(0), kind_ == Kind::kInputGradient);
  const auto filter = ShapeOf(context.input(1), kind_ == Kind::kFilterGradient);
  if (!image.has_value() || !filter.has_value()) return std::nullopt;
  const auto shape = attributes_.ShapeFor(*image, *filter);
  if (!shape.has_value()) return std::nullopt;
  std::optional<WinogradShape> winograd = attributes_.WinogradShapeFor(*shape);
  if (!winograd.has_value()) return std::nullopt;
  if (attributes_.fused.has_bias && context.input(2).shape() != TensorShape({shape->channels})) {
    return std::nullopt;
  }
  if (kind_ != Kind::kConvolution &&
      context.input(2).shape() !=
          TensorShape({shape->images, winograd->rows, winograd->columns, shape->channels})) {
    return std::nullopt;
  }
  if (kind_ == Kind::kInputGradient) {
    std::swap(winograd->depth, winograd->channels);
    std::swap(winograd->height, winograd->rows);
    std::swap(winograd->width, winograd->columns);
    winograd->above = winograd->filter_size - 1 - winograd->above;
    winograd->left = winograd->filter_size - 1 - winograd->left;
  }
  return MayGain(*winograd) ? winograd : std::nullopt;
}

WinogradStep::Turn WinogradStep::Find(const OpKernelContext& context) {
  // The choice depends on times, and so do the bits of the result.
  const Tensor& image = context.input(ImageInput());
  if (image.dims() != 4 || tensorflow::OpDeterminismRequired()) return {};
  const int cores = context.device()->tensorflow_cpu_worker_threads()->num_threads;
  const Key key = {image.dim_size(0), image.dim_size(1), image.dim_size(2), image.dim_size(3),
                   cores};
  std::optional<std::shared_ptr<Ways>> found = ways_.Find(key);
  const bool is_new = !found.has_value();
  std::optional<WinogradShape> shape;
  if (is_new || (*found)->has_winograd()) shape = FindShape(context);
  if (is_new) {
    auto made = std::make_shared<Ways>();
    if (shape.has_value()) {
      made->shape = *shape;
      if (kind_ == Kind::kFilterGradient) {
        made->result = *ShapeOf(context.input(1), /*has_sizes=*/true);
        made->filter_gradient = WinogradFilterGradient::Make(*shape, cores);
      } else {
        made->result = TensorShape({shape->images, shape->rows, shape->columns, shape->channels});
        made->convolution =
            WinogradConvolution::MakeForAnyFilter(*shape, cores, kind_ == Kind::kInputGradient);
      }
    }
    found = ways_.Insert(key, std::move(made));
  }
  Ways& ways = **found;
  // A gradient's sizes may change while those of its other inputs do not.
  if (!ways.has_winograd() || !shape.has_value() || !(*shape == ways.shape)) return {};
  const std::lock_guard<std::mutex> lock(ways.mutex);
  switch (ways.state) {
    case Ways::State::kNew:
      return {*found, /*is_winograd=*/false, /*is_first=*/true};
    case Ways::State::kTrying: {
      const int trial = ways.trials++;
      return {*found, /*is_winograd=*/trial % 2 == 1, /*is_first=*/false, trial};
    }
    case Ways::State::kKernel:
      return {};
    case Ways::State::kWinograd:
      return {*found, /*is_winograd=*/true};
  }
  return {};
}

void WinogradStep::Run(OpKernelContext* context, OpKernel* kernel, const Turn& turn) const {
  Ways& ways = *turn.ways;
  const auto begin = std::chrono::steady_clock::now();
  if (turn.is_winograd) {
    Tensor* output = nullptr;
    absl::Status status = context->allocate_output(0, ways.result, &output);
    if (status.ok()) status = RunWinograd(context, ways, output);
    context->SetStatus(status);
  } else {
    kernel->Compute(context);
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  if (!context->status().ok()) return;
  if (turn.is_first) {
    Tensor other;
    const bool is_near = context->allocate_temp(tensorflow::DT_FLOAT, ways.result, &other).ok() &&
                         RunWinograd(context, ways, &other).ok() &&
                         AreNear(other, *context->mutable_output(0));
    const std::lock_guard<std::mutex> lock(ways.mutex);
    if (ways.state == Ways::State::kNew) {
      ways.state = is_near ? Ways::State::kTrying : Ways::State::kKernel;
    }
  }
  if (turn.trial < 0) return;
  const std::lock_guard<std::mutex> lock(ways.mutex);
  double& least = turn.is_winograd ? ways.winograd_seconds : ways.kernel_seconds;
  least = std::min(least, time.count());
  if (ways.state != Ways::State::kTrying || turn.trial + 1 < kTrials) return;
  const bool is_faster = ways.winograd_seconds < kMostWinogradTime * ways.kernel_seconds;
  ways.state = is_faster ? Ways::State::kWinograd : Ways::State::kKernel;
}

absl::Status WinogradStep::RunWinograd(OpKernelContext* context, const Ways& ways,
                                       Tensor* output) const {
  const auto data = [&](int input) {
    return static_cast<const float*>(context->input(input).data());
  };
  auto* const result = static_cast<float*>(output->data());
  if (kind_ == Kind::kFilterGradient) {
    return ways.filter_gradient->Run(context, data(0), data(2), result);
  }
  return ways.convolution->Run(context, attributes_.fused, data(ImageInput()), data(1),
                               attributes_.fused.has_bias ? data(2) : nullptr, result);
}

}  // namespace tf_interop
