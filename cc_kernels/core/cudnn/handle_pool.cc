#include "cc_kernels/core/cudnn/handle_pool.h"

#include <algorithm>

namespace tf_interop {
namespace {

constexpr std::chrono::milliseconds kFirstWait(100);
constexpr std::chrono::minutes kLongestWait(1);

}  // namespace

void RetryTimer::Refuse() {
  wait_ = std::clamp<Clock::duration>(2 * wait_, kFirstWait, kLongestWait);
  try_again_at_ = Clock::now() + wait_;
}

Status HandlePool::Take(std::optional<CUstream> stream, Lease* lease) {
  const bool prepares = !stream;
  Handle* handle = nullptr;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    while (handle == nullptr) {
      if (!prepares || preparing_ < kMostPreparing) {
        handle = TakeFree(stream);
        if (handle == nullptr && MayMake(stream)) refusal_ = Make(&handle);
        if (handles_.empty()) return refusal_;
      }
      if (handle == nullptr) given_.wait(lock);
    }
    handle->prepares = prepares;
    if (prepares) ++preparing_;
  }
  *lease = Lease(handle, {this});
  if (prepares || handle->stream == stream) return Status::Ok();
  handle->stream.reset();
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnSetStream, handle->handle, *stream));
  handle->stream = stream;
  return Status::Ok();
}

void HandlePool::Give(Handle* handle) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (handle->prepares) --preparing_;
    free_.push_back(handle);
  }
  given_.notify_all();
}

// Prefers a handle that is already set to `stream`: searching costs less than setting one.
HandlePool::Handle* HandlePool::TakeFree(std::optional<CUstream> stream) {
  if (free_.empty()) return nullptr;
  auto found = std::find_if(free_.begin(), free_.end(), [stream](const Handle* handle) {
    return stream && handle->stream == stream;
  });
  if (found == free_.end()) found = free_.begin();
  Handle* const taken = *found;
  free_.erase(found);
  return taken;
}

bool HandlePool::MayMake(std::optional<CUstream> stream) const {
  if (handles_.size() >= kMostHandles || !retry_.IsOver()) return false;
  return handles_.empty() || !stream || !IsCapturing(driver_, *stream);
}

Status HandlePool::Make(Handle** handle) {
  // One at a time in the process: cuDNN's first handle must be complete before others are created.
  static auto* mutex = new std::mutex();
  std::lock_guard<std::mutex> lock(*mutex);
  cudnnHandle_t made = nullptr;
  const Status status = TF_INTEROP_CALL(library_, cudnnCreate, &made);
  if (!status.ok()) {
    retry_.Refuse();
    return Status(status.code(),
                  status.message() +
                      " A cuDNN handle needs device memory outside TensorFlow's allocator. If the "
                      "allocator holds all memory, turn on "
                      "tf.config.experimental.set_memory_growth or set a memory limit.");
  }
  retry_ = {};
  *handle = &handles_.emplace_back();
  (*handle)->handle = made;
  return Status::Ok();
}

}  // namespace tf_interop
