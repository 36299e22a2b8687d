#include "cc_kernels/core/cudnn/handle_pool.h"

#include <algorithm>

namespace tf_interop {
namespace {

constexpr std::chrono::milliseconds kFirstWait(100);
constexpr std::chrono::minutes kLongestWait(1);

}  // namespace

Status HandlePool::TakeFor(CUstream stream, Lease* lease) {
  TF_INTEROP_RETURN_IF_ERROR(Take(/*prepares=*/false, stream, lease));
  Handle* const handle = lease->handle_;
  if (handle->is_directed && handle->stream == stream) return Status::Ok();
  handle->is_directed = false;
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(library_, cudnnSetStream, handle->handle, stream));
  handle->stream = stream;
  handle->is_directed = true;
  return Status::Ok();
}

Status HandlePool::Take(bool prepares, CUstream stream, Lease* lease) {
  std::unique_lock<std::mutex> lock(mutex_);
  Handle* handle = nullptr;
  while (handle == nullptr) {
    if (!prepares || preparing_ < kMostPreparing) {
      handle = TakeFree(stream);
      if (handle == nullptr && MayMake(stream)) {
        refusal_ = Make(&handle);
      }
      if (handles_.empty()) return refusal_;
    }
    if (handle == nullptr) given_.wait(lock);
  }
  if (prepares) ++preparing_;
  lease->pool_ = this;
  lease->handle_ = handle;
  lease->prepares_ = prepares;
  return Status::Ok();
}

void HandlePool::Give(bool prepares, Handle* handle) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (prepares) --preparing_;
    free_.push_back(handle);
  }
  given_.notify_all();
}

// One that is set to `stream`, if there is one: setting it costs more than looking.
HandlePool::Handle* HandlePool::TakeFree(CUstream stream) {
  if (free_.empty()) return nullptr;
  auto found = std::find_if(free_.begin(), free_.end(), [stream](const Handle* handle) {
    return handle->is_directed && handle->stream == stream;
  });
  if (found == free_.end()) found = free_.begin();
  Handle* const taken = *found;
  free_.erase(found);
  return taken;
}

bool HandlePool::MayMake(CUstream stream) const {
  if (handles_.size() >= kMostHandles || Clock::now() < try_again_at_) return false;
  if (handles_.empty() || stream == nullptr) return true;
  CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver_.cuStreamIsCapturing(stream, &capture) == CUDA_SUCCESS &&
         capture == CU_STREAM_CAPTURE_STATUS_NONE;
}

Status HandlePool::Make(Handle** handle) {
  // One at a time in the process: cuDNN asks that its first handle is complete before others are
  // created.
  static auto* mutex = new std::mutex();
  std::lock_guard<std::mutex> lock(*mutex);
  cudnnHandle_t made = nullptr;
  const Status status = TF_INTEROP_CALL(library_, cudnnCreate, &made);
  if (!status.ok()) {
    wait_ = std::clamp<Clock::duration>(2 * wait_, kFirstWait, kLongestWait);
    try_again_at_ = Clock::now() + wait_;
    return Status(status.code(),
                  status.message() +
                      " A handle needs device memory that TensorFlow's allocator does not hold: "
                      "if it holds all of it, turn on "
                      "tf.config.experimental.set_memory_growth or set a memory limit.");
  }
  wait_ = {};
  *handle = &handles_.emplace_back();
  (*handle)->handle = made;
  return Status::Ok();
}

}  // namespace tf_interop
