#include "cc_kernels/xla/kernel_call.h"

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#ifdef TF_INTEROP_HAS_CUDNN
#include "cc_kernels/core/cudnn/backend.h"
#endif
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/primitive_cache.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "cc_kernels/xla/call_memory.h"
#include "cc_kernels/xla/devices.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/lib/strings/proto_serialization.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/public/version.h"
#include "tensorflow/core/util/determinism.h"
#include "tsl/platform/denormal.h"
#include "xla/ffi/api/c_api_internal.h"
#include "xla/ffi/api/ffi.h"
#include "xla/shape_util.h"
#include "xla/stream_executor/stream.h"
#include "xla/xla_data.pb.h"

namespace xla::ffi {
// Defined in xla/ffi/ffi_api.cc and exported. Its header needs those of MLIR, which TensorFlow does
// not install.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tf_interop {
namespace {

namespace ffi = xla::ffi;
using tensorflow::OpKernel;
using tensorflow::Tensor;
using tensorflow::TensorValue;

constexpr char kTarget[] = "tf_interop_kernel";
// Attributes of the called node.
constexpr char kConstant[] = "_tf_interop_constant_";
constexpr char kHasScratch[] = "_tf_interop_has_scratch";  // its last result is scratch memory

std::atomic<bool> are_on = false;

// The CPU of one call.
class HostCallDevice : public NarrowDevice {
 public:
  HostCallDevice(KernelDevice* device, int cores, const Results* results)
      : NarrowDevice(device, cores), results_(results) {}

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override {
    auto* const of_result = results_->AllocatorOf(attributes);
    return of_result != nullptr ? of_result : NarrowDevice::GetAllocator(attributes);
  }

 private:
  const Results* const results_;
};

// The GPU of one call.
class GpuCallDevice : public tensorflow::DeviceBase {
 public:
  GpuCallDevice(KernelDevice* device, tensorflow::Allocator* scratch, const Results* results)
      : DeviceBase(device->env()), device_(device), scratch_(scratch), results_(results) {}

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override {
    if (attributes.on_host()) return tensorflow::cpu_allocator();
    auto* const of_result = results_->AllocatorOf(attributes);
    return of_result != nullptr ? of_result : scratch_;
  }
  const tensorflow::DeviceAttributes& attributes() const override { return device_->attributes(); }
  const std::string& name() const override { return device_->name(); }
  const std::string& device_type() const override { return device_->device_type(); }

 private:
  KernelDevice* const device_;
  tensorflow::Allocator* const scratch_;
  const Results* const results_;
};

// XLA's stream, for TensorFlow's kernels.
class StreamContext : public tensorflow::DeviceContext {
 public:
  explicit StreamContext(stream_executor::Stream* stream) : stream_(stream) {}

  stream_executor::Stream* stream() const override { return stream_; }

 private:
  stream_executor::Stream* const stream_;
};

ffi::Error Internal(absl::string_view message) {
  return ffi::Error(ffi::ErrorCode::kInternal, absl::StrCat("tf_interop: ", message));
}

absl::Status MakeKernel(tensorflow::DeviceBase* device, const tensorflow::NodeDef& node,
                        std::unique_ptr<OpKernel>* kernel) {
  return MakeStockKernel(device, TF_GRAPH_DEF_VERSION, /*has_constant_filter=*/false, node, kernel);
}

// A compiled call. Thread-safe.
class Call {
 public:
  static ffi::TypeId id;

  static ffi::ErrorOr<std::unique_ptr<Call>> Make(std::string_view hex) {
    std::string serialized;
    auto call = std::make_unique<Call>();
    if (!absl::HexStringToBytes(hex, &serialized) || !call->node_.ParseFromString(serialized)) {
      return ffi::Unexpected(Internal("Expected a serialized NodeDef, got other bytes."));
    }
    call->has_scratch_ = call->node_.attr().count(kHasScratch) > 0;
    for (int i = 0; i < call->node_.input_size(); ++i) {
      const auto constant = call->node_.attr().find(absl::StrCat(kConstant, i));
      auto& tensor = call->constants_.emplace_back();
      if (constant == call->node_.attr().end()) continue;
      if (!tensor.emplace().FromProto(constant->second.tensor())) {
        return ffi::Unexpected(Internal(absl::StrCat("Expected a tensor for input ", i, ".")));
      }
    }
    return call;
  }

