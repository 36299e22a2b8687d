#include "cc_kernels/xla/stock_call.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/primitive_cache.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "cc_kernels/xla/host_device.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/public/version.h"
#include "tsl/platform/denormal.h"
#include "xla/ffi/api/c_api_internal.h"
#include "xla/ffi/api/ffi.h"
#include "xla/shape_util.h"
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

constexpr char kTarget[] = "tf_interop_stock_kernel";

std::atomic<int64_t> call_count = 0;

// Memory of XLA's.
class BorrowedBuffer : public tensorflow::TensorBuffer {
 public:
  BorrowedBuffer(void* data, size_t size) : TensorBuffer(data), size_(size) {}

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription*) const override {}
  bool OwnsMemory() const override { return false; }

 private:
  const size_t size_;
};

// Gives XLA's memory of a result to the kernel that allocates it.
class ResultAllocator : public tensorflow::Allocator {
 public:
  ResultAllocator(void* data, size_t size) : data_(data), size_(size) {}

  std::string Name() override { return "tf_interop_xla_result"; }
  void* AllocateRaw(size_t alignment, size_t size) override {
    const bool is_aligned = reinterpret_cast<uintptr_t>(data_) % alignment == 0;
    if (is_given_ || size > size_ || !is_aligned) {
      return tensorflow::cpu_allocator()->AllocateRaw(alignment, size);
    }
    is_given_ = true;
    return data_;
  }
  void DeallocateRaw(void* data) override {
    if (data != data_) tensorflow::cpu_allocator()->DeallocateRaw(data);
  }

 private:
  void* const data_;
  const size_t size_;
  bool is_given_ = false;
};

// The device of one call. Memory for the kernel's result is XLA's.
class CallDevice : public NarrowDevice {
 public:
  CallDevice(HostDevice* device, int cores, ResultAllocator* result)
      : NarrowDevice(device, cores), result_(result) {}

  static tensorflow::AllocatorAttributes OfResult() {
    tensorflow::AllocatorAttributes attributes;
    attributes.value = kResult;
    return attributes;
  }

  tensorflow::Allocator* GetAllocator(tensorflow::AllocatorAttributes attributes) override {
    if ((attributes.value & kResult) != 0) return result_;
    return NarrowDevice::GetAllocator(attributes);
  }

 private:
  static constexpr uint32_t kResult = 1u << 24;  // the upper eight bits belong to the device

  ResultAllocator* const result_;
};

// A compiled call.
struct Call {
  static ffi::TypeId id;

  std::unique_ptr<OpKernel> kernel;
  std::vector<tensorflow::DataType> primitive_types;  // see PrimitiveCacheTypes
};
ffi::TypeId Call::id = {};

ffi::Error Internal(const std::string& message) {
  return ffi::Error(ffi::ErrorCode::kInternal, absl::StrCat("tf_interop: ", message));
}

absl::Status MakeKernel(const tensorflow::NodeDef& node, std::unique_ptr<OpKernel>* kernel) {
  return MakeStockKernel(HostDevice::Over(nullptr), TF_GRAPH_DEF_VERSION,
                         /*has_constant_filter=*/false, node, kernel);
}

absl::Status MakeCall(std::string_view hex, Call* call) {
  std::string serialized;
  tensorflow::NodeDef node;
  if (!absl::HexStringToBytes(hex, &serialized) || !node.ParseFromString(serialized)) {
    return absl::InvalidArgumentError("Expected a serialized NodeDef, got other bytes.");
  }
  TF_RETURN_IF_ERROR(MakeKernel(node, &call->kernel));
  // Sizes, of another type, come first.
  call->primitive_types =
      PrimitiveCacheTypes({call->kernel->input_type(call->kernel->num_inputs() - 1)});
  return absl::OkStatus();
}

ffi::ErrorOr<std::unique_ptr<Call>> Instantiate(std::string_view node) {
  auto call = std::make_unique<Call>();
  const absl::Status status = MakeCall(node, call.get());
  if (!status.ok()) return ffi::Unexpected(Internal(std::string(status.message())));
  return call;
}

tensorflow::TensorShape ShapeOf(const ffi::AnyBuffer& buffer) {
  const auto sizes = buffer.dimensions();
  return tensorflow::TensorShape(absl::MakeConstSpan(sizes.begin(), sizes.size()));
}

// Kernels need aligned memory, so other memory is copied.
Tensor TensorOf(const ffi::AnyBuffer& buffer, tensorflow::DataType dtype) {
  auto* const memory = new BorrowedBuffer(buffer.untyped_data(), buffer.size_bytes());
  const Tensor tensor(dtype, ShapeOf(buffer), memory);
  memory->Unref();
  return tensor.IsAligned() ? tensor : tensorflow::tensor::DeepCopy(tensor);
}

