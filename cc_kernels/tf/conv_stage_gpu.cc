// ConvStage on a GPU, over the cudnn backend.
#include <cuda.h>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/cudnn/backend.h"
#include "cc_kernels/tf/stage_call.h"
#include "cc_kernels/tf/stage_trace.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;

CUstream CudaStream(stream_executor::Stream* stream) {
  return static_cast<CUstream>(stream->platform_specific_handle().stream);
}

class ConvStageGpu : public tensorflow::OpKernel {
 public:
  explicit ConvStageGpu(tensorflow::OpKernelConstruction* context)
      : OpKernel(context), node_(context) {
    // Before the first step's tensors take the memory that a backend's first cuDNN handle needs. A
    // failure is found again by Compute.
    const auto* info = context->device()->tensorflow_accelerator_device_info();
    Backend* backend = nullptr;
    if (info != nullptr && info->stream != nullptr) {
      (void)FindCudnnBackend(CudaStream(info->stream), &backend);
    }
  }

  // Enqueues the stage and returns. Workspaces are freed on return: TensorFlow hands them out again
  // only to work that comes after the join on the same stream.
  void Compute(OpKernelContext* context) override {
    const CountingFor counting(node_.counted_device());
    StageTrace trace(*this);
    // The one that TensorFlow orders this op by.
    const CUstream stream = CudaStream(context->op_device_context()->stream());
    Backend* backend = nullptr;
    OP_REQUIRES_OK(context, ToAbslStatus(FindCudnnBackend(stream, &backend)));
    StageCall call(&node_, context, backend);
    OP_REQUIRES_OK(context, call.Prepare());
    trace.Describe(call);
    OP_REQUIRES_OK(context,
                   call.runs_stock() ? call.RunStock(stream) : ToAbslStatus(call.Enqueue(stream)));
  }

 private:
  StageNode node_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfInterop>ConvStage").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"), ConvStageGpu);

}  // namespace
}  // namespace tf_interop
