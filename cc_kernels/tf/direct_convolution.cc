#define EIGEN_USE_THREADS

#include "cc_kernels/tf/direct_convolution.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/tf/onednn_calls.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/determinism.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

void AppendActivation(const FusedOps& fused, dnnl_post_ops_t ops) {
  const auto append = [ops](dnnl_alg_kind_t algorithm, float alpha, float beta) {
    FindOneDnn()->post_ops_append_eltwise(ops, algorithm, alpha, beta);
  };
  switch (fused.activation) {
    case FusedActivation::kNone:
      return;
    case FusedActivation::kRelu:
      return append(dnnl_eltwise_relu, fused.slope, 0);
    case FusedActivation::kRelu6:
      return append(dnnl_eltwise_clip, 0, 6);
    case FusedActivation::kElu:
      return append(dnnl_eltwise_elu, 1, 0);
    case FusedActivation::kSwish:
      return append(dnnl_eltwise_swish, 1, 0);
    case FusedActivation::kHardSwish:
      return append(dnnl_eltwise_hardswish, 1.0F / 6.0F, 0.5F);
  }
}

// The position of the tensor that a convolution adds.
int Summand(const OpKernelContext& context) { return context.num_inputs() - 1; }

// Winograd's way is tried on as many images as have so many tiles.
constexpr int64_t kTilesOfTrial = 16;

}  // namespace

// A filter in the form that a primitive needs.
struct DirectConvolution::Filter {
  OneDnnPtr<dnnl_memory_desc> desc;
  Tensor bytes;
  OneDnnPtr<dnnl_memory> memory;
};

// What only one call at a time can use.
struct DirectConvolution::Call {
  explicit Call(const Prepared& prepared, const tensorflow::DeviceBase::CpuWorkerThreads& threads);

  DeviceThreads threads;
  OneDnnPtr<dnnl_stream> stream;
  OneDnnPtr<dnnl_memory> image, bias, output, scratchpad;
};

struct DirectConvolution::Prepared {
  bool is_ready() const { return primitive != nullptr || winograd != nullptr; }
  // Whether the other tensors of a call have the shapes that they should have.
  bool Fits(const FusedOps& fused, const OpKernelContext& context) const {
    return (!fused.has_bias || context.input(2).shape() == bias_shape) &&
           (!fused.has_summand || context.input(Summand(context)).shape() == output_shape);
  }
  std::unique_ptr<Call> Take(const tensorflow::DeviceBase::CpuWorkerThreads& workers) {
    std::unique_ptr<Call> call;
    {
      const std::lock_guard<std::mutex> lock(mutex);
      if (!free.empty()) {
        call = std::move(free.back());
        free.pop_back();
      }
    }
    if (call != nullptr && call->threads.IsOf(workers)) return call;
    return std::make_unique<Call>(*this, workers);
  }
  void Return(std::unique_ptr<Call> call) {
    const std::lock_guard<std::mutex> lock(mutex);
    free.push_back(std::move(call));
  }

  TensorShape bias_shape;
  TensorShape output_shape;
  std::unique_ptr<WinogradConvolution> winograd;  // or all of the following
  OneDnnPtr<dnnl_memory_desc> image, bias, output;
  OneDnnPtr<dnnl_primitive_desc> desc;
  OneDnnPtr<dnnl_primitive> primitive;
  const_dnnl_memory_desc_t scratchpad = nullptr;  // of `desc`
  int64_t scratchpad_bytes = 0;
  std::shared_ptr<Filter> filter;
  std::mutex mutex;  // guards `free`
  std::vector<std::unique_ptr<Call>> free;
};

DirectConvolution::Call::Call(const Prepared& prepared,
                              const tensorflow::DeviceBase::CpuWorkerThreads& workers)
    : threads(workers),
      stream(MakeStream(&threads)),
      image(MakeMemory(prepared.image.get())),
      bias(MakeMemory(prepared.bias.get())),
      output(MakeMemory(prepared.output.get())),
      scratchpad(MakeMemory(prepared.scratchpad)) {}

std::unique_ptr<DirectConvolution> DirectConvolution::Make(const tensorflow::OpKernel& kernel,
                                                           bool tries_winograd) {
  if (kernel.input_type(0) != tensorflow::DT_FLOAT || FindOneDnn() == nullptr) return nullptr;
  const auto of_kernel = KernelConvolution::Read(kernel);
  if (!of_kernel.has_value() || of_kernel->step.kind != ConvolutionKind::kForward) return nullptr;
  return std::unique_ptr<DirectConvolution>(new DirectConvolution(*of_kernel, tries_winograd));
}

