#include "cc_kernels/core/stage_replays.h"

#include <algorithm>
#include <cstdlib>

#include "cc_kernels/core/counters.h"

namespace tf_interop {

bool StageReplays::AreOn() {
  const char* const value = std::getenv("TF_INTEROP_CUDA_GRAPHS");
  return value != nullptr && std::string(value) == "1";
}

bool StageReplays::Run(Backend* backend, const StageBuffers& buffers, Stream caller,
                       const Capture& capture) {
  if (state_ != State::kReady) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kReady) return false;
  CapturedWork* work = nullptr;
  Status status = FindOrCapture(buffers, capture, &work);
  if (status.ok()) status = backend->Replay(work, caller);
  if (!status.ok()) {
    GiveUp(status.message());
    return false;
  }
  ++replays_;
  CountStageReplay();
  return true;
}

void StageReplays::NotePlainRun() {
  State expected = State::kNotRun;
  state_.compare_exchange_strong(expected, State::kReady);
}

Status StageReplays::FindOrCapture(const StageBuffers& buffers, const Capture& capture,
                                   CapturedWork** work) {
  const auto found = std::find_if(graphs_.begin(), graphs_.end(),
                                  [&](const Graph& graph) { return graph.first == buffers; });
  if (found != graphs_.end()) {
    std::rotate(graphs_.begin(), found, found + 1);
    *work = graphs_.front().second.get();
    return Status::Ok();
  }
  if (captures_ >= kFirstCaptures + replays_ / kReplaysForACapture) {
    return Unsupported("Its memory lies elsewhere too often: " + std::to_string(captures_) +
                       " captures for " + std::to_string(replays_) + " calls.");
  }
  Graph captured = {buffers, nullptr};
  TF_INTEROP_RETURN_IF_ERROR(capture(&captured.second));
  ++captures_;
  CountStageCapture();
  if (graphs_.size() == kMostKept) graphs_.pop_back();
  graphs_.insert(graphs_.begin(), std::move(captured));
  *work = graphs_.front().second.get();
  return Status::Ok();
}

void StageReplays::GiveUp(const std::string& reason) {
  state_ = State::kGivenUp;
  graphs_.clear();
  CountFallback(kNoGraph, reason);
}

}  // namespace tf_interop