  // The kernel on a device, which must live forever.
  absl::Status FindKernel(tensorflow::DeviceBase* device, OpKernel** kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::unique_ptr<OpKernel>& known = kernels_[device];
    if (known == nullptr) TF_RETURN_IF_ERROR(MakeKernel(device, node_, &known));
    *kernel = known.get();
    return absl::OkStatus();
  }

  bool has_scratch() const { return has_scratch_; }

  // The value of an input that was known when the function was compiled; else null.
  const Tensor* constant(int input) const {
    const std::optional<Tensor>& constant = constants_[input];
    return constant.has_value() ? &*constant : nullptr;
  }

 private:
  tensorflow::NodeDef node_;
  bool has_scratch_ = false;
  std::vector<std::optional<Tensor>> constants_;  // by input
  std::mutex mutex_;
  std::map<tensorflow::DeviceBase*, std::unique_ptr<OpKernel>> kernels_;  // guarded
};
ffi::TypeId Call::id = {};

absl::Status TakeInputs(const Call& call, const OpKernel& kernel, ffi::RemainingArgs args,
                        bool is_on_cpu, std::vector<Tensor>* inputs) {
  size_t next = 0;
  for (int i = 0; i < kernel.num_inputs(); ++i) {
    const Tensor* const constant = call.constant(i);
    if (constant == nullptr && next == args.size()) {
      return absl::InternalError(absl::StrCat("Expected ", kernel.num_inputs(), " inputs."));
    }
    inputs->push_back(constant != nullptr
                          ? *constant
                          : TensorOf(*args.get<ffi::AnyBuffer>(next++), kernel.input_type(i)));
    // Kernels need aligned memory.
    if (is_on_cpu && !inputs->back().IsAligned()) {
      inputs->back() = tensorflow::tensor::DeepCopy(inputs->back());
    }
  }
  return absl::OkStatus();
}

ffi::Error GiveBack(const Tensor& output, const OpKernel& kernel, bool is_on_cpu,
                    const ffi::AnyBuffer& result) {
  if (output.shape() != ShapeOf(result)) {
    return Internal(absl::StrCat("Expected a result of shape ", ShapeOf(result).DebugString(),
                                 " from '", kernel.name_view(), "', got ",
                                 output.shape().DebugString(), "."));
  }
  const bool is_there = output.data() == result.untyped_data() || result.size_bytes() == 0;
  if (is_there) return ffi::Error::Success();
  if (!is_on_cpu) {
    return Internal(
        absl::StrCat("Expected '", kernel.name_view(), "' to write its result into XLA's memory."));
  }
  std::memcpy(result.untyped_data(), output.data(), result.size_bytes());
  return ffi::Error::Success();
}

// `device` is that of this call, and `device_context` its stream, or null.
ffi::Error Run(const Call& call, OpKernel* kernel, tensorflow::DeviceBase* device,
               tensorflow::DeviceContext* device_context, ffi::RemainingArgs args,
               const Results& results) {
  ++xla_call_counts.run;
  const bool is_on_cpu = device->device_type() == tensorflow::DEVICE_CPU;
  std::vector<Tensor> inputs;
  const absl::Status status = TakeInputs(call, *kernel, args, is_on_cpu, &inputs);
  if (!status.ok()) return Internal(status.message());
  absl::InlinedVector<TensorValue, 4> values;
  absl::InlinedVector<tensorflow::AllocatorAttributes, 4> input_attributes;
  for (Tensor& input : inputs) {
    const int place = static_cast<int>(values.size());
    input_attributes.emplace_back().set_on_host(call.constant(place) != nullptr);
    values.emplace_back(&input);
  }
  const std::vector<tensorflow::AllocatorAttributes> output_attributes =
      results.Attributes(kernel->num_outputs());
  tensorflow::OpKernelContext::Params params;
  params.device = device;
  params.op_kernel = kernel;
  params.inputs = values;
  params.input_alloc_attrs = input_attributes;
  params.output_attr_array = output_attributes.data();
  params.op_device_context = device_context;
  params.frame_iter = tensorflow::FrameAndIter(0, 0);
  tensorflow::OpKernelContext context(&params, kernel->num_outputs());
  if (tensorflow::AsyncOpKernel* const async = kernel->AsAsync()) {
    absl::Notification done;
    async->ComputeAsync(&context, [&] { done.Notify(); });
    done.WaitForNotification();
  } else {
    kernel->Compute(&context);
  }
  if (!context.status().ok()) return Internal(context.status().message());
  for (size_t i = 0; i < results.size(); ++i) {
    ffi::Error error =
        GiveBack(*context.mutable_output(static_cast<int>(i)), *kernel, is_on_cpu, results[i]);
    if (error.failure()) return error;
  }
  return ffi::Error::Success();
}

ffi::Error ExecuteOnHost(Call* call, const Eigen::ThreadPoolDevice* threads,
                         ffi::RemainingArgs args, ffi::RemainingRets rets,
                         std::string_view /*node*/) {
  OpKernel* kernel = nullptr;
  const absl::Status status = call->FindKernel(KernelDevice::OverThreads(nullptr), &kernel);
  if (!status.ok()) return Internal(status.message());
  KernelDevice* const device = KernelDevice::OverThreads(threads);
  const Results results(rets, rets.size(), tensorflow::cpu_allocator());
  // XLA may call from threads of the pool. A group does not wait for a helper that cannot come.
  // How many cores are left depends on other calls, and so do the bits of a filter's gradient.
  const int cores = tensorflow::OpDeterminismRequired()
                        ? 1
                        : device->tensorflow_cpu_worker_threads()->num_threads;
  HostCallDevice awake(device, cores, &results);
  // Sizes, of another type, are constants.
  const auto types = PrimitiveCacheTypes({kernel->output_type(0)});
  const NarrowPrimitives primitives(types, awake.cores());
  const tsl::port::ScopedFlushDenormal flush;
  return Run(*call, kernel, &awake, /*device_context=*/nullptr, args, results);
}

ffi::Error ExecuteOnGpu(Call* call, stream_executor::Stream* stream, int32_t number,
                        DeviceMemory device_memory, ffi::RemainingArgs args,
                        ffi::RemainingRets rets, std::string_view /*node*/) {
  KernelDevice* const device = KernelDevice::OfGpu(number);
  OpKernel* kernel = nullptr;
  const absl::Status status = call->FindKernel(device, &kernel);
  if (!status.ok()) return Internal(status.message());
  bool may_grow = true;
#ifdef TF_INTEROP_HAS_CUDNN
  // XLA frees what a call allocates when the capture ends, and the graph runs later.
  const CaptureScope capture(static_cast<CUstream_st*>(stream->platform_specific_handle().stream));
  may_grow = !capture.is_capturing();
#endif
  const size_t count = rets.size() - (call->has_scratch() ? 1 : 0);
  void* buffer = nullptr;
  size_t bytes = 0;
  if (call->has_scratch()) {
    const ffi::AnyBuffer scratch = **rets.get<ffi::AnyBuffer>(count);
    buffer = scratch.untyped_data();
    bytes = scratch.size_bytes();
  }
  ScratchMemory memory(device_memory, buffer, bytes, may_grow);
  const Results results(rets, count, &memory);
  GpuCallDevice of_call(device, &memory, &results);
  const tensorflow::core::RefCountPtr<StreamContext> context(new StreamContext(stream));
  return Run(*call, kernel, &of_call, context.get(), args, results);
}

}  // namespace
}  // namespace tf_interop

