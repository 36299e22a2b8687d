#include "cc_kernels/core/measure_checks.h"

namespace tf_interop {

Status CheckOptions(const MeasureOptions& options) {
  if (options.warmup_runs < 0 || options.repetitions < 1) {
    return InvalidArgument("Expected at least 0 warm-up runs and 1 repetition, got " +
                           std::to_string(options.warmup_runs) + " and " +
                           std::to_string(options.repetitions) + ".");
  }
  return Status::Ok();
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
