// The user's limit for all workspaces of one stage together, process-wide.
//
// The workspaces of a stage exist together, those of TensorFlow's convolutions one after another.
// TensorFlow's own limit (TF_CUDNN_WORKSPACE_LIMIT_IN_MB) applies to one convolution.
#ifndef TF_INTEROP_CORE_WORKSPACE_LIMIT_H_
#define TF_INTEROP_CORE_WORKSPACE_LIMIT_H_

#include <atomic>
#include <cstddef>
#include <limits>

namespace tf_interop {

// Applies to stages that run from now on.
constexpr size_t kNoWorkspaceLimit = std::numeric_limits<size_t>::max();
inline std::atomic<size_t> stage_workspace_limit_bytes{kNoWorkspaceLimit};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_WORKSPACE_LIMIT_H_
