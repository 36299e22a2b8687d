// The user's limit for the workspaces of one stage, for the whole process.
//
// Workspaces of a stage exist all at once, where TensorFlow's convolutions have theirs one after
// another. TensorFlow's own limit (TF_CUDNN_WORKSPACE_LIMIT_IN_MB) is for one convolution and says
// nothing about the sum.
#ifndef TF_INTEROP_CORE_WORKSPACE_LIMIT_H_
#define TF_INTEROP_CORE_WORKSPACE_LIMIT_H_

#include <atomic>
#include <cstddef>
#include <limits>

namespace tf_interop {

constexpr size_t kNoWorkspaceLimit = std::numeric_limits<size_t>::max();

// Thread-safe. A limit holds for stages that run from now on; there is none at first.
inline std::atomic<size_t> stage_workspace_limit_bytes{kNoWorkspaceLimit};
inline void SetStageWorkspaceLimit(size_t bytes) { stage_workspace_limit_bytes = bytes; }
inline size_t StageWorkspaceLimit() { return stage_workspace_limit_bytes; }

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_WORKSPACE_LIMIT_H_
