// The constant filters of a stage in the form that their algorithms read, transformed once instead
// of by every launch.
//
// A transformed filter is used only where nothing can have changed since it was made: for the same
// filter tensor (which is held, so that no other gets its memory, and which the graph says is
// constant, so that nobody writes to it), the same convolution with all its sizes, the same
// algorithm, the same switch for TF32 and the same device's backend. Together these decide the
// transformed bytes.
//
// It is ready for whoever comes behind it: for calls on the stream that the transformation was
// enqueued on, and for all once it is known to have run. A call that comes too early on another
// stream goes without, and so does one for which there is no memory: its launches transform the
// filter themselves, as they would without this class.
//
// Memory comes from the device's allocator and goes back with the kernel, or when a stage finds
// none left for its workspaces.
#ifndef TF_INTEROP_TF_CONSTANT_FILTERS_H_
#define TF_INTEROP_TF_CONSTANT_FILTERS_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/tf/conv_stage_base.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// What decides the bytes of a transformed filter.
struct TransformedFilterKey {
  tensorflow::Tensor filter;
  Convolution convolution;
  std::string algorithm;
  bool allow_tf32;
  Backend* backend;

  bool operator==(const TransformedFilterKey& other) const;
};

struct TransformedFilter {
  TransformedFilterKey key;
  tensorflow::Tensor transformed;
  Stream stream = nullptr;               // on which the transformation was enqueued
  std::atomic<bool> is_complete{false};  // whether it is known to have run
};

// Those of one kernel. Thread-safe: a kernel may be called from several threads at once.
class ConstantFilters {
 public:
  // Lets the steps of `call` whose filter is constant read it transformed, where that helps.
  // Enqueues on `caller` what has not been transformed yet: to be called before RunStage.
  void Bind(tensorflow::OpKernelContext* context, const StageProgram& program, Backend* backend,
            Stream caller, StageCall* call);

  // Forgets all; returns whether there were any. Calls that are under way keep theirs.
  bool Clear();

 private:
  using Forms = std::vector<std::shared_ptr<TransformedFilter>>;

  // Null where the launch has to transform the filter itself. Requires mutex_.
  std::shared_ptr<TransformedFilter> FindOrMake(tensorflow::OpKernelContext* context,
                                                TransformedFilterKey key,
                                                const PreparedConvolution& prepared, Stream caller,
                                                Forms* forms);

  std::mutex mutex_;
  std::vector<Forms> forms_;  // of each step's filter, oldest first; guarded by mutex_
};

// Says that everything on the stream of `call` has run, so that calls on other streams may use what
// was transformed there.
void MarkTransformed(const StageCall& call);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_CONSTANT_FILTERS_H_
