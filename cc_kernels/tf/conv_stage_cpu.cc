// ConvStage on the CPU, over the host backend.
#include <memory>
#include <utility>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/host/backend.h"
#include "cc_kernels/core/host/stream.h"
#include "cc_kernels/tf/stage_call.h"
#include "cc_kernels/tf/stage_trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;

// Never destroyed: stages may run until the end of the process.
HostBackend* TheBackend() {
  static auto* const backend = new HostBackend();
  return backend;
}

// Asynchronous, so that a stage does not occupy one of TensorFlow's threads while it runs. Stock
// kernels do, as in the graph.
class ConvStageCpu : public tensorflow::AsyncOpKernel {
 public:
  explicit ConvStageCpu(tensorflow::OpKernelConstruction* context)
      : AsyncOpKernel(context), node_(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    bool is_enqueued = false;
    const absl::Status status = Run(context, done, &is_enqueued);
    if (is_enqueued) return;
    // TensorFlow may run the next op inside this call, so the stage must be over.
    if (!status.ok()) context->SetStatus(status);
    done();
  }

 private:
  // Runs the stage, or enqueues it and then `done`.
  absl::Status Run(OpKernelContext* context, const DoneCallback& done, bool* is_enqueued) {
    const CountingFor counting(node_.counts());
    StageTrace trace(*this);
    HostBackend* const backend = TheBackend();
    auto call = std::make_shared<StageCall>(&node_, context, backend);
    TF_RETURN_IF_ERROR(call->Prepare(/*caller=*/nullptr));
    trace.Describe(*call);
    if (call->runs_stock()) return call->RunStock(/*caller=*/nullptr);
    std::unique_ptr<StreamGroup> acquired;
    TF_RETURN_IF_ERROR(ToAbslStatus(backend->Acquire(/*priority=*/0, &acquired)));
    // Shared, because std::function must be copyable.
    const auto caller = std::make_shared<std::unique_ptr<StreamGroup>>(std::move(acquired));
    auto* const stream = static_cast<HostStream*>((*caller)->stream);
    const Status launched = call->Enqueue(stream);
    *is_enqueued = true;
    stream->Enqueue([=, call = std::move(call)]() mutable {
      Status status = launched;
      status.Update(stream->TakeError());
      call->MarkComplete();
      call.reset();  // frees workspaces before TensorFlow learns that the op is done
      if (!status.ok()) context->SetStatus(ToAbslStatus(status));
      // TensorFlow may run the next op inside this call, even another stage, which must not get
      // this stream while its thread is busy.
      done();
      backend->Release(std::move(*caller));
    });
    return absl::OkStatus();
  }

  StageNode node_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>ConvStage").Device(tensorflow::DEVICE_CPU), ConvStageCpu);

}  // namespace
}  // namespace tf_interop
