#include "cc_kernels/core/measure_checks.h"

namespace tf_interop {
namespace {

// So few that those of all ways to run can be counted, and their times kept.
constexpr int64_t kMostRuns = 1'000'000;

}  // namespace

Status CheckOptions(const MeasureOptions& options) {
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
