#include "cc_kernels/core/measure/alone.h"

#include <algorithm>
#include <memory>

#include "cc_kernels/core/measure/bench.h"

namespace tf_interop {
namespace {

// Makes ready what is to be measured alone.
Status PrepareAlone(Backend* backend, const Convolution& convolution, const std::string& algorithm,
                    const MeasureOptions& options,
                    std::shared_ptr<const PreparedConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(options));
  TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(convolution));
  return AsRefusal(algorithm,
                   backend->Prepare(convolution, algorithm, options.prepare_options(), prepared));
}

Status MeasurePrepared(MeasuringDevice* device, const MeasureOptions& options,
                       const std::shared_ptr<const PreparedConvolution>& prepared,
                       ProblemCache::Entry* entry, Measurement* measurement) {
  const MeasuredProblem& problem = entry->problem;
  Runnable runnable;
  runnable.stage = PreparedAlone(ToString(problem.convolution), prepared);
  Bench bench(device);
  TF_INTEROP_RETURN_IF_ERROR(
      bench.SetUp({&problem}, options, options.warmup_runs + options.repetitions));
  TF_INTEROP_RETURN_IF_ERROR(bench.AllocateWorkspaces({&runnable}));

  Bytes result(problem.result_bytes), again(problem.result_bytes);
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(runnable, &result));
  TF_INTEROP_RETURN_IF_ERROR(bench.RunForResult(runnable, &again));
  measurement->is_deterministic = result == again;
  measurement->relative_error = entry->Check(result, options.reference_limit_multiply_adds);

  std::vector<TfiTime> times;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(&bench, {&runnable}, options, &times));
  measurement->time = times[0];
  measurement->algorithm = prepared->algorithm();
  measurement->reduces_precision = prepared->reduces_precision();
  measurement->workspace_bytes = static_cast<int64_t>(prepared->workspace_bytes());
  if (!options.trace_kernels) return Status::Ok();
  Status traced;
  TF_INTEROP_RETURN_IF_ERROR(bench.TraceRun(runnable, &measurement->kernels, &traced));
  measurement->trace_error = traced.message();
  return Status::Ok();
}

}  // namespace

Status MeasureConvolution(MeasuringDevice* device, const Convolution& convolution,
                          const std::string& algorithm, const MeasureOptions& options,
                          ProblemCache* cache, Measurement* measurement) {
  *measurement = Measurement();
  std::shared_ptr<const PreparedConvolution> prepared;
  TF_INTEROP_RETURN_IF_ERROR(
      PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
  return MeasurePrepared(device, options, prepared, &cache->Get(convolution, options.seed),
                         measurement);
}

Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        ResolvedAlgorithm* resolved) {
  std::shared_ptr<const PreparedConvolution> prepared;
  TF_INTEROP_RETURN_IF_ERROR(
      PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
  *resolved = {prepared->algorithm(), prepared->reduces_precision()};
  return Status::Ok();
}

PrepareOptions MeasureOptions::prepare_options() const {
  PrepareOptions options;
  options.workspace_limit_bytes = static_cast<size_t>(std::max<int64_t>(workspace_limit_bytes, 0));
  options.allow_tf32 = allow_tf32 != 0;
  return options;
}

Status Validate(const MeasureOptions& options) {
  // So few that those of all ways to run can be counted, and their times kept.
  constexpr int64_t kMostRuns = 1'000'000;
  if (options.warmup_runs >= 0 && options.warmup_runs <= kMostRuns && options.repetitions >= 1 &&
      options.repetitions <= kMostRuns) {
    return Status::Ok();
  }
  return InvalidArgument("Expected 0 to " + std::to_string(kMostRuns) + " warm-up runs and 1 to " +
                         std::to_string(kMostRuns) + " repetitions, got " +
                         std::to_string(options.warmup_runs) + " and " +
                         std::to_string(options.repetitions) + ".");
}

Status CheckHasWork(const Convolution& c) {
  TF_INTEROP_RETURN_IF_ERROR(Validate(c));
  if (c.result_elements() > 0 && !c.reads_nothing()) return Status::Ok();
  return InvalidArgument("Expected a convolution with something to compute, got " + ToString(c) +
                         ".");
}

Status AsRefusal(const std::string& algorithm, const Status& status) {
  if (algorithm.empty() || status.code() != StatusCode::kInvalidArgument) return status;
  return Unsupported(status.message());
}

}  // namespace tf_interop
