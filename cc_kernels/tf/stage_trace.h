// Stages and lanes in the traces of TensorFlow's profiler (tf.profiler.experimental).
//
// A stage is a span `stage <node name>` of the thread that enqueues it, with its schedule; inside
// it is a span `lane <number>: <convolutions> [<algorithm>]` for each launch. On the CPU the thread
// of a lane has the same span while it computes. On a GPU the profiler gives the annotation to the
// kernels that were launched under it. While no profiler is active nothing is formatted.
#ifndef TF_INTEROP_TF_STAGE_TRACE_H_
#define TF_INTEROP_TF_STAGE_TRACE_H_

#include <string>

#include "cc_kernels/tf/stage_call.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tsl/profiler/lib/traceme.h"

namespace tf_interop {

// The span of one call of a stage.
class StageTrace {
 public:
  explicit StageTrace(const tensorflow::OpKernel& kernel);

  // Says what the call, which has been prepared, runs.
  void Describe(const StageCall& call);

 private:
  tsl::profiler::TraceMe span_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_TRACE_H_
