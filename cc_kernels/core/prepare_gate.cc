#include "cc_kernels/core/prepare_gate.h"

#include <mutex>

namespace tf_interop {
namespace {

void SetSwitches(const PrepareSwitches& switches, Backend* backend) {
  backend->set_allow_tf32(switches.allow_tf32);
  backend->set_deterministic(switches.deterministic);
}

}  // namespace

Status PrepareGate::Prepare(Backend* backend, const PrepareSwitches& switches,
                            const std::function<Status()>& prepare) {
  {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    if (switches_ == switches) {
      // Everybody inside sets the same; a backend that the gate meets for the first time needs it.
      SetSwitches(switches, backend);
      return prepare();
    }
  }
  std::unique_lock<std::shared_mutex> lock(mutex_);
  switches_ = switches;
  SetSwitches(switches, backend);
  return prepare();
}

}  // namespace tf_interop