std::shared_ptr<DirectConvolution::Prepared> DirectConvolution::Find(OpKernelContext* context) {
  const Tensor& image = context->input(0);
  if (image.dims() != 4) return nullptr;
  const int cores = context->device()->tensorflow_cpu_worker_threads()->num_threads;
  const Key key = {image.dim_size(0), image.dim_size(1), image.dim_size(2), image.dim_size(3),
                   cores};
  std::optional<std::shared_ptr<Prepared>> found = prepared_.Find(key);
  if (!found.has_value()) found = prepared_.Insert(key, Prepare(context, cores));
  const std::shared_ptr<Prepared>& prepared = *found;
  return prepared->is_ready() && prepared->Fits(kernel_.fused, *context) ? prepared : nullptr;
}

absl::string_view DirectConvolution::Name(const Prepared& prepared) {
  return prepared.winograd != nullptr ? kWinogradConvolution : kDirectConvolution;
}

absl::Status DirectConvolution::Run(OpKernelContext* context, Prepared* prepared) const {
  Tensor* output = nullptr;
  if (kernel_.fused.has_summand) {
    const int summand = Summand(*context);
    const void* const data = context->input(summand).data();
    TF_RETURN_IF_ERROR(
        context->forward_input_or_allocate_output({summand}, 0, prepared->output_shape, &output));
    if (output->data() != data) std::memcpy(output->data(), data, output->TotalBytes());
  } else {
    TF_RETURN_IF_ERROR(context->allocate_output(0, prepared->output_shape, &output));
  }
  return RunOn(context, prepared, context->input(0), output);
}

absl::Status DirectConvolution::RunOn(OpKernelContext* context, Prepared* prepared,
                                      const Tensor& image, Tensor* output) const {
  if (prepared->winograd != nullptr) {
    const void* const bias = kernel_.fused.has_bias ? context->input(2).data() : nullptr;
    return prepared->winograd->Run(context, kernel_.fused, static_cast<const float*>(image.data()),
                                   /*filter=*/nullptr, static_cast<const float*>(bias),
                                   static_cast<float*>(output->data()));
  }
  Tensor scratchpad;
  if (prepared->scratchpad_bytes > 0) {
    TF_RETURN_IF_ERROR(context->allocate_temp(
        tensorflow::DT_UINT8, TensorShape({prepared->scratchpad_bytes}), &scratchpad));
  }
  const OneDnn& onednn = *FindOneDnn();
  std::unique_ptr<Call> call = prepared->Take(*context->device()->tensorflow_cpu_worker_threads());
  absl::InlinedVector<dnnl_exec_arg_t, 5> arguments;
  const auto pass = [&](int argument, const OneDnnPtr<dnnl_memory>& memory, const Tensor& tensor) {
    onednn.memory_set_data_handle_v2(memory.get(), tensor.data(), /*index=*/0);
    arguments.push_back({argument, memory.get()});
  };
  pass(DNNL_ARG_SRC, call->image, image);
  arguments.push_back({DNNL_ARG_WEIGHTS, prepared->filter->memory.get()});
  if (kernel_.fused.has_bias) pass(DNNL_ARG_BIAS, call->bias, context->input(2));
  pass(DNNL_ARG_DST, call->output, *output);
  if (prepared->scratchpad_bytes > 0) pass(DNNL_ARG_SCRATCHPAD, call->scratchpad, scratchpad);
  const absl::Status status = Execute(prepared->primitive, call->stream.get(), arguments);
  prepared->Return(std::move(call));
  return status;
}

std::shared_ptr<DirectConvolution::Prepared> DirectConvolution::Prepare(OpKernelContext* context,
                                                                        int cores) {
  auto prepared = std::make_shared<Prepared>();
  const std::optional<Convolution> convolution = kernel_.Resolve(*context);
  if (!convolution.has_value()) return prepared;
  prepared->bias_shape = TensorShape({convolution->output_channels});
  prepared->output_shape = tensorflow::ShapeFromFormat(
      kernel_.step.format, convolution->batch, convolution->output_height,
      convolution->output_width, convolution->output_channels);
  if (prepared->Fits(kernel_.fused, *context) && IsWinogradFaster(context, *convolution, cores)) {
    prepared->winograd = MakeWinograd(context, *convolution, cores);
  }
  if (prepared->winograd == nullptr) MakePrimitive(context, *convolution, cores, prepared.get());
  ForgetUnusedFilters();
  return prepared;
}

