// Calls the handler of cc_kernels/xla/kernel_call.cc for GPUs as XLA does, over the stand-ins for
// libcuda and libcudnn. gpu_call_test.py builds this and calls it.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cc_kernels/core/cudnn/libraries.h"
#include "tests/cc/fake_cuda.h"
#include "tests/cc/fake_cudnn.h"
#include "xla/ffi/api/c_api.h"
#include "xla/stream_executor/device_address_allocator.h"
#include "xla/stream_executor/stream.h"

// The next header needs only pointers to this class, whose own header takes ten seconds.
#define XLA_HLO_IR_HLO_COMPUTATION_H_
namespace xla {
class HloComputation;
}  // namespace xla
#include "xla/ffi/ffi_structs.h"

namespace xla::ffi {
// Defined in xla/ffi/ffi_api.cc and exported. Their header needs those of MLIR.
struct HandlerRegistration {
  XLA_FFI_Metadata metadata;
  XLA_FFI_Handler_Bundle bundle;
};
absl::StatusOr<HandlerRegistration> FindHandler(absl::string_view name, absl::string_view platform);
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace {

namespace se = stream_executor;
using Address = se::DeviceAddressBase;

// A function of the stand-in. TensorFlow has functions of the same names.
#define CUDA(function) Find<decltype(&function)>(TF_INTEROP_NAME(function))
template <typename Function>
Function Find(const char* name) {
  static void* const cuda = dlopen(std::getenv("TF_INTEROP_LIBCUDA"), RTLD_NOW);
  return reinterpret_cast<Function>(dlsym(cuda, name));
}

absl::Status Fail() { return absl::UnimplementedError("no call of ours"); }

// A stream of the stand-in, which has only its handle.
class HandleStream : public se::Stream {
 public:
  explicit HandleStream(CUstream stream) : stream_(stream) {}

  PlatformSpecificHandle platform_specific_handle() const override { return {stream_}; }
  bool ok() const override { return true; }
  absl::StatusOr<Stream*> GetOrCreateSubStream() override { return Fail(); }
  void ReturnSubStream(Stream*) override {}
  absl::Status WaitFor(Stream*) override { return Fail(); }
  absl::Status WaitFor(se::Event*) override { return Fail(); }
  absl::Status RecordEvent(se::Event*) override { return Fail(); }
  absl::Status Memcpy(void*, const Address&, uint64_t) override { return Fail(); }
  absl::Status Memcpy(Address*, const void*, uint64_t) override { return Fail(); }
  absl::Status BlockHostUntilDone() override { return Fail(); }
  absl::Status DoHostCallbackWithStatus(absl::AnyInvocable<absl::Status() &&>) override {
    return Fail();
  }
  se::StreamExecutor* parent() const override { return nullptr; }
  se::CudaComputeCapability GetCudaComputeCapability() const override { return {}; }
  se::RocmComputeCapability GetRocmComputeCapability() const override { return {}; }
  se::OneAPIComputeCapability GetOneAPIComputeCapability() const override { return {}; }
  std::variant<se::StreamPriority, int> priority() const override { return 0; }
  const std::string& GetName() const override { return name_; }
  void SetName(std::string name) override { name_ = std::move(name); }

 private:
  const CUstream stream_;
  std::string name_;
};

// As XLA's, aligns to 256 bytes, and gives freed memory away for later work on the stream.
class StreamAllocator : public se::DeviceAddressAllocator {
 public:
  StreamAllocator(CUstream stream, int64_t limit)
      : DeviceAddressAllocator(nullptr), stream_(stream), limit_(limit) {}

  absl::StatusOr<se::ScopedDeviceAddress<uint8_t>> Allocate(int device, uint64_t size, bool,
                                                            int64_t) override {
    if (static_cast<int64_t>(size) > limit_) return absl::ResourceExhaustedError("no memory");
    const uint64_t rounded = (std::max<uint64_t>(size, 1) + 255) / 256 * 256;
    void* const data = std::aligned_alloc(256, rounded);
    std::memset(data, 0xff, rounded);  // no numbers
    ++allocated;
    return se::ScopedDeviceAddress<uint8_t>(Address(data, size), device, this);
  }
  absl::Status Deallocate(int, Address memory) override {
    ++freed;
    tf_interop::FakeCudaEnqueue(stream_, [memory] {
      std::memset(memory.opaque(), 0xff, memory.size());
      std::free(memory.opaque());
    });
    return absl::OkStatus();
  }
  absl::StatusOr<se::Stream*> GetStream(int) override { return Fail(); }

  int64_t allocated = 0, freed = 0;

 private:
  const CUstream stream_;
  const int64_t limit_;
};

// Calls with one attribute, `node`, and the context.
std::string CallHandler(XLA_FFI_Handler* handler, XLA_FFI_ExecutionStage stage,
                        XLA_FFI_ExecutionContext* context, const std::string& node,
                        std::vector<XLA_FFI_Buffer>* args, std::vector<XLA_FFI_Buffer>* rets) {
  XLA_FFI_ByteSpan name = {"node", 4}, value = {node.data(), node.size()};
  XLA_FFI_ByteSpan* names[] = {&name};
  void* attrs[] = {&value};
  XLA_FFI_AttrType attr_types[] = {XLA_FFI_AttrType_STRING};
  std::vector<XLA_FFI_ArgType> arg_types(args->size(), XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(rets->size(), XLA_FFI_RetType_BUFFER);
  std::vector<void*> arg_buffers, ret_buffers;
  for (XLA_FFI_Buffer& each : *args) arg_buffers.push_back(&each);
  for (XLA_FFI_Buffer& each : *rets) ret_buffers.push_back(&each);
  XLA_FFI_CallFrame frame = {};
  frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
  frame.api = xla::ffi::GetXlaFfiApi();
  frame.ctx = context;
  frame.stage = stage;
  frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, static_cast<int64_t>(args->size()),
                arg_types.data(), arg_buffers.data()};
  frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, static_cast<int64_t>(rets->size()),
                ret_types.data(), ret_buffers.data()};
  frame.attrs = {XLA_FFI_Attrs_STRUCT_SIZE, nullptr, 1, attr_types, names, attrs};
  const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
  return error == nullptr ? "" : "error: " + error->status.ToString();
}

// A custom call of a compiled function.
struct CustomCall {
  std::string node;
  XLA_FFI_Handler_Bundle handlers;
  xla::ffi::ExecutionState state;
};

const char* Keep(std::string message) {
  thread_local std::string last;
  last = std::move(message);
  return last.c_str();
}

}  // namespace

