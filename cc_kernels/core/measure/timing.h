// Measures a convolution with one of its algorithms, or a stage against its convolutions in
// sequence.
//
// Time. Each run is a timed section on the device's stream; for a stage it begins before the fork
// and ends after the join. After `warmup_ms`, `repetitions` sections yield a median and a spread:
// half the distance between their 10th and 90th percentiles (linear between neighbors). Several
// ways to run take turns, and take turns at going first, so that a change of the device's speed
// affects all of them.
//
// Caches. Before each timed section a fill larger than every cache (MeasuringDevice::cold_bytes)
// evicts the operands. With `warm_caches` an untimed run follows the fill.
//
// Head start. If the device waited for the host, the host's time would be measured. The fill lets
// the host enqueue the section meanwhile. If the device reaches the section before all of it is
// enqueued, its time is dropped, and it is repeated with twice as many fills, up to 64. A launch
// that itself waits for the device is never enqueued ahead, neither here nor in a program.
//
// GPU kernels are traced in a run after the timed ones, because tracing takes time.
#ifndef TF_INTEROP_CORE_MEASURE_TIMING_H_
#define TF_INTEROP_CORE_MEASURE_TIMING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// No value is negative, and there is at least one repetition.
struct MeasureOptions : TfiMeasureOptions {
  MeasureOptions() : TfiMeasureOptions() {
    warmup_ms = 20;
    repetitions = 20;
    workspace_limit_bytes = int64_t{1} << 30;
    allow_tf32 = trace_kernels = 1;
  }

  // Tests set these: the reference's budget, beyond which only some elements are compared, and a
  // replacement for the device's cold_bytes.
  double reference_multiply_adds = 2e8;
  std::optional<size_t> cold_bytes;
};

// The relative error is the largest difference from the result in double precision, divided by the
// largest absolute value of that result. Operands are normal with mean 0 and deviation 1, rounded
// to the convolution's type. For a large convolution up to 4,096 random elements are compared. The
// error is infinite if any element is not finite or was not written.
struct Measurement : TfiMeasurement {
  Measurement() : TfiMeasurement() {}

  std::string algorithm;  // the one that ran, in the form that Prepare accepts
  // The GPU kernels of one run, in order, or the reason why they could not be traced.
  std::vector<TracedKernel> kernels;
  std::string trace_error;
};

using Bytes = std::vector<unsigned char>;

// A convolution with operands in host memory.
struct MeasuredProblem {
  Convolution convolution;
  std::vector<Bytes> inputs;
  // The earlier problem of the stage whose image this one reads; its own first input is then empty.
  std::optional<size_t> image_of;

  size_t result_bytes() const { return convolution.result_elements() * SizeOf(convolution.dtype); }
};

// Operands and reference of the last convolution, for its next algorithm. Not thread-safe.
struct KeptProblem {
  std::unique_ptr<MeasuredProblem> problem;
  std::vector<int64_t> places;   // of the elements to compare; empty for all
  std::vector<double> expected;  // empty until it is needed
};

// Measures `convolution`, which has something to compute, with `algorithm` (empty: the backend's
// own choice) on a lane of its own. Frees all device memory, and makes the backend forget the plan.
// Fails with the reason:
//   kInvalidArgument    the convolution makes no sense; nothing ran
//   kUnsupported        the backend has no such algorithm, or it cannot run the convolution within
//                       the workspace limit
//   kResourceExhausted  out of memory
//   other               a call that should have worked failed
Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          KeptProblem* kept, Measurement* measurement);

// Prepares the algorithm that MeasureConvolution would run, and runs nothing. Two names of one
// algorithm resolve to the same one. The plan is kept until the next measurement.
Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        std::shared_ptr<const PreparedConvolution>* resolved);

// A stage to measure. It has steps, and all of them have something to compute.
//
// Each convolution has operands of its own, except that steps with the same image number, and all
// steps of a merged lane, read one image. Gradients are never shared. A merged lane joins its
// filters in every run, as in training. A program with constant filters joins them only once, so it
// is faster by that much.
struct StageRequest {
  Stage stage;
  // The algorithms of the second sequence; empty if they are the stage's.
  std::vector<std::string> sequential_algorithms;
  // The image number of each step; negative, or empty for all: an image of its own. Only steps that
  // read images of the same shape, layout and type have the same number.
  std::vector<int> images = {};
};

// `concurrent` is the time on the lanes, `same_sequential` the time of the same prepared steps on
// one stream, `sequential` the time on one stream with `sequential_algorithms`. In sequence nothing
// is merged: the backend's own choice replaces an algorithm that computes only the wider
// convolution.
struct StageMeasurement : TfiStageMeasurement {
  StageMeasurement() : TfiStageMeasurement() {}

  // The algorithm of each step on the lanes; for merged steps that of the wider convolution.
  std::vector<std::string> algorithms;
  std::vector<std::string> sequential_algorithms;  // those that ran in the second sequence
};

// Measures a stage; fails as MeasureConvolution does. Also fails if a pinned algorithm is refused
// or a lane cannot be merged: nobody asked for the replacement.
Status MeasureStage(MeasuringDevice* device, const StageRequest& request,
                    const MeasureOptions& options, StageMeasurement* measurement);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_TIMING_H_
