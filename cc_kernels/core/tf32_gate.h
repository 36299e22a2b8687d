// Lets many threads prepare convolutions, each under its own value of Backend::set_allow_tf32.
#ifndef TF_INTEROP_CORE_TF32_GATE_H_
#define TF_INTEROP_CORE_TF32_GATE_H_

#include <functional>
#include <shared_mutex>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// set_allow_tf32 holds for a whole backend, and so for every thread that prepares there. A thread
// that sets it and then prepares would have another thread's value where that one sets it in
// between. Behind one gate, threads prepare side by side as long as they agree, and one that does
// not agree waits until it is alone. It lets others in again when it has prepared.
//
// Thread-safe. All that use a backend must go through one gate; a gate may serve several backends.
class Tf32Gate {
 public:
  // Calls `prepare`, during which `backend` allows TF32 or not, as `allow` says, from begin to end.
  Status Prepare(Backend* backend, bool allow, const std::function<Status()>& prepare);

 private:
  std::shared_mutex mutex_;
  bool allow_ = true;  // what everybody inside agrees on; changed by who is alone inside
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_TF32_GATE_H_
