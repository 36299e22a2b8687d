#include "cc_kernels/core/measure.h"

#include <memory>

#include "cc_kernels/core/measure_checks.h"
#include "cc_kernels/core/measuring_bench.h"

namespace tf_interop {
namespace {

// Makes ready what is to be measured alone.
Status PrepareAlone(Backend* backend, const Convolution& convolution, const std::string& algorithm,
                    const MeasureOptions& options,
                    std::shared_ptr<const PreparedConvolution>* prepared) {
  TF_INTEROP_RETURN_IF_ERROR(CheckOptions(options));
  TF_INTEROP_RETURN_IF_ERROR(CheckHasWork(convolution));
  return AsRefusal(algorithm,
                   backend->Prepare(convolution, algorithm, ToPrepareOptions(options), prepared));
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

  std::vector<TimeFigure> figures;
  TF_INTEROP_RETURN_IF_ERROR(TimeByTurns(&bench, {&runnable}, options, &figures));
  measurement->time = figures[0];
  measurement->algorithm = prepared->algorithm();
  measurement->reduces_precision = prepared->reduces_precision();
  measurement->workspace_bytes = prepared->workspace_bytes();
  measurement->copies = bench.copies();
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
  return Guarded([&]() -> Status {
    *measurement = Measurement();
    std::shared_ptr<const PreparedConvolution> prepared;
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
    return MeasurePrepared(device, options, prepared, &cache->Get(convolution, options.seed),
                           measurement);
  });
}

Status ResolveAlgorithm(MeasuringDevice* device, const Convolution& convolution,
                        const std::string& algorithm, const MeasureOptions& options,
                        ResolvedAlgorithm* resolved) {
  return Guarded([&]() -> Status {
    std::shared_ptr<const PreparedConvolution> prepared;
    TF_INTEROP_RETURN_IF_ERROR(
        PrepareAlone(device->backend(), convolution, algorithm, options, &prepared));
    *resolved = {prepared->algorithm(), prepared->reduces_precision()};
    return Status::Ok();
  });
}

}  // namespace tf_interop
