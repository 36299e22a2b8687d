// Measures one convolution with one algorithm, alone. stage.h measures several beside each
// other, by the same rules.
//
// How time is taken. Each run is a timed section of its own on the device's stream. After
// `warmup_runs`, `repetitions` sections give a median and a spread, which is half the distance
// between their 10th and their 90th percentile (linear between neighbours). Where there are several
// ways to run, they take turns, and take turns in going first, so that a device that slows down or
// speeds up does so for all.
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
// GPU kernels are traced in one run of its own behind the timed ones, because tracing takes time.
#ifndef TF_INTEROP_CORE_MEASURE_ALONE_H_
#define TF_INTEROP_CORE_MEASURE_ALONE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/measure/device.h"
#include "cc_kernels/core/measure/problem.h"
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

  PrepareOptions prepare_options() const;
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

// Measures `convolution` with `algorithm` (empty: the backend's own choice), on a lane of its own.
// Frees all device memory that it allocated. Fails with the reason:
//   kInvalidArgument    the options or the convolution make no sense; nothing was run
//   kUnsupported        the backend has no such algorithm, or it cannot run the convolution within
//                       the workspace limit
//   kResourceExhausted  memory was short
//   other               a call failed that should have worked
Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          ProblemCache* cache, Measurement* measurement);

// Says what MeasureConvolution would run for `algorithm`, and runs nothing. Fails as it does, for
// the reasons that can be told without running. What was prepared is kept: measuring afterwards
// costs no more.
Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        ResolvedAlgorithm* resolved);

// What every measurement checks of what it is asked for.
Status Validate(const MeasureOptions& options);
// Checks that the convolution is valid and computes something from something.
Status CheckHasWork(const Convolution& convolution);

// What Prepare says of an algorithm. A name that the backend does not know comes from a list that
// was made elsewhere: it is refused like an algorithm that cannot run, and others go on.
Status AsRefusal(const std::string& algorithm, const Status& status);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_ALONE_H_
