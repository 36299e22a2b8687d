// Measures convolutions with their algorithms, one alone or a stage of several beside each other.
//
// How time is taken. Each run is a timed section of its own on the device's stream; that of a stage
// is from before the fork to after the join. After `warmup_ms`, `repetitions` sections give a
// median and a spread, which is half the distance between their 10th and their 90th percentile
// (linear between neighbours). If there are several ways to run, they take turns, and take turns
// in going first, so that a device that slows down or speeds up does so for all.
//
// What is in the caches. Before each timed section memory is filled that exceeds every cache
// (MeasuringDevice::cold_bytes), so that a run finds its operands in memory. With `warm_caches` one
// run that is not timed follows the filling.
//
// A device that is fed faster than it works shows its own time; one that waits for the host shows
// the host's. The filling is also what gives the host time to enqueue the section. Where the device
// came to the section before all of it was enqueued, the time is dropped, and the section is
// repeated with twice as much filling, up to 64 times as much: a launch that waits for the device
// is never enqueued ahead, neither here nor in a program.
//
// GPU kernels are traced in one run of its own after the timed ones, because tracing takes time.
#ifndef TF_INTEROP_CORE_MEASURE_TIMING_H_
#define TF_INTEROP_CORE_MEASURE_TIMING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The last two are for tests.
struct MeasureOptions : TfiMeasureOptions {
  MeasureOptions() : TfiMeasureOptions() {
    warmup_ms = 20;
    repetitions = 20;
    workspace_limit_bytes = int64_t{1} << 30;
    allow_tf32 = trace_kernels = 1;
  }

  // What the reference may take; beyond it only some elements are compared.
  double reference_multiply_adds = 2e8;
  std::optional<size_t> cold_bytes;  // in place of the device's
};

// The relative error is the largest difference from the result in double precision, relative to the
// largest value of that result. Operands are normal with mean 0 and deviation 1, and rounded to the
// convolution's type first. Of a large convolution up to 4,096 elements are compared, drawn at
// random. The error is infinite where any element is not finite or was not written.
struct Measurement : TfiMeasurement {
  Measurement() : TfiMeasurement() {}

  std::string algorithm;  // that ran, in the form that Prepare accepts
  // The GPU kernels of one run, in order. Empty if trace_error says why they could not be
  // traced, and if there are none.
  std::vector<TracedKernel> kernels;
  std::string trace_error;
};

// What would be measured under a name: two names of one algorithm have the same.
struct ResolvedAlgorithm {
  std::string algorithm;           // see Measurement
  bool reduces_precision = false;  // see Measurement
};

using Bytes = std::vector<unsigned char>;

// A convolution with operands in host memory.
struct MeasuredProblem {
  Convolution convolution;
  std::vector<Bytes> inputs;
  size_t result_bytes = 0;
  // The place, among the problems of a stage, of an earlier one whose image (the first input) this
  // one reads in place of its own, which is empty then.
  std::optional<size_t> image_of;
};

// Operands and reference of the convolution that was measured last, so that its next algorithm
// need not wait for them again. Not thread-safe.
struct KeptProblem {
  std::unique_ptr<MeasuredProblem> problem;
  std::vector<int64_t> places;   // of the elements to compare; empty for all
  std::vector<double> expected;  // computed when it is first asked for
};

// Measures `convolution` with `algorithm` (empty: the backend's own choice), on a lane of its own.
// Frees all device memory that it allocated, and has the backend forget the plan. Fails with the
// reason:
//   kInvalidArgument    the options or the convolution make no sense; nothing was run
//   kUnsupported        the backend has no such algorithm, or it cannot run the convolution within
//                       the workspace limit
//   kResourceExhausted  memory was short
//   other               a call failed that should have worked
Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          KeptProblem* kept, Measurement* measurement);

// Says what MeasureConvolution would run for `algorithm`, and runs nothing. Fails as it does, for
// the reasons that can be told without running. What was prepared is kept until something is
// measured.
Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        ResolvedAlgorithm* resolved);

// A stage as it is to be measured.
//
// Each convolution has operands of its own, but for images: steps with the same number read one, as
// those of a merged lane do. Gradients are never shared. A merged lane joins its filters in every
// run, as in training. Where they are constant, a program joins them once and is faster by that.
struct StageRequest {
  Stage stage;
  // What each step is computed with in the second sequence; empty: what the steps name.
  std::vector<std::string> sequential_algorithms;
  // Of the image of each step; negative, or empty for all: it has its own.
  std::vector<int> images = {};
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
  // The SMs that the device gave to each lane; empty if no lane asked for any.
  std::vector<int> sm_counts;
};

// Measures a stage; fails as MeasureConvolution does. A pinned algorithm that cannot be had, and a
// lane that cannot be merged, is a failure: what would run in its place was not asked for.
Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_TIMING_H_
