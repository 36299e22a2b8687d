// ConvStage on a GPU, over the cudnn backend.
#include <cuda.h>

#include <string>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/cudnn/cudnn_backend.h"
#include "cc_kernels/tf/constant_filters.h"
#include "cc_kernels/tf/conv_stage_base.h"
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
      : OpKernel(context), device_(ShortDeviceName(context)) {
    OP_REQUIRES_OK(context, GetStageProgram(context, &program_));
  }

  // Enqueues the stage and returns. Workspaces are freed on return: TensorFlow hands them out again
  // only to work behind the join on the same stream.
  void Compute(OpKernelContext* context) override {
    const CountingFor counting(device_);
    StageTrace trace(*this);
    const CUstream stream = CudaStream(context);
    CudnnBackend* backend = nullptr;
    OP_REQUIRES_OK(context, ToAbslStatus(CudnnBackend::ForStream(stream, &backend)));
    StageCall call;
    OP_REQUIRES_OK(context, MakeStageCall(context, program_, backend, &filters_, &call));
    trace.Describe(program_, call);
    BindConstantFilters(context, program_, backend, stream, &filters_, &call);
    OP_REQUIRES_OK(context, ToAbslStatus(RunStageCall(context, backend, stream, &call)));
  }

 private:
  const std::string device_;
  StageProgram program_;
  TransformedFilters filters_;
};

REGISTER_KERNEL_BUILDER(
    Name("TfInterop>ConvStage").Device(tensorflow::DEVICE_GPU).HostMemory("sizes"), ConvStageGpu);

}  // namespace
}  // namespace tf_interop