bool DirectConvolution::IsWinogradFaster(OpKernelContext* context, const Convolution& convolution,
                                         int cores) {
  // The choice depends on times, and so do the bits of the result.
  if (!tries_winograd_ || tensorflow::OpDeterminismRequired()) return false;
  const std::optional<WinogradShape> winograd = kernel_.WinogradShapeFor(convolution);
  if (!winograd.has_value() || !MayGain(*winograd)) return false;
  const int64_t tiles = winograd->tiles();
  Convolution few = convolution;
  few.batch = std::min(few.batch, (kTilesOfTrial * few.batch + tiles - 1) / tiles);
  const std::array<int64_t, 3> key = {few.batch, few.image_height, few.image_width};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = is_winograd_faster_.find(key);
    if (found != is_winograd_faster_.end()) return found->second;
  }
  const bool is_faster = TryWinograd(context, few, cores);
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_winograd_faster_.emplace(key, is_faster).first->second;
}

bool DirectConvolution::TryWinograd(OpKernelContext* context, const Convolution& convolution,
                                    int cores) {
  const Tensor image = context->input(0).Slice(0, convolution.batch);
  std::array<Prepared, 2> ways;
  auto& [direct, winograd] = ways;
  MakePrimitive(context, convolution, cores, &direct);
  winograd.winograd = MakeWinograd(context, convolution, cores);
  if (!direct.is_ready() || !winograd.is_ready()) return false;
  const TensorShape sizes({convolution.batch, convolution.output_height, convolution.output_width,
                           convolution.output_channels});
  std::array<Tensor, 2> outputs;
  std::array<double, 2> seconds;
  seconds.fill(std::numeric_limits<double>::infinity());
  for (int run = 0; run < 3; ++run) {
    for (size_t i = 0; i < ways.size(); ++i) {
      if (run == 0 && !context->allocate_temp(tensorflow::DT_FLOAT, sizes, &outputs[i]).ok()) {
        return false;
      }
      std::memset(outputs[i].data(), 0, outputs[i].TotalBytes());  // the summand, if there is one
      const auto begin = std::chrono::steady_clock::now();
      if (!RunOn(context, &ways[i], image, &outputs[i]).ok()) return false;
      const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
      seconds[i] = std::min(seconds[i], time.count());
    }
  }
  return seconds[1] < kMostWinogradTime * seconds[0] && AreNear(outputs[1], outputs[0]);
}

std::unique_ptr<WinogradConvolution> DirectConvolution::MakeWinograd(OpKernelContext* context,
                                                                     const Convolution& convolution,
                                                                     int cores) {
  const WinogradShape winograd = *kernel_.WinogradShapeFor(convolution);
  const auto find_filter = [&](const_dnnl_memory_desc_t given, const_dnnl_memory_desc_t needed) {
    Tensor planes;
    const std::shared_ptr<Filter> filter = FindFilter(context, given, needed, [&]() -> void* {
      const TensorShape sizes(
          {kWinogradPlanes, WinogradPlaneSize(winograd.depth, winograd.channels)});
      if (!context->allocate_temp(tensorflow::DT_FLOAT, sizes, &planes).ok()) return nullptr;
      TransformWinogradFilter(static_cast<const float*>(context->input(1).data()),
                              winograd.filter_size, winograd.depth, winograd.channels, 0,
                              winograd.depth,
                              /*is_reversed=*/false, static_cast<float*>(planes.data()));
      return planes.data();
    });
    return WinogradConvolution::Filter{filter, filter == nullptr ? nullptr : filter->memory.get()};
  };
  return WinogradConvolution::Make(winograd, cores, find_filter);
}

