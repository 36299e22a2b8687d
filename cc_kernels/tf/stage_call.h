// A ConvStage node with the state that its calls share, and one call of it, for CPU and GPU.
#ifndef TF_INTEROP_TF_STAGE_CALL_H_
#define TF_INTEROP_TF_STAGE_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/counters.h"
#include "cc_kernels/core/ladder.h"
#include "cc_kernels/core/lru_cache.h"
#include "cc_kernels/core/stage_runner.h"
#include "cc_kernels/core/stage_timing.h"
#include "cc_kernels/core/status.h"
#include "cc_kernels/core/timeline.h"
#include "cc_kernels/core/transformed_filters.h"
#include "cc_kernels/tf/resolved_stage.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// TensorFlow's switches for TF32 (tf.config.experimental.enable_tensor_float_32_execution) and
// determinism (enable_op_determinism) as they are now, its workspace limit, and the user's. Inside
// XLA, which has a smaller limit, all workspaces together need no more than one of its convolutions
// may: when memory runs out, nothing lesser can take over.
StageOptions StageOptionsNow(bool is_in_xla);

// All numbers that a resolved stage depends on.
using CallSignature = absl::InlinedVector<int64_t, 128>;

// Thread-safe.
class StageNode {
 public:
  // Reads and checks the attributes. Errors go to the context's status.
  explicit StageNode(tensorflow::OpKernelConstruction* context);

  DeviceCounts* counts() const { return counts_; }
  bool is_on_cpu() const { return is_on_cpu_; }
  // Whether TensorFlow's own kernels can run the steps.
  bool can_run_stock() const { return is_on_cpu_ || !compiled_options_.has_value(); }
  const StageProgram& program() const { return program_; }
  TransformedFilters* filters() { return &filters_; }
  TimelineCalls* timeline_calls() { return &timeline_calls_; }

  // Resolves the stage for a call, or finds it if an earlier call had the same shapes, sizes and
  // switches. Such a call allocates nothing and takes only this node's lock.
  absl::Status Resolve(const tensorflow::OpKernelContext& context, Backend* backend,
                       std::shared_ptr<const ResolvedStage>* resolved);

  // Finds TensorFlow's own kernel for an operation, or makes it on first use.
  absl::Status FindStockKernel(tensorflow::OpKernelContext* context, size_t operation,
                               tensorflow::OpKernel** kernel);

 private:
  // Lets a resolved stage time itself if it has a plan that lasts.
  void AddTiming(const tensorflow::OpKernelContext& context, Backend* backend,
                 ResolvedStage* resolved) const;

  DeviceCounts* const counts_;
  const bool is_on_cpu_;
  // Inside XLA: with what the function was compiled.
  std::optional<StageOptions> compiled_options_;
  bool is_timed_ = false;
  StageProgram program_;
  TransformedFilters filters_;
  TimelineCalls timeline_calls_;
  LruCache<CallSignature, std::shared_ptr<const ResolvedStage>> cache_{8};
  std::mutex stock_kernels_mutex_;
  std::vector<std::unique_ptr<tensorflow::OpKernel>> stock_kernels_;  // by operation; guarded
};

// One call of a stage, with its memory. Keeps workspaces, results and transformed filters alive,
// and must live until the caller's stream has run the stage.
class StageCall {
 public:
  // All three must outlive this.
  StageCall(StageNode* node, tensorflow::OpKernelContext* context, Backend* backend);
  StageCall(const StageCall&) = delete;
  StageCall& operator=(const StageCall&) = delete;

  // Resolves the stage and, unless it runs stock, allocates its results and workspaces. If there is
  // not enough memory even after freeing transformed filters, prepares the stage to need less
  // (core/ladder.h). TensorFlow's switches are read once, when the call begins. `caller` is the
  // stream of the call, null on a CPU.
  absl::Status Prepare(Stream caller);

  // Whether to call RunStock rather than Enqueue.
  bool runs_stock() const { return runs_stock_; }

  // Runs TensorFlow's own kernel for each step, in sequence. On a CPU a null `caller` runs them at
  // once.
  absl::Status RunStock(Stream caller);

  // Enqueues the stage on `caller`, or a lesser one if that fails (core/ladder.h).
  Status Enqueue(Stream caller);

  // Call this on a CPU once the caller's stream has run everything, so that calls on other streams
  // can use the filters that were transformed for this one.
  void MarkComplete();

  const ResolvedStage& resolved() const { return *resolved_; }
  // The stage that Enqueue tries first.
  const PreparedStage& prepared() const;

 private:
  absl::Status AllocateResults();
  absl::Status AllocateOutput(int output);
  absl::Status AllocateTemporary(size_t operation, tensorflow::AllocatorAttributes attributes,
                                 bool may_wait);
  void AllocateWorkspaces();
  bool GetWorkspaces(const std::vector<size_t>& bytes, std::vector<void*>* lanes);
  void BindOperands();
  void BindHeldFilters();
  const tensorflow::Tensor& OperandOf(const Operand& operand) const;
  absl::Status ComputeByStockKernel(size_t operation, tensorflow::AllocatorAttributes attributes,
                                    tensorflow::Tensor* result);
  absl::Status ComputeStock();
  absl::Status FillZero(tensorflow::Tensor* tensor);
  LadderCalls Ladder();
  // A point in the stream; null if there is none. On a CPU, now.
  std::shared_ptr<const TimeMark> Mark(Stream caller,
                                       const std::shared_ptr<const TimeMark>& since) const;
  void EndTiming(Stream caller);

  StageNode* const node_;
  tensorflow::OpKernelContext* const context_;
  Backend* const backend_;
  std::shared_ptr<const ResolvedStage> resolved_;
  bool runs_stock_ = false;
  StageTiming::Call timed_;
  std::shared_ptr<const TimeMark> begin_;  // of a call that is timed, else null
  std::unique_ptr<LesserStage> lesser_;    // if there was no memory for the resolved stage
  Stream caller_ = nullptr;
  StageBuffers buffers_;
  std::vector<tensorflow::Tensor> results_;  // by operation
  std::vector<tensorflow::Tensor> workspaces_;
  std::vector<std::shared_ptr<TransformedFilter>> transformed_filters_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_CALL_H_