extern "C" {

// A tensor of floats.
struct Array {
  float* data;
  int64_t rank;
  int64_t dims[5];
};

struct Run {
  int64_t limit;             // of bytes in one allocation
  int64_t captured;          // whether the call is captured, and its graph launched twice
  int64_t allocated, freed;  // out: when the handler returned
  int64_t is_early;          // out: whether it returned before its work began
};

// Returns an error, or "". The node is in hexadecimal digits.
const char* Instantiate(const char* node, CustomCall** made) {
  const auto found = xla::ffi::FindHandler("tf_interop_kernel", "CUDA");
  if (!found.ok()) return Keep("not registered: " + found.status().ToString());
  if ((found->metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE) == 0) {
    return Keep("XLA would not capture it");
  }
  auto* const call = *made = new CustomCall{node, found->bundle, {}};
  XLA_FFI_ExecutionContext context;
  context.execution_state = &call->state;
  std::vector<XLA_FFI_Buffer> none;
  return Keep(CallHandler(call->handlers.instantiate, XLA_FFI_ExecutionStage_INSTANTIATE, &context,
                          call->node, &none, &none));
}

// Runs on a new stream, and waits for its work. Work on the stream starts when the handler returns,
// or when its graph is launched.
const char* Execute(CustomCall* call, Run* run, int arg_count, Array* args, int ret_count,
                    Array* rets) {
  static const CUcontext device = tf_interop::FakeCudaMakeContext();
  CUstream stream = tf_interop::FakeCudaMakeStream(device);
  if (run->captured != 0) {
    CUDA(cuCtxPushCurrent)(device);
    CUDA(cuStreamCreateWithPriority)(&stream, CU_STREAM_NON_BLOCKING, 0);
  }
  HandleStream handle(stream);
  StreamAllocator allocator(stream, run->limit);
  XLA_FFI_ExecutionContext context;
  context.device_ordinal = 0;
  context.backend_context = XLA_FFI_ExecutionContext::GpuContext{&handle, &allocator};
  context.execution_state = &call->state;
  std::vector<XLA_FFI_Buffer> inputs, results;
  const auto buffer = [](Array& of) -> XLA_FFI_Buffer {
    return {XLA_FFI_Buffer_STRUCT_SIZE, nullptr, XLA_FFI_DataType_F32, of.data, of.rank, of.dims};
  };
  std::transform(args, args + arg_count, std::back_inserter(inputs), buffer);
  std::transform(rets, rets + ret_count, std::back_inserter(results), buffer);
  if (run->captured != 0) {
    CUDA(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    std::string message = CallHandler(call->handlers.execute, XLA_FFI_ExecutionStage_EXECUTE,
                                      &context, call->node, &inputs, &results);
    // Another thread runs the stage before the capture ends.
    std::thread([&] {
      Run plain = {run->limit};
      const std::string of_plain = Execute(call, &plain, arg_count, args, ret_count, rets);
      if (message.empty()) message = of_plain;
    }).join();
    CUgraph graph = nullptr;
    const CUresult end = CUDA(cuStreamEndCapture)(stream, &graph);
    run->allocated = allocator.allocated;
    run->freed = allocator.freed;
    run->is_early = 1;
    CUgraphExec exec = nullptr;
    if (message.empty() && end != CUDA_SUCCESS) message = "the capture failed";
    if (message.empty())
      CUDA(cuGraphInstantiateWithFlags)(&exec, graph,
                                        CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    for (int i = 0; exec != nullptr && i < 2; ++i) {
      for (int j = 0; j < ret_count; ++j) {  // no numbers
        int64_t count = 1;
        for (int d = 0; d < rets[j].rank; ++d) count *= rets[j].dims[d];
        std::memset(rets[j].data, 0xff, count * sizeof(float));
      }
      CUDA(cuGraphLaunch)(exec, stream);
      tf_interop::FakeCudaSynchronize(stream);
    }
    CUcontext outer = nullptr;
    CUDA(cuCtxPopCurrent)(&outer);
    return Keep(std::move(message));
  }
  std::promise<void> returned;
  std::atomic<bool> has_begun = false;
  tf_interop::FakeCudaEnqueue(stream, [&, waiting = returned.get_future().share()] {
    waiting.wait_for(std::chrono::seconds(10));
    has_begun = true;
  });
  std::string message = CallHandler(call->handlers.execute, XLA_FFI_ExecutionStage_EXECUTE,
                                    &context, call->node, &inputs, &results);
  run->is_early = has_begun ? 0 : 1;
  run->allocated = allocator.allocated;
  run->freed = allocator.freed;
  returned.set_value();
  tf_interop::FakeCudaSynchronize(stream);
  return Keep(std::move(message));
}

void Delete(CustomCall* call) { delete call; }

// Whether cuDNN's executions fail from now on.
void SetFailure(int fails) { tf_interop::FakeCudnn().fail_execution = fails != 0; }

}  // extern "C"
