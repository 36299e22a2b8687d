#include "cc_kernels/core/workspace_limit.h"

#include <atomic>

namespace tf_interop {
namespace {

std::atomic<size_t> limit_bytes{kNoWorkspaceLimit};

}  // namespace

void SetStageWorkspaceLimit(size_t bytes) { limit_bytes = bytes; }

size_t StageWorkspaceLimit() { return limit_bytes; }

}  // namespace tf_interop
