// ConvStage on the CPU, over the host backend.
#define EIGEN_USE_THREADS

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/host/host_backend.h"
#include "cc_kernels/core/host/host_stream.h"
#include "cc_kernels/core/lock_free.h"
#include "cc_kernels/tf/stage_call.h"
#include "cc_kernels/tf/stage_trace.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
// So much that each of the host backend's workers gets a task of its own.
constexpr double kCyclesPerWorker = 1e9;

// The backend that spreads its work over `device`, the threads of a CPU device for work inside an
// op. CPU devices live until the process ends, and so do their backends.
HostBackend* BackendFor(const Eigen::ThreadPoolDevice* device) {
  static auto* const backends = new GrowingList<const Eigen::ThreadPoolDevice*, HostBackend*>();
  if (HostBackend* const* known = backends->Find(device)) return *known;
  static auto* const mutex = new std::mutex();
  std::lock_guard<std::mutex> lock(*mutex);
  if (HostBackend* const* known = backends->Find(device)) return *known;
  auto* const backend = new HostBackend([device](int count, const std::function<void(int)>& work) {
    device->parallelFor(count, Eigen::TensorOpCost(0, 0, kCyclesPerWorker),
                        [&work](Eigen::Index begin, Eigen::Index end) {
                          for (Eigen::Index i = begin; i < end; ++i) work(static_cast<int>(i));
                        });
  });
  backends->Add(device, backend);
  return backend;
}

// An error of work on the lanes, which does not say where it comes from, with the convolutions that
// it may come from.
Status AmongSteps(const PreparedStage& stage, const Status& status) {
  if (status.ok()) return status;
  std::string steps;
  for (const PreparedStep& step : stage.steps) {
    steps += (steps.empty() ? "'" : ", '") + step.name + "'";
    if (step.convolution) steps += " with algorithm " + step.convolution->algorithm();
  }
  return Status(status.code(), "One of the convolutions " + steps + ": " + status.message());
}

// Asynchronous, so that a stage does not hold one of TensorFlow's threads while it runs. Without a
// plan it does, as the ops that it stands for would.
class ConvStageCpu : public tensorflow::AsyncOpKernel {
 public:
  explicit ConvStageCpu(tensorflow::OpKernelConstruction* context)
      : AsyncOpKernel(context), node_(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    bool is_enqueued = false;
    const absl::Status status = Run(context, done, &is_enqueued);
    if (is_enqueued) return;
    // TensorFlow may run what comes next inside this call: nothing of the stage's is left by now.
    if (!status.ok()) context->SetStatus(status);
    done();
  }

 private:
  // Runs the stage, or enqueues it with `done` at its end.
  absl::Status Run(OpKernelContext* context, const DoneCallback& done, bool* is_enqueued) {
    const CountingFor counting(node_.counted_device());
    StageTrace trace(*this);
    HostBackend* const backend = BackendFor(&context->eigen_cpu_device());
    auto call = std::make_shared<StageCall>(&node_, context, backend);
    TF_RETURN_IF_ERROR(call->Prepare());
    trace.Describe(*call);
    if (call->runs_stock()) return call->RunStock(/*caller=*/nullptr);
    std::unique_ptr<StreamGroup> acquired;
    TF_RETURN_IF_ERROR(ToAbslStatus(backend->Acquire(&acquired)));
    // Shared because std::function has to be copyable, and with this function: a stream without a
    // thread, which runs the work inside its Enqueue, has to be there when that returns.
    const auto caller = std::make_shared<std::unique_ptr<StreamGroup>>(std::move(acquired));
    auto* const stream = static_cast<HostStream*>((*caller)->stream());
    const Status launched = call->Enqueue(stream);
    *is_enqueued = true;
    stream->Enqueue([=, call = std::move(call)]() mutable {
      Status status = launched;
      status.Update(AmongSteps(call->prepared(), stream->TakeError()));
      call->MarkComplete();
      call.reset();  // workspaces go before TensorFlow hears that the op is done
      if (!status.ok()) context->SetStatus(ToAbslStatus(status));
      // TensorFlow may run what comes next, another stage too, inside this call: the stream must
      // not be handed out before its thread is free.
      done();
      if (stream->has_thread()) backend->Release(std::move(*caller));
      return Status::Ok();
    });
    return absl::OkStatus();
  }

  StageNode node_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>ConvStage").Device(tensorflow::DEVICE_CPU), ConvStageCpu);

}  // namespace
}  // namespace tf_interop
