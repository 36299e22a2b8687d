// Measures a stage of convolutions on lanes, beside the same convolutions in sequence, with the
// same algorithms and with others. alone.h says how: a run is timed from before the fork to
// behind the join.
//
// Each convolution of a stage has operands of its own; where convolutions share an image in a
// program, they may be faster there. Only those of a merged lane share one image, in all ways to
// run them.
//
// A merged lane joins its filters in every run, as in training. Where they are constant, a program
// joins them once and is faster by that.
#ifndef TF_INTEROP_CORE_MEASURE_STAGE_H_
#define TF_INTEROP_CORE_MEASURE_STAGE_H_

#include <string>
#include <vector>

#include "cc_kernels/core/measure/alone.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// A stage as it is to be measured.
struct StageRequest {
  Stage stage;
  // What each step is computed with in the second sequence; empty: what the steps name.
  std::vector<std::string> sequential_algorithms;
};

// `concurrent` is the time on the lanes, `same_sequential` that of the same prepared steps on one
// stream, `sequential` that on one stream with `sequential_algorithms`. In sequence nothing is
// merged: an algorithm that can compute a wider convolution only is replaced by the backend's own
// choice.
struct StageMeasurement : TfiStageMeasurement {
  StageMeasurement() : TfiStageMeasurement() {}

  // That ran on the lanes, of each step; for merged steps that of the wider convolution.
  std::vector<std::string> algorithms;
  std::vector<std::string> sequential_algorithms;  // that ran in the second sequence
  // The SMs that the device gave to each lane; empty where no lane asked for any.
  std::vector<int> sm_counts;
};

// Measures a stage; fails as MeasureConvolution does. A pinned algorithm that cannot be had, and a
// lane that cannot be merged, is a failure: what would run in its place was not asked for.
Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_STAGE_H_
