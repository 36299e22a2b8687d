#define EIGEN_USE_THREADS

#include "cc_kernels/tf/direct_convolution.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "oneapi/dnnl/dnnl_threadpool_iface.hpp"
#include "tensorflow/core/framework/kernel_shape_util.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/threadpool.h"
#include "tensorflow/core/platform/threadpool_interface.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TryGetNodeAttr;

// The threads of a device, as oneDNN wants them.
class DeviceThreads : public dnnl::threadpool_interop::threadpool_iface {
 public:
  explicit DeviceThreads(const tensorflow::DeviceBase::CpuWorkerThreads& threads)
      : count_(threads.num_threads), pool_(threads.workers->AsEigenThreadPool()) {}

  bool IsOf(const tensorflow::DeviceBase::CpuWorkerThreads& threads) const {
    return pool_ == threads.workers->AsEigenThreadPool() && count_ == threads.num_threads;
  }
  int get_num_threads() const override { return count_; }
  bool get_in_parallel() const override { return pool_->CurrentThreadId() != -1; }
  uint64_t get_flags() const override { return ASYNCHRONOUS; }
  // As TensorFlow does it: the caller computes nothing, unless the pool runs work inside Schedule.
  void parallel_for(int count, const std::function<void(int, int)>& work) override {
    const int parts = std::min(count, count_);
    const auto run_part = [count, parts, work](int part) {
      for (int i = part * count / parts; i < (part + 1) * count / parts; ++i) work(i, count);
    };
    pool_->Schedule([this, parts, run_part] {
      for (int part = parts - 1; part > 0; --part) {
        pool_->Schedule([run_part, part] { run_part(part); });
      }
      run_part(0);
    });
  }

 private:
  const int count_;
  Eigen::ThreadPoolInterface* const pool_;
};

OneDnnPtr<dnnl_memory_desc> Describe(const dnnl_dims_t& sizes, int count, dnnl_format_tag_t tag) {
  dnnl_memory_desc_t made = nullptr;
  FindOneDnn()->memory_desc_create_with_tag(&made, count, sizes, dnnl_f32, tag);
  return OneDnnPtr<dnnl_memory_desc>(made);
}

OneDnnPtr<dnnl_memory> MakeMemory(const_dnnl_memory_desc_t desc, void* data = nullptr) {
  dnnl_memory_t made = nullptr;
  const OneDnn& onednn = *FindOneDnn();
  onednn.memory_create_v2(&made, desc, onednn.engine, /*nhandles=*/1, &data);
  return OneDnnPtr<dnnl_memory>(made);
}

OneDnnPtr<dnnl_primitive> MakePrimitive(const_dnnl_primitive_desc_t desc) {
  dnnl_primitive_t made = nullptr;
  if (desc != nullptr) FindOneDnn()->primitive_create(&made, desc);
  return OneDnnPtr<dnnl_primitive>(made);
}

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

// A convolution's window along one dimension, in oneDNN's terms.
struct Window {
  int64_t stride = 0;
  int64_t dilation = 0;  // 0 for a dense filter
  int64_t before = 0;
  int64_t after = 0;
  int64_t output_size = 0;
};

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

  OneDnnPtr<dnnl_memory_desc> image, bias, output;
  OneDnnPtr<dnnl_primitive_desc> desc;
  OneDnnPtr<dnnl_primitive> primitive;
  const_dnnl_memory_desc_t scratchpad = nullptr;  // of `desc`
  int64_t scratchpad_bytes = 0;
  TensorShape bias_shape;
  TensorShape output_shape;
  std::shared_ptr<Filter> filter;
  std::mutex mutex;  // guards `free`
  std::vector<std::unique_ptr<Call>> free;
};

DirectConvolution::Call::Call(const Prepared& prepared,
                              const tensorflow::DeviceBase::CpuWorkerThreads& workers)
    : threads(workers),
      image(MakeMemory(prepared.image.get())),
      bias(MakeMemory(prepared.bias.get())),
      output(MakeMemory(prepared.output.get())),
      scratchpad(MakeMemory(prepared.scratchpad)) {
  dnnl_stream_t made = nullptr;
  const OneDnn& onednn = *FindOneDnn();
  onednn.threadpool_interop_stream_create(&made, onednn.engine, &threads);
  stream.reset(made);
}

