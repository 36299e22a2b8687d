// Stages and lanes in the traces of TensorFlow's profiler (tf.profiler.experimental).
//
// The thread that enqueues a stage has a span `stage <node name>`, with the stage's schedule, and
// in it a span `lane <number>: <convolutions> [<algorithm>]` for each launch. On a GPU the profiler
// annotates the launch's kernels. While no profiler is active, no text is formatted.
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

  // Adds details of a prepared call.
  void Describe(const StageCall& call);

 private:
  tsl::profiler::TraceMe span_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_TRACE_H_
