#include "cc_kernels/core/stage_replays.h"

#include <cstdlib>
#include <utility>

#include "cc_kernels/core/counters.h"

namespace tf_interop {

bool StageReplays::AreOn() {
  const char* const value = std::getenv("TF_INTEROP_CUDA_GRAPHS");
  return value == nullptr || std::string(value) != "0";
}

bool StageReplays::Run(Backend* backend, const StageBuffers& buffers, Stream caller,
                       const Capture& capture) {
  if (state_ != State::kReady) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kReady) return false;
  CapturedWork work;
  Status status = FindOrCapture(buffers, capture, &work);
  if (status.ok() && work == nullptr) return false;
  if (status.ok()) status = backend->Replay(work, caller);
  if (!status.ok()) {
    GiveUp(status.message());
    return false;
  }
  Count(&Counters::stages_replayed);
  return true;
}

void StageReplays::NotePlainRun() {
  State expected = State::kNotRun;
  state_.compare_exchange_strong(expected, State::kReady);
}

Status StageReplays::FindOrCapture(const StageBuffers& buffers, const Capture& capture,
                                   CapturedWork* work) {
  *work = graphs_.Find(buffers).value_or(nullptr);
  const bool may_capture = captures_ < kFirstCaptures + calls_++ / kCallsForACapture;
  if (*work != nullptr || !may_capture) return Status::Ok();
  TF_INTEROP_RETURN_IF_ERROR(capture(work));
  ++captures_;
  Count(&Counters::stages_captured);
  graphs_.Insert(buffers, *work);
  return Status::Ok();
}

void StageReplays::GiveUp(const std::string& reason) {
  state_ = State::kGivenUp;
  graphs_.ForgetIf([](const auto&) { return true; });
  CountFallback(kNoGraph, reason);
}

}  // namespace tf_interop