ffi::Error Execute(Call* call, const Eigen::ThreadPoolDevice* threads, ffi::RemainingArgs args,
                   ffi::RemainingRets results) {
  ++call_count;
  OpKernel* const kernel = call->kernel.get();
  if (static_cast<int>(args.size()) != kernel->num_inputs() || results.size() != 1) {
    return Internal("Expected the node's inputs and one result.");
  }
  std::vector<Tensor> inputs;
  inputs.reserve(args.size());
  absl::InlinedVector<TensorValue, 4> values;
  for (size_t i = 0; i < args.size(); ++i) {
    inputs.push_back(
        TensorOf(*args.get<ffi::AnyBuffer>(i), kernel->input_type(static_cast<int>(i))));
    values.emplace_back(&inputs.back());
  }
  const ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(0);

  HostDevice* const device = HostDevice::Over(threads);
  ResultAllocator allocator(result.untyped_data(), result.size_bytes());
  // XLA may call from threads of the pool. A group does not wait for a helper that cannot come.
  CallDevice few(device, device->tensorflow_cpu_worker_threads()->num_threads, &allocator);
  const NarrowPrimitives primitives(call->primitive_types, few.cores());
  const tsl::port::ScopedFlushDenormal flush;
  const std::vector<tensorflow::AllocatorAttributes> input_attributes(values.size());
  std::vector<tensorflow::AllocatorAttributes> output_attributes(kernel->num_outputs());
  output_attributes[0] = CallDevice::OfResult();
  tensorflow::OpKernelContext::Params params;
  params.device = &few;
  params.op_kernel = kernel;
  params.inputs = values;
  params.input_alloc_attrs = input_attributes;
  params.output_attr_array = output_attributes.data();
  params.frame_iter = tensorflow::FrameAndIter(0, 0);
  tensorflow::OpKernelContext context(&params, kernel->num_outputs());
  kernel->Compute(&context);
  if (!context.status().ok()) return Internal(std::string(context.status().message()));
  const Tensor& output = *context.mutable_output(0);
  if (output.shape() != ShapeOf(result)) {
    return Internal(absl::StrCat("Expected a result of shape ", ShapeOf(result).DebugString(),
                                 " from '", kernel->name_view(), "', got ",
                                 output.shape().DebugString(), "."));
  }
  if (output.data() != result.untyped_data()) {
    std::memcpy(result.untyped_data(), output.data(), result.size_bytes());
  }
  return ffi::Error::Success();
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
    XLA_FFI_Error* const error =
        api->internal_api->XLA_FFI_INTERNAL_IntraOpThreadPool_Get(context, &pool);
    if (error != nullptr) internal::DestroyError(api, error);  // none, so work stays here
    return static_cast<Type>(pool);
  }
};

namespace tf_interop {
namespace {

XLA_FFI_Error* RunInstantiate(XLA_FFI_CallFrame* frame) {
  static auto* const handler =
      ffi::Ffi::BindInstantiate().Attr<std::string_view>("node").To(Instantiate).release();
  return handler->Call(frame);
}

XLA_FFI_Error* RunExecute(XLA_FFI_CallFrame* frame) {
  static auto* const handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::State<Call>>()
                                   .Ctx<const Eigen::ThreadPoolDevice*>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .To(Execute)
                                   .release();
  return handler->Call(frame);
}

absl::Status Check(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (error == nullptr) return absl::OkStatus();
  const absl::Status status = absl::InternalError(ffi::internal::GetErrorMessage(api, error));
  ffi::internal::DestroyError(api, error);
  return status;
}

absl::Status RegisterHandler() {
  const XLA_FFI_Api* const api = ffi::GetXlaFfiApi();
  static auto* const info = new ffi::TypeInfo(ffi::MakeTypeInfo<Call>());
  TF_RETURN_IF_ERROR(
      Check(api, ffi::Ffi::RegisterTypeId(api, "tf_interop_stock_call", &Call::id, info)));
  const XLA_FFI_Handler_Bundle bundle = {RunInstantiate, /*prepare=*/nullptr,
                                         /*initialize=*/nullptr, RunExecute};
  return Check(api, ffi::Ffi::RegisterStaticHandler(api, kTarget, "Host", bundle));
}

}  // namespace

bool HasStockKernel(const tensorflow::NodeDef& node) {
  std::unique_ptr<OpKernel> kernel;
  return MakeKernel(node, &kernel).ok();
}

absl::StatusOr<xla::XlaOp> CallStockKernel(const tensorflow::NodeDef& node,
                                           absl::Span<const xla::XlaOp> inputs, xla::XlaOp like) {
  static const auto* const registered = new absl::Status(RegisterHandler());
  TF_RETURN_IF_ERROR(*registered);
  xla::XlaBuilder* const builder = like.builder();
  // Row-major, as TensorFlow's kernels read and write.
  const auto shape_of = [&](xla::XlaOp op, xla::Shape* shape) {
    TF_ASSIGN_OR_RETURN(const xla::Shape given, builder->GetShape(op));
    *shape =
        xla::ShapeUtil::MakeShapeWithDescendingLayout(given.element_type(), given.dimensions());
    return absl::OkStatus();
  };
  std::vector<xla::Shape> input_shapes(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    TF_RETURN_IF_ERROR(shape_of(inputs[i], &input_shapes[i]));
  }
  xla::Shape shape;
  TF_RETURN_IF_ERROR(shape_of(like, &shape));
  const std::string config =
      absl::StrCat("{node = \"", absl::BytesToHexString(node.SerializeAsString()), "\"}");
  return xla::CustomCallWithLayout(
      builder, kTarget, inputs, shape, input_shapes, config, /*has_side_effect=*/false,
      /*output_operand_aliasing=*/{}, /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
}

int64_t StockCallCount() { return call_count; }

}  // namespace tf_interop
