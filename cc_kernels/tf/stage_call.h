// What the kernels of ConvStage for CPU and GPU share: a node's program and what its calls keep,
// and one call of it.
#ifndef TF_INTEROP_TF_STAGE_CALL_H_
#define TF_INTEROP_TF_STAGE_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/status.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/core/transformed_filters.h"
#include "cc_kernels/tf/resolved_stage.h"
#include "cc_kernels/tf/stage_program.h"
#include "cc_kernels/tf/stock_kernels.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

absl::Status ToAbslStatus(const Status& status);

// All numbers that decide what a call resolves to.
using CallSignature = absl::InlinedVector<int64_t, 128>;

// What the calls of one ConvStage kernel share. Thread-safe.
class StageNode {
 public:
  // Reads and checks the attributes; what is wrong with them is the context's status.
  explicit StageNode(tensorflow::OpKernelConstruction* context);

  const CountedDevice& counted_device() const { return counted_device_; }
  bool is_on_cpu() const { return is_on_cpu_; }
  const StageProgram& program() const { return program_; }
  TransformedFilters* filters() { return &filters_; }
  StockKernels* stock_kernels() { return &stock_kernels_; }
  TimelineCalls* timeline_calls() { return &timeline_calls_; }

  // Gives what was resolved and prepared for a call like this one, or resolves and prepares it.
  // A call whose shapes, sizes and switches are known allocates nothing and takes no lock but that
  // of this node.
  absl::Status Resolve(tensorflow::OpKernelContext* context, Backend* backend,
                       std::shared_ptr<const ResolvedStage>* resolved);

 private:
  const CountedDevice counted_device_;
  const bool is_on_cpu_;
  StageProgram program_;
  TransformedFilters filters_;
  StockKernels stock_kernels_;
  TimelineCalls timeline_calls_;
  LruCache<CallSignature, std::shared_ptr<const ResolvedStage>> cache_{8};
};

// One call of a stage: what it runs, on which memory. Tensors in it keep workspaces, results and
// transformed filters alive; it has to live until the caller's stream has run the stage.
class StageCall {
 public:
  // All three have to outlive this.
  StageCall(StageNode* node, tensorflow::OpKernelContext* context, Backend* backend);
  StageCall(const StageCall&) = delete;
  StageCall& operator=(const StageCall&) = delete;

  // Resolves the stage and, unless it runs stock, allocates its results and workspaces. Where these
  // cannot be had, not even for the memory of transformed filters, the stage is made to need less
  // (core/ladder.h). All of it is prepared under one setting of TensorFlow's switches for TF32
  // (tf.config.experimental.enable_tensor_float_32_execution) and determinism
  // (enable_op_determinism), the one at the call's begin.
  absl::Status Prepare();

  // Whether the stage runs as without a plan: then RunStock, else Enqueue.
  bool runs_stock() const { return runs_stock_; }

  // Runs TensorFlow's own kernel for each step, in sequence, as the graph would without the stage.
  // On a CPU at once where `caller` is null.
  absl::Status RunStock(Stream caller);

  // Enqueues the stage on `caller`; see core/ladder.h for what happens where that fails.
  Status Enqueue(Stream caller);

  // Says that the caller's stream has run all that was enqueued, so that calls on other streams may
  // use what was transformed for this one.
  void MarkComplete();

  const ResolvedStage& resolved() const { return *resolved_; }
  // What Enqueue runs first.
  const PreparedStage& prepared() const;

 private:
  absl::Status AllocateResults();
  absl::Status AllocateOutput(int output);
  absl::Status AllocateTemporary(size_t operation, tensorflow::AllocatorAttributes attributes,
                                 bool may_wait);
  absl::Status AllocateWorkspaces();
  bool GetWorkspaces(const std::vector<size_t>& bytes, bool is_last, std::vector<void*>* lanes);
  void BindOperands();
  const tensorflow::Tensor& OperandOf(const Operand& operand) const;
  absl::Status ComputeByKernel(size_t operation, tensorflow::AllocatorAttributes attributes,
                               tensorflow::Tensor* result);
  absl::Status ComputeStock();
  absl::Status FillZero(tensorflow::Tensor* tensor);
  LadderCalls Ladder();

  StageNode* const node_;
  tensorflow::OpKernelContext* const context_;
  Backend* const backend_;
  std::shared_ptr<const ResolvedStage> resolved_;
  bool runs_stock_ = false;
  std::unique_ptr<LesserStage> lesser_;  // where there was no memory for what is kept
  Stream caller_ = nullptr;              // where the stage is enqueued
  StageBuffers buffers_;
  std::vector<tensorflow::Tensor> results_;  // by operation
  std::vector<tensorflow::Tensor> workspaces_;
  std::vector<std::shared_ptr<TransformedFilter>> transformed_filters_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_CALL_H_