void DirectConvolution::MakePrimitive(OpKernelContext* context, const Convolution& c, int cores,
                                      Prepared* prepared) {
  const auto tag = c.layout == Layout::kNHWC ? dnnl_nhwc : dnnl_nchw;
  prepared->image = Describe({c.batch, c.image_channels, c.image_height, c.image_width}, 4, tag);
  prepared->output =
      Describe({c.batch, c.output_channels, c.output_height, c.output_width}, 4, tag);
  prepared->bias = Describe({c.output_channels}, 1, dnnl_x);
  const auto describe_filter = [&](dnnl_format_tag_t grouped, dnnl_format_tag_t whole) {
    const int64_t inputs = c.image_channels / c.group_count;
    const int64_t outputs = c.output_channels / c.group_count;
    if (c.group_count > 1 || kernel_.step.depthwise) {
      return Describe({c.group_count, outputs, inputs, c.filter_height, c.filter_width}, 5,
                      grouped);
    }
    return Describe({outputs, inputs, c.filter_height, c.filter_width}, 4, whole);
  };
  const OneDnnPtr<dnnl_memory_desc> given_filter = describe_filter(dnnl_hwigo, dnnl_hwio);
  const OneDnnPtr<dnnl_memory_desc> any_filter =
      describe_filter(dnnl_format_tag_any, dnnl_format_tag_any);

  const OneDnn& onednn = *FindOneDnn();
  const OneDnnPtr<dnnl_post_ops> ops = MakePostOps(/*adds=*/kernel_.fused.has_summand);
  AppendActivation(kernel_.fused, ops.get());
  const OneDnnPtr<dnnl_primitive_attr> attributes = MakeAttributes(ops.get());

  onednn.threadpool_interop_set_max_concurrency(cores);  // for which the primitive divides its work
  const dnnl_dims_t strides = {c.stride_height, c.stride_width};
  // For oneDNN, 0 is a dense filter.
  const dnnl_dims_t dilations = {c.dilation_height - 1, c.dilation_width - 1};
  const dnnl_dims_t before = {c.pad_top, c.pad_left};
  const dnnl_dims_t after = {c.pad_bottom, c.pad_right};
  dnnl_primitive_desc_t made = nullptr;
  onednn.convolution_forward_primitive_desc_create(
      &made, onednn.engine, dnnl_forward_training, dnnl_convolution_direct, prepared->image.get(),
      any_filter.get(), kernel_.fused.has_bias ? prepared->bias.get() : nullptr,
      prepared->output.get(), strides, dilations, before, after, attributes.get());
  prepared->desc.reset(made);
  if (made == nullptr) return;
  prepared->scratchpad = onednn.primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
  prepared->scratchpad_bytes = BytesOf(prepared->scratchpad);
  prepared->filter = FindFilter(context, given_filter.get(),
                                onednn.primitive_desc_query_md(made, dnnl_query_weights_md, 0),
                                [context] { return context->input(1).data(); });
  if (prepared->filter != nullptr) prepared->primitive = tf_interop::MakePrimitive(made);
}

std::shared_ptr<DirectConvolution::Filter> DirectConvolution::FindFilter(
    OpKernelContext* context, const_dnnl_memory_desc_t given, const_dnnl_memory_desc_t needed,
    const std::function<void*()>& find_data) {
  const OneDnn& onednn = *FindOneDnn();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::shared_ptr<Filter>& each : filters_) {
    if (onednn.memory_desc_equal(each->desc.get(), needed) != 0) return each;
  }
  dnnl_primitive_desc_t made_desc = nullptr;
  onednn.reorder_primitive_desc_create(&made_desc, given, onednn.engine, needed, onednn.engine,
                                       /*attr=*/nullptr);
  const OneDnnPtr<dnnl_primitive_desc> desc(made_desc);
  const OneDnnPtr<dnnl_primitive> reorder = tf_interop::MakePrimitive(made_desc);
  void* const data = find_data();
  if (reorder == nullptr || data == nullptr) return nullptr;
  auto filter = std::make_shared<Filter>();
  const TensorShape size({BytesOf(needed)});
  if (!context->allocate_temp(tensorflow::DT_UINT8, size, &filter->bytes).ok()) return nullptr;
  const OneDnnPtr<dnnl_memory> from = MakeMemory(given, data);
  filter->memory = MakeMemory(needed, filter->bytes.data());
  dnnl_memory_desc_t made_copy = nullptr;
  onednn.memory_desc_clone(&made_copy, needed);
  filter->desc.reset(made_copy);
  // Not on the pool, whose threads may all wait for the lock.
  CallingThread threads;
  const absl::Status status =
      Execute(reorder, MakeStream(&threads).get(),
              {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, filter->memory.get()}});
  if (!status.ok()) return nullptr;
  filters_.push_back(filter);
  return filter;
}

void DirectConvolution::ForgetUnusedFilters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto is_unused = [](const std::shared_ptr<Filter>& each) { return each.use_count() == 1; };
  filters_.erase(std::remove_if(filters_.begin(), filters_.end(), is_unused), filters_.end());
}

}  // namespace tf_interop
