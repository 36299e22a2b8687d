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
    // Creates the backend's first cuDNN handle before the first step's tensors take its memory.
    // Compute reports a failure.
    const auto* info = context->device()->tensorflow_accelerator_device_info();
    Backend* backend = nullptr;
    if (info != nullptr && info->stream != nullptr) {
      (void)FindCudnnBackend(CudaStream(info->stream), &backend);
    }
  }

  // Enqueues the stage and returns. This frees workspaces, but TensorFlow reuses their memory only
  // for work on the same stream, after the join.
  void Compute(OpKernelContext* context) override {
    const CountingFor counting(node_.counts());
    StageTrace trace(*this);
    // TensorFlow orders this op by this stream.
    const CUstream stream = CudaStream(context->op_device_context()->stream());
    Backend* backend = nullptr;
    OP_REQUIRES_OK(context, ToAbslStatus(FindCudnnBackend(stream, &backend)));
    StageCall call(&node_, context, backend);
    OP_REQUIRES_OK(context, call.Prepare(stream));
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
