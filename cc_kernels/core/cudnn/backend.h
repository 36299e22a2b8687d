// The backend for NVIDIA GPUs: CUDA streams through libcuda, convolutions through libcudnn. Both
// libraries are opened for the first backend.
//
// Backends, their stream groups and the most recently used plans (up to a limit) live until the
// process ends, because CUDA may be gone before it exits. Everything here is thread-safe. Calls may
// come with any CUDA context current, or none, and leave it as it was.
#ifndef TF_INTEROP_CORE_CUDNN_BACKEND_H_
#define TF_INTEROP_CORE_CUDNN_BACKEND_H_

#include "cc_kernels/core/backend.h"
#include "cc_kernels/core/status.h"

struct CUstream_st;  // CUstream points to one

namespace tf_interop {

struct CudaDriver;

// Finds the backend for the context of `caller`; the first call creates it. Returns kUnavailable if
// there is no NVIDIA driver, no GPU, or no cuDNN 9.0 or newer.
Status FindCudnnBackend(CUstream_st* caller, Backend** backend);

// Finds the backend for the primary context of a GPU, which TensorFlow uses, by CUDA's number of
// the GPU. Keeps that context.
Status FindCudnnBackendOf(int device, Backend** backend);

// Counts the SMs of a GPU, by CUDA's number of it.
Status CountSms(int device, int* count);

// For calls on a stream whose work somebody else may be capturing into a CUDA graph of their own,
// as XLA does. While it lives, this thread may do what a capture forbids by default, such as
// creating handles and streams, and a stream group that a call returns is not reused before the
// capture ends.
class CaptureScope {
 public:
  explicit CaptureScope(CUstream_st* caller);
  ~CaptureScope();
  CaptureScope(const CaptureScope&) = delete;
  CaptureScope& operator=(const CaptureScope&) = delete;

  // Whether `caller` is being captured. If that is unknown, it is not.
  bool is_capturing() const { return driver_ != nullptr; }

 private:
  const CudaDriver* driver_ = nullptr;  // null if nothing is captured
  int outer_mode_ = 0;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_BACKEND_H_
