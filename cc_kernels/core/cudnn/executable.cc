#include "cc_kernels/core/cudnn/executable.h"

namespace tf_interop {

Status CheckWorkspace(const Executable& executable, const ExecutableRequest& request) {
  if (request.wants_least_workspace ||
      executable.workspace_bytes() <= request.workspace_limit_bytes) {
    return Status::Ok();
  }
  return Unsupported("Expected at most " + std::to_string(request.workspace_limit_bytes) +
                     " bytes of workspace for '" + ToString(executable.tag()) + "', got " +
                     std::to_string(executable.workspace_bytes()) + ".");
}

Status CheckDeterminism(bool is_deterministic, const ExecutableRequest& request) {
  if (is_deterministic || !request.requires_determinism) return Status::Ok();
  return Unsupported(
      "Expected an algorithm that gives the same bits every time, as "
      "tf.config.experimental.enable_op_determinism asks for, got one that may not. Plan from a "
      "profile with determinism on.");
}

Status AsRefusalOfPin(const AlgorithmTag& tag, const Status& status) {
  if (status.ok() || status.code() == StatusCode::kResourceExhausted ||
      status.code() == StatusCode::kUnavailable) {
    return status;
  }
  return Unsupported("cuDNN cannot run '" + ToString(tag) + "' here: " + status.message());
}

}  // namespace tf_interop