namespace tf_interop {
namespace {

// Calls a function of XLA's internal interface. TensorFlow 2.20's return the value itself.
template <typename Get>
XLA_FFI_Error* GetInternal(Get* get, XLA_FFI_ExecutionContext* context, void** value) {
  if constexpr (std::is_invocable_v<Get*, XLA_FFI_ExecutionContext*, void**>) {
    return get(context, value);
  } else {
    *value = get(context);
    return nullptr;
  }
}

}  // namespace
}  // namespace tf_interop

// XLA's pool. What the public interface gives is valid only during the call, and a group's helpers
// may come later.
template <>
struct xla::ffi::CtxDecoding<const Eigen::ThreadPoolDevice*> {
  using Type = const Eigen::ThreadPoolDevice*;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                    DiagnosticEngine&) {
    void* pool = nullptr;
    XLA_FFI_Error* const error = tf_interop::GetInternal(
        api->internal_api->XLA_FFI_INTERNAL_IntraOpThreadPool_Get, context, &pool);
    if (error != nullptr) internal::DestroyError(api, error);  // none, so work stays here
    return static_cast<Type>(pool);
  }
};

// XLA's stream as StreamExecutor's, which TensorFlow's kernels take.
template <>
struct xla::ffi::CtxDecoding<stream_executor::Stream*> {
  using Type = stream_executor::Stream*;

