// Measures one convolution with one algorithm, alone. measure_stage.h measures several beside each
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
#ifndef TF_INTEROP_CORE_MEASURE_H_
#define TF_INTEROP_CORE_MEASURE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/measured_problem.h"
#include "cc_kernels/core/measuring_device.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

struct MeasureOptions {
  int64_t warmup_runs = 3;
  int64_t repetitions = 20;
  std::optional<size_t> cache_bytes;       // the device's default where not given
  std::optional<size_t> head_start_bytes;  // likewise
  size_t workspace_limit_bytes = size_t{1} << 30;
  // The error is measured where the convolution has at most this many multiply-adds.
  double reference_limit_multiply_adds = 2e8;
  // Of the operands, which are normal with mean 0 and deviation 1.
  uint64_t seed = 0;
  // Whether float convolutions may be computed in TF32; see PrepareOptions.
  bool allow_tf32 = true;
  bool trace_kernels = true;
};

inline PrepareOptions ToPrepareOptions(const MeasureOptions& options) {
  return {options.workspace_limit_bytes, options.allow_tf32};
}

struct TimeFigure {
  double median_us = 0;
  double spread_us = 0;
};

struct Measurement {
  std::string algorithm;           // that ran, in the form that Prepare accepts
  bool reduces_precision = false;  // see PreparedConvolution
  size_t workspace_bytes = 0;
  TimeFigure time;
  // The largest difference from the result in double precision, relative to the largest value of
  // that result. Operands are rounded to the convolution's type first. Infinite where an element is
  // not finite or was not written, which is always checked; else not there where the convolution is
  // over the limit.
  std::optional<double> relative_error;
  // Whether two runs gave the same bits.
  bool is_deterministic = false;
  int64_t copies = 0;  // of operands and result
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

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_MEASURE_H_