std::unique_ptr<DirectConvolution> DirectConvolution::Make(const tensorflow::OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();
  const bool is_depthwise = absl::EndsWith(op, "DepthwiseConv2dNative");
  if (!absl::StartsWith(op, "_MklNative") || !(is_depthwise || absl::EndsWith(op, "Conv2D")) ||
      kernel.input_type(0) != tensorflow::DT_FLOAT || FindOneDnn() == nullptr) {
    return nullptr;
  }
  std::unique_ptr<DirectConvolution> made(new DirectConvolution());
  made->is_depthwise_ = is_depthwise;
  const tensorflow::NodeDef& node = kernel.def();
  const std::optional<FusedOps> fused = ReadFusedOps(node);
  if (!fused.has_value()) return nullptr;
  made->fused_ = *fused;
  std::string padding;
  std::string data_format;
  TryGetNodeAttr(node, "explicit_paddings", &made->explicit_paddings_);  // not in every op
  const bool is_read = TryGetNodeAttr(node, "strides", &made->strides_) &&
                       TryGetNodeAttr(node, "dilations", &made->dilations_) &&
                       TryGetNodeAttr(node, "padding", &padding) &&
                       tensorflow::GetPaddingFromString(padding, &made->padding_).ok() &&
                       TryGetNodeAttr(node, "data_format", &data_format) &&
                       tensorflow::FormatFromString(data_format, &made->data_format_);
  const bool lacks_paddings =
      made->padding_ == tensorflow::EXPLICIT && made->explicit_paddings_.size() != 8;
  if (!is_read || lacks_paddings || made->strides_.size() != 4 || made->dilations_.size() != 4) {
    return nullptr;
  }
  return made;
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
  const bool takes_others =
      prepared->primitive != nullptr &&
      (!fused_.has_bias || context->input(2).shape() == prepared->bias_shape) &&
      (!fused_.has_summand || context->input(Summand(*context)).shape() == prepared->output_shape);
  return takes_others ? prepared : nullptr;
}

absl::Status DirectConvolution::Run(OpKernelContext* context, Prepared* prepared) const {
  Tensor* output = nullptr;
  if (fused_.has_summand) {
    const int summand = Summand(*context);
    const void* const data = context->input(summand).data();
    TF_RETURN_IF_ERROR(
        context->forward_input_or_allocate_output({summand}, 0, prepared->output_shape, &output));
    if (output->data() != data) std::memcpy(output->data(), data, output->TotalBytes());
  } else {
    TF_RETURN_IF_ERROR(context->allocate_output(0, prepared->output_shape, &output));
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
  pass(DNNL_ARG_SRC, call->image, context->input(0));
  arguments.push_back({DNNL_ARG_WEIGHTS, prepared->filter->memory.get()});
  if (fused_.has_bias) pass(DNNL_ARG_BIAS, call->bias, context->input(2));
  pass(DNNL_ARG_DST, call->output, *output);
  if (prepared->scratchpad_bytes > 0) pass(DNNL_ARG_SCRATCHPAD, call->scratchpad, scratchpad);
  const dnnl_status_t status =
      onednn.primitive_execute(prepared->primitive.get(), call->stream.get(),
                               static_cast<int>(arguments.size()), arguments.data());
  prepared->Return(std::move(call));
  if (status == dnnl_success) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("oneDNN's convolution failed with status ", status));
}

