// Measures a stage of convolutions on lanes, beside the same convolutions in sequence, with the
// same algorithms and with others. measure.h says how: a run is timed from before the fork to
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

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc_kernels/core/measure.h"
#include "cc_kernels/core/measuring_device.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// A stage as it is to be measured.
struct StageRequest {
  Stage stage;
  // What each step is computed with in the second sequence; empty: what the steps name.
  std::vector<std::string> sequential_algorithms;
};

struct StageMeasurement {
  // That ran on the lanes, of each step; for merged steps that of the wider convolution.
  std::vector<std::string> algorithms;
  std::vector<std::string> sequential_algorithms;  // that ran in the second sequence
  size_t workspace_bytes = 0;                      // of all lanes together
  // The SMs that the device gave to each lane; empty where no lane asked for any.
  std::vector<int> sm_counts;
  TimeFigure concurrent;  // on the lanes
  // The same prepared steps on one stream. Those of a merged lane are prepared by themselves; an
  // algorithm that can compute the wider convolution only is replaced by the backend's own choice.
  TimeFigure same_sequential;
  TimeFigure sequential;  // on one stream with `sequential_algorithms`
  int64_t copies = 0;
};

// Measures a stage; fails as MeasureConvolution does. A pinned algorithm that cannot be had, and a
// lane that cannot be merged, is a failure: what would run in its place was not asked for.
Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_STAGE_H_
