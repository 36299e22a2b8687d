// What runs an operation graph: an engine with its knobs, compiled by cuDNN.
#ifndef TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_
#define TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/backend_descriptor.h"
#include "cc_kernels/core/cudnn/cudnn_graph.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The device memory bound to a tensor of the graph.
using TensorBinding = std::pair<int64_t, void*>;

// Immutable and thread-safe. It owns the graph it runs. It may be executed with any handle of the
// device that it was made for, and the handle it was made with must stay alive.
class ExecutionPlan {
 public:
  ExecutionPlan(const CudnnLibrary& library, std::shared_ptr<const OperationGraph> graph)
      : library_(library), graph_(std::move(graph)) {}

  // Compiles the plan; to be called once, before anything else.
  Status Build(cudnnHandle_t handle, BackendDescriptor config);

  // What cuDNN says that it will run, which need not be what was asked for.
  const EngineTag& engine() const { return engine_; }
  size_t workspace_bytes() const { return workspace_bytes_; }

  // Enqueues the plan on the handle's stream.
  Status Execute(cudnnHandle_t handle, const std::vector<TensorBinding>& bindings,
                 void* workspace) const;

 private:
  const CudnnLibrary& library_;
  std::shared_ptr<const OperationGraph> graph_;
  BackendDescriptor config_;
  BackendDescriptor plan_;
  EngineTag engine_;
  size_t workspace_bytes_ = 0;
  // cuDNN allows one handle per thread, but not for all engines one plan on two threads at once
  // (PyTorch keeps a plan per thread for this reason). Enqueueing takes microseconds, and what is
  // enqueued still runs at the same time.
  mutable std::mutex execute_mutex_;
};

// Which plans are good enough.
struct PlanRequest {
  // Whether engines may round float operands to TF32 or less.
  bool allow_reduced_precision = true;
  // Whether cuDNN's learned heuristic covers the graph: it knows plain convolutions alone, neither
  // grouped nor dilated nor pointwise ones.
  bool use_learned_heuristic = false;
  // The most that the plan's workspace may hold.
  size_t workspace_limit_bytes = 0;
  // Takes the plan with the smallest workspace, whatever the limit.
  bool wants_least_workspace = false;
};

// The first plan in the order of cuDNN's heuristics that compiles and fits the request. Returns
// kUnsupported where there is none, kResourceExhausted where memory is what was missing.
Status ChoosePlan(const CudnnLibrary& library, cudnnHandle_t handle,
                  const std::shared_ptr<const OperationGraph>& graph, const PlanRequest& request,
                  std::unique_ptr<const ExecutionPlan>* plan);

// The plan of one engine. Returns kUnsupported where it cannot run the graph, does not fit the
// request, or does not take a knob's value: cuDNN drops knobs that an engine does not know without
// a word, and what runs then is not what was measured.
Status PinPlan(const CudnnLibrary& library, cudnnHandle_t handle,
               const std::shared_ptr<const OperationGraph>& graph, const EngineTag& engine,
               const PlanRequest& request, std::unique_ptr<const ExecutionPlan>* plan);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_EXECUTION_PLAN_H_