std::shared_ptr<DirectConvolution::Prepared> DirectConvolution::Prepare(OpKernelContext* context,
                                                                        int cores) {
  auto prepared = std::make_shared<Prepared>();
  const Tensor& image = context->input(0);
  const Tensor& filter = context->input(1);
  if (filter.dims() != 4 || image.NumElements() == 0 || filter.NumElements() == 0 ||
      std::max(image.NumElements(), filter.NumElements()) > std::numeric_limits<int32_t>::max()) {
    return prepared;
  }
  const auto size_of = [&](char dimension) {
    return tensorflow::GetTensorDim(image, data_format_, dimension);
  };
  const int64_t depth = size_of('C');
  const int64_t filter_depth = filter.dim_size(2);
  if (is_depthwise_ ? depth != filter_depth : depth % filter_depth != 0) return prepared;
  const int64_t groups = depth / (is_depthwise_ ? 1 : filter_depth);
  const int64_t channels = filter.dim_size(3) * (is_depthwise_ ? depth : 1);
  if (channels % groups != 0) return prepared;

  std::array<Window, 2> windows;
  for (const int i : {0, 1}) {
    const char dimension = i == 0 ? 'H' : 'W';
    Window& window = windows[i];
    const int64_t dilation = tensorflow::GetTensorDim(dilations_, data_format_, dimension);
    window.stride = tensorflow::GetTensorDim(strides_, data_format_, dimension);
    window.dilation = dilation - 1;
    if (padding_ == tensorflow::EXPLICIT) {
      tensorflow::GetExplicitPaddingForDim(explicit_paddings_, data_format_, dimension,
                                           &window.before, &window.after);
    }
    if (!tensorflow::GetWindowedOutputSizeVerbose(size_of(dimension), filter.dim_size(i), dilation,
                                                  window.stride, padding_, &window.output_size,
                                                  &window.before, &window.after)
             .ok() ||
        window.output_size <= 0) {
      return prepared;
    }
  }
  const auto& [rows, columns] = windows;
  prepared->bias_shape = TensorShape({channels});
  prepared->output_shape = tensorflow::ShapeFromFormat(data_format_, size_of('N'), rows.output_size,
                                                       columns.output_size, channels);

  const auto tag = data_format_ == tensorflow::FORMAT_NHWC ? dnnl_nhwc : dnnl_nchw;
  prepared->image = Describe({size_of('N'), depth, size_of('H'), size_of('W')}, 4, tag);
  prepared->output =
      Describe({size_of('N'), channels, rows.output_size, columns.output_size}, 4, tag);
  prepared->bias = Describe({channels}, 1, dnnl_x);
  const auto describe_filter = [&](dnnl_format_tag_t grouped, dnnl_format_tag_t whole) {
    const int64_t inputs = depth / groups;
    const int64_t outputs = channels / groups;
    if (groups > 1 || is_depthwise_) {
      return Describe({groups, outputs, inputs, filter.dim_size(0), filter.dim_size(1)}, 5,
                      grouped);
    }
    return Describe({outputs, inputs, filter.dim_size(0), filter.dim_size(1)}, 4, whole);
  };
  const OneDnnPtr<dnnl_memory_desc> given_filter = describe_filter(dnnl_hwigo, dnnl_hwio);
  const OneDnnPtr<dnnl_memory_desc> any_filter =
      describe_filter(dnnl_format_tag_any, dnnl_format_tag_any);

  const OneDnn& onednn = *FindOneDnn();
  dnnl_post_ops_t made_ops = nullptr;
  onednn.post_ops_create(&made_ops);
  const OneDnnPtr<dnnl_post_ops> ops(made_ops);
  if (fused_.has_summand) {
    onednn.post_ops_append_sum(made_ops, /*scale=*/1, /*zero_point=*/0, dnnl_data_type_undef);
  }
  AppendActivation(fused_, made_ops);
  dnnl_primitive_attr_t made_attributes = nullptr;
  onednn.primitive_attr_create(&made_attributes);
  const OneDnnPtr<dnnl_primitive_attr> attributes(made_attributes);
  onednn.primitive_attr_set_scratchpad_mode(made_attributes, dnnl_scratchpad_mode_user);
  onednn.primitive_attr_set_post_ops(made_attributes, made_ops);

  onednn.threadpool_interop_set_max_concurrency(cores);  // for which the primitive divides its work
  const dnnl_dims_t strides = {rows.stride, columns.stride};
  const dnnl_dims_t dilations = {rows.dilation, columns.dilation};
  const dnnl_dims_t before = {rows.before, columns.before};
  const dnnl_dims_t after = {rows.after, columns.after};
  dnnl_primitive_desc_t made_desc = nullptr;
  onednn.convolution_forward_primitive_desc_create(
      &made_desc, onednn.engine, dnnl_forward_training, dnnl_convolution_direct,
      prepared->image.get(), any_filter.get(), fused_.has_bias ? prepared->bias.get() : nullptr,
      prepared->output.get(), strides, dilations, before, after, made_attributes);
  prepared->desc.reset(made_desc);
  if (made_desc == nullptr) return prepared;
  prepared->scratchpad = onednn.primitive_desc_query_md(made_desc, dnnl_query_scratchpad_md, 0);
  prepared->scratchpad_bytes =
      static_cast<int64_t>(onednn.memory_desc_get_size_v2(prepared->scratchpad, /*index=*/0));
  const Call call(*prepared, *context->device()->tensorflow_cpu_worker_threads());
  prepared->filter = FindFilter(context, given_filter.get(),
                                onednn.primitive_desc_query_md(made_desc, dnnl_query_weights_md, 0),
                                call.stream.get());
  if (prepared->filter != nullptr) prepared->primitive = MakePrimitive(made_desc);
  return prepared;
}

std::shared_ptr<DirectConvolution::Filter> DirectConvolution::FindFilter(
    OpKernelContext* context, const_dnnl_memory_desc_t given, const_dnnl_memory_desc_t needed,
    dnnl_stream_t stream) {
  const OneDnn& onednn = *FindOneDnn();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const std::shared_ptr<Filter>& each : filters_) {
    if (onednn.memory_desc_equal(each->desc.get(), needed) != 0) return each;
  }
  dnnl_primitive_desc_t made_desc = nullptr;
  onednn.reorder_primitive_desc_create(&made_desc, given, onednn.engine, needed, onednn.engine,
                                       /*attr=*/nullptr);
  const OneDnnPtr<dnnl_primitive_desc> desc(made_desc);
  const OneDnnPtr<dnnl_primitive> reorder = MakePrimitive(made_desc);
  if (reorder == nullptr) return nullptr;
  auto filter = std::make_shared<Filter>();
  const auto bytes = static_cast<int64_t>(onednn.memory_desc_get_size_v2(needed, /*index=*/0));
  if (!context->allocate_temp(tensorflow::DT_UINT8, TensorShape({bytes}), &filter->bytes).ok()) {
    return nullptr;
  }
  const OneDnnPtr<dnnl_memory> from = MakeMemory(given, context->input(1).data());
  filter->memory = MakeMemory(needed, filter->bytes.data());
  dnnl_memory_desc_t made_copy = nullptr;
  onednn.memory_desc_clone(&made_copy, needed);
  filter->desc.reset(made_copy);
  const std::array<dnnl_exec_arg_t, 2> arguments = {
      {{DNNL_ARG_FROM, from.get()}, {DNNL_ARG_TO, filter->memory.get()}}};
  if (onednn.primitive_execute(reorder.get(), stream, arguments.size(), arguments.data()) !=
      dnnl_success) {
    return nullptr;
  }
  filters_.push_back(filter);
  return filter;
}

}  // namespace tf_interop