  static std::optional<Type> Decode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                    DiagnosticEngine& diagnostic) {
    void* stream = nullptr;
    XLA_FFI_Error* const error =
        tf_interop::GetInternal(api->internal_api->XLA_FFI_INTERNAL_Stream_Get, context, &stream);
    if (error == nullptr) return static_cast<Type>(stream);
    diagnostic.Emit("Failed to get the stream: ") << internal::GetErrorMessage(api, error);
    internal::DestroyError(api, error);
    return std::nullopt;
  }
};

namespace tf_interop {
namespace {

XLA_FFI_Error* Instantiate(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      ffi::Ffi::BindInstantiate().Attr<std::string_view>("node").To(Call::Make).release();
  return handler->Call(frame);
}

// TensorFlow 2.20 wants a handler to take all attributes, also those that `Instantiate` has read.
XLA_FFI_Error* HandleOnHost(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::State<Call>>()
                                   .Ctx<const Eigen::ThreadPoolDevice*>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .Attr<std::string_view>("node")
                                   .To(ExecuteOnHost)
                                   .release();
  return handler->Call(frame);
}

XLA_FFI_Error* HandleOnGpu(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::State<Call>>()
                                   .Ctx<stream_executor::Stream*>()
                                   .Ctx<ffi::DeviceOrdinal>()
                                   .Ctx<DeviceMemory>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .Attr<std::string_view>("node")
                                   .To(ExecuteOnGpu)
                                   .release();
  return handler->Call(frame);
}

absl::Status Check(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (error == nullptr) return absl::OkStatus();
  const absl::Status status = absl::InternalError(ffi::internal::GetErrorMessage(api, error));
  ffi::internal::DestroyError(api, error);
  return status;
}

absl::Status RegisterHandlers() {
  const XLA_FFI_Api* const api = ffi::GetXlaFfiApi();
  constexpr char kType[] = "tf_interop_kernel_call";
#if TF_GRAPH_DEF_VERSION <= 2288  // TensorFlow 2.20
  TF_RETURN_IF_ERROR(Check(api, ffi::Ffi::RegisterTypeId(api, kType, &Call::id)));
#else
  static auto* const info = new ffi::TypeInfo(ffi::MakeTypeInfo<Call>());
  TF_RETURN_IF_ERROR(Check(api, ffi::Ffi::RegisterTypeId(api, kType, &Call::id, info)));
#endif
  const auto add = [api](const char* platform, XLA_FFI_Handler* handle,
                         XLA_FFI_Handler_Traits traits) {
    const XLA_FFI_Handler_Bundle bundle = {Instantiate, /*prepare=*/nullptr,
                                           /*initialize=*/nullptr, handle};
    return Check(api, ffi::Ffi::RegisterStaticHandler(api, kTarget, platform, bundle, traits));
  };
  TF_RETURN_IF_ERROR(add("Host", HandleOnHost, 0));
  return add("CUDA", HandleOnGpu, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
}

// Row-major, as TensorFlow's kernels read and write.
absl::Status RowMajorShapeOf(xla::XlaOp op, std::vector<xla::Shape>* shapes) {
  TF_ASSIGN_OR_RETURN(const xla::Shape shape, op.builder()->GetShape(op));
  shapes->push_back(
      xla::ShapeUtil::MakeShapeWithDescendingLayout(shape.element_type(), shape.dimensions()));
  return absl::OkStatus();
}

}  // namespace

void SetXlaCalls(bool are_now_on) { are_on = are_now_on; }

bool AreXlaCallsOn() { return are_on; }

bool HasKernel(const std::string& device_type, const tensorflow::NodeDef& node) {
  std::unique_ptr<OpKernel> kernel;
  if (device_type == tensorflow::DEVICE_CPU) {
    return MakeKernel(KernelDevice::OverThreads(nullptr), node, &kernel).ok();
  }
  return tensorflow::KernelDefAvailable(tensorflow::DeviceType(device_type), node);
}

absl::StatusOr<std::vector<CallInput>> ReadInputs(tensorflow::XlaOpKernelContext* context) {
  std::vector<CallInput> inputs;
  for (int i = 0; i < context->num_inputs(); ++i) {
    if (context->input_type(i) != tensorflow::DT_INT32) {
      inputs.push_back({context->Input(i)});
      continue;
    }
    TF_ASSIGN_OR_RETURN(tensorflow::Tensor sizes, context->ConstantInputTensor(i));
    inputs.push_back({xla::XlaOp(), std::move(sizes)});
  }
  return inputs;
}

absl::StatusOr<std::vector<xla::XlaOp>> CallKernel(const tensorflow::NodeDef& node,
                                                   absl::Span<const CallInput> inputs,
                                                   absl::Span<const xla::XlaOp> like,
                                                   size_t scratch_bytes) {
  static const auto* const registered = new absl::Status(RegisterHandlers());
  TF_RETURN_IF_ERROR(*registered);
  tensorflow::NodeDef called = node;
  called.clear_input();
  std::vector<xla::XlaOp> operands;
  std::vector<xla::Shape> operand_shapes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    called.add_input(absl::StrCat("inputs:", i));
    const std::optional<Tensor>& constant = inputs[i].constant;
    if (constant.has_value()) {
      constant->AsProtoTensorContent(
          (*called.mutable_attr())[absl::StrCat(kConstant, i)].mutable_tensor());
    } else {
      operands.push_back(inputs[i].op);
      TF_RETURN_IF_ERROR(RowMajorShapeOf(inputs[i].op, &operand_shapes));
    }
  }
  std::vector<xla::Shape> shapes;
  for (const xla::XlaOp each : like) TF_RETURN_IF_ERROR(RowMajorShapeOf(each, &shapes));
  if (scratch_bytes > 0) {
    (*called.mutable_attr())[kHasScratch].set_b(true);
    shapes.push_back(xla::ShapeUtil::MakeShape(xla::U8, {static_cast<int64_t>(scratch_bytes)}));
  }
  const bool is_one = shapes.size() == 1;
  // XLA's persistent cache finds a program by its text.
  std::string serialized;
  if (!tensorflow::SerializeToStringDeterministic(called, &serialized)) {
    return absl::InternalError(absl::StrCat("'", node.name(), "' cannot be serialized."));
  }
  const std::string config = absl::StrCat("{node = \"", absl::BytesToHexString(serialized), "\"}");
  const xla::XlaOp call = xla::CustomCallWithLayout(
      like[0].builder(), kTarget, operands,
      is_one ? shapes[0] : xla::ShapeUtil::MakeTupleShape(shapes), operand_shapes, config,
      /*has_side_effect=*/false, /*output_operand_aliasing=*/{}, /*literal=*/nullptr,
      xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  if (is_one) return std::vector<xla::XlaOp>{call};
  std::vector<xla::XlaOp> results;
  for (size_t i = 0; i < like.size(); ++i) {
    results.push_back(xla::GetTupleElement(call, static_cast<int64_t>(i)));
  }
  return results;
}

}  // namespace tf_interop
