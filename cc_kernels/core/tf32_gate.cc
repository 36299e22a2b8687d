#include "cc_kernels/core/tf32_gate.h"

#include <mutex>

namespace tf_interop {

Status Tf32Gate::Prepare(Backend* backend, bool allow, const std::function<Status()>& prepare) {
  {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    if (allow_ == allow) {
      // Everybody inside sets the same; a backend that the gate meets for the first time needs it.
      backend->set_allow_tf32(allow);
      return prepare();
    }
  }
  std::unique_lock<std::shared_mutex> lock(mutex_);
  allow_ = allow;
  backend->set_allow_tf32(allow);
  return prepare();
}

}  // namespace tf_interop
