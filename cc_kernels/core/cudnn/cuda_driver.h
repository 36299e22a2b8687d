// The part of CUDA's driver API that the backend uses, opened at run time.
#ifndef TF_INTEROP_CORE_CUDNN_CUDA_DRIVER_H_
#define TF_INTEROP_CORE_CUDNN_CUDA_DRIVER_H_

#include <cuda.h>

#include <string>

#include "cc_kernels/core/cudnn/dynamic_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// cuda.h renames entry points to the version that its declarations fit (cuStreamDestroy to
// cuStreamDestroy_v2); members and symbols follow the renamed form.
#define TF_INTEROP_CUDA_ENTRY_POINTS(X) \
  X(cuInit)                             \
  X(cuGetErrorName)                     \
  X(cuGetErrorString)                   \
  X(cuCtxPushCurrent)                   \
  X(cuCtxPopCurrent)                    \
  X(cuDeviceGet)                        \
  X(cuDevicePrimaryCtxRetain)           \
  X(cuMemAlloc)                         \
  X(cuMemFree)                          \
  X(cuMemcpyDtoHAsync)                  \
  X(cuMemcpyHtoDAsync)                  \
  X(cuStreamCreateWithPriority)         \
  X(cuStreamDestroy)                    \
  X(cuStreamGetCtx)                     \
  X(cuStreamSynchronize)                \
  X(cuStreamWaitEvent)                  \
  X(cuEventCreate)                      \
  X(cuEventDestroy)                     \
  X(cuEventElapsedTime)                 \
  X(cuEventRecord)                      \
  X(cuMemsetD8Async)

// Immutable once open; thread-safe.
struct CudaDriver {
  // The process's driver, opened and initialized by the first call; a failure is final. The path
  // comes from TF_INTEROP_LIBCUDA where that is set.
  static Status Get(const CudaDriver** driver);

  // Opens `path` (or the default where it is empty) and initializes the driver.
  static Status Open(const std::string& path, CudaDriver* driver);

  // Ok, or an error with CUDA's name and text for `result`. `call` names what was called.
  Status Check(CUresult result, const char* call) const;

#define TF_INTEROP_DECLARE(name) decltype(&::name) name = nullptr;
  TF_INTEROP_CUDA_ENTRY_POINTS(TF_INTEROP_DECLARE)
#undef TF_INTEROP_DECLARE

  DynamicLibrary library;
};

// Makes a CUDA context current on this thread for as long as it lives, whatever context the thread
// has: the runner is called on TensorFlow's threads, which may have another device's or none.
class ScopedContext {
 public:
  ScopedContext(const CudaDriver& driver, CUcontext context);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  // Whether the context could be made current.
  const Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  Status status_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDA_DRIVER_H_
