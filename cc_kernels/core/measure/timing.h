// Measures convolutions with their algorithms, one alone or a stage of several beside each other.
//
// How time is taken. Each run is a timed section of its own on the device's stream; that of a stage
// is from before the fork to after the join. After `warmup_runs`, `repetitions` sections give a
// median and a spread, which is half the distance between their 10th and their 90th percentile
// (linear between neighbours). Where there are several ways to run, they take turns, and take turns
// in going first, so that a device that slows down or speeds up does so for all.
//
// What is in the caches. Operands and results exist in so many copies that together they exceed
// `cache_bytes`, but no more copies than there are runs, and each run takes the next copy. So a run
// finds its operands in memory, not in a cache. Workspaces and filters in transposed form are not
// copied: a program reuses them too.
//
// A device that is fed faster than it works shows its own time; one that waits for the host shows
// the host's. With `head_start_bytes` memory of that size is filled before each timed section, so
// that the section has been enqueued when the device comes to it.
//
// GPU kernels are traced in one run of its own after the timed ones, because tracing takes time.
#ifndef TF_INTEROP_CORE_MEASURE_TIMING_H_
#define TF_INTEROP_CORE_MEASURE_TIMING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// Of the operands, which are normal with mean 0 and deviation 1, there is a seed.
struct MeasureOptions : TfiMeasureOptions {
  MeasureOptions() : TfiMeasureOptions() {
    warmup_runs = 3;
    repetitions = 20;
    cache_bytes = head_start_bytes = -1;
    workspace_limit_bytes = int64_t{1} << 30;
    reference_limit_multiply_adds = 2e8;
    allow_tf32 = trace_kernels = 1;
  }
};

// The relative error is the largest difference from the result in double precision, relative to the
// largest value of that result. Operands are rounded to the convolution's type first. It is
// infinite where an element is not finite or was not written, which is always checked; else
// negative where the convolution is over the limit.
struct Measurement : TfiMeasurement {
  Measurement() : TfiMeasurement() {}

  std::string algorithm;  // that ran, in the form that Prepare accepts
  // The GPU kernels of one run, in order. Empty where trace_error says why they could not be
  // traced, and where there are none.
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
  // The place, among the problems of a stage, of the one whose image (the first input) this one
  // reads in place of its own, which is empty then.
  std::optional<size_t> image_of;
};

// Operands and reference of the convolution that was measured last, so that its next algorithm
// need not wait for them again. Not thread-safe.
struct KeptProblem {
  uint64_t seed = 0;
  std::optional<MeasuredProblem> problem;
  std::optional<std::vector<double>> expected;  // computed when it is first asked for
};

// Measures `convolution` with `algorithm` (empty: the backend's own choice), on a lane of its own.
// Frees all device memory that it allocated. Fails with the reason:
//   kInvalidArgument    the options or the convolution make no sense; nothing was run
//   kUnsupported        the backend has no such algorithm, or it cannot run the convolution within
//                       the workspace limit
//   kResourceExhausted  memory was short
//   other               a call failed that should have worked
Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          KeptProblem* kept, Measurement* measurement);

// Says what MeasureConvolution would run for `algorithm`, and runs nothing. Fails as it does, for
// the reasons that can be told without running. What was prepared is kept: measuring afterwards
// costs no more.
Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        ResolvedAlgorithm* resolved);

// A stage as it is to be measured.
//
// Each convolution has operands of its own; where convolutions share an image in a program, they
// may be faster there. Only those of a merged lane share one image, in all ways to run them. A
// merged lane joins its filters in every run, as in training. Where they are constant, a program
// joins them once and is faster by that.
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

#endif  // TF_INTEROP_CORE_MEASURE_TIMING_H_
