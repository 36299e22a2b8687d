// Lets many threads prepare convolutions, each under its own setting of TensorFlow's switches.
#ifndef TF_INTEROP_CORE_PREPARE_GATE_H_
#define TF_INTEROP_CORE_PREPARE_GATE_H_

#include <functional>
#include <shared_mutex>

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// What decides which algorithms may be taken; see Backend's functions of these names.
struct PrepareSwitches {
  bool allow_tf32 = true;
  bool deterministic = false;

  bool operator==(const PrepareSwitches& other) const {
    return allow_tf32 == other.allow_tf32 && deterministic == other.deterministic;
  }
};

// A switch holds for a whole backend, and so for every thread that prepares there. A thread that
// sets it and then prepares would have another thread's value where that one sets it in between.
// Behind one gate, threads prepare side by side as long as they agree, and one that does not agree
// waits until it is alone. It lets others in again when it has prepared.
//
// Thread-safe. All that use a backend must go through one gate; a gate may serve several backends.
class PrepareGate {
 public:
  // Calls `prepare`, during which the switches of `backend` are set as given, from begin to end.
  Status Prepare(Backend* backend, const PrepareSwitches& switches,
                 const std::function<Status()>& prepare);

 private:
  std::shared_mutex mutex_;
  PrepareSwitches switches_;  // what everybody inside agrees on; changed by who is alone inside
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_PREPARE_GATE_H_
