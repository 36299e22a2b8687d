// ConvStage on a GPU, over the cudnn backend.
#include <cuda.h>

#include <mutex>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "cc_kernels/core/lock_free.h"
#include "cc_kernels/tf/stage_call.h"
#include "cc_kernels/tf/stage_trace.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;

// The CUstream that TensorFlow orders this op by.
CUstream CudaStream(OpKernelContext* context) {
  return static_cast<CUstream>(
      context->op_device_context()->stream()->platform_specific_handle().stream);
}

class ConvStageGpu : public tensorflow::OpKernel {
 public:
  explicit ConvStageGpu(tensorflow::OpKernelConstruction* context)
      : OpKernel(context), node_(context) {}

  // Enqueues the stage and returns. Workspaces are freed on return: TensorFlow hands them out again
  // only to work that comes after the join on the same stream.
  void Compute(OpKernelContext* context) override {
    const CountingFor counting(node_.counted_device());
    StageTrace trace(*this);
    const CUstream stream = CudaStream(context);
    CudnnBackend* backend = nullptr;
    OP_REQUIRES_OK(context, ToAbslStatus(BackendFor(stream, &backend)));
    StageCall call(&node_, context, backend);
    OP_REQUIRES_OK(context, call.Prepare());
    trace.Describe(call);
    OP_REQUIRES_OK(context,
                   call.runs_stock() ? call.RunStock(stream) : ToAbslStatus(call.Enqueue(stream)));
  }

 private:
  // TensorFlow's streams, of which a device has one, live until the process ends.
  Status BackendFor(CUstream stream, CudnnBackend** backend) {
    if (CudnnBackend* const* known = backends_.Find(stream)) {
      *backend = *known;
      return Status::Ok();
    }
    TF_INTEROP_RETURN_IF_ERROR(CudnnBackend::ForStream(stream, backend));
    std::lock_guard<std::mutex> lock(mutex_);
    if (backends_.Find(stream) == nullptr) backends_.Add(stream, *backend);
    return Status::Ok();
  }

  StageNode node_;
  std::mutex mutex_;  // of whoever adds to:
  GrowingList<CUstream, CudnnBackend*> backends_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfInterop>ConvStage").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"), ConvStageGpu);

}  // namespace
}  // namespace tf_interop
