// The part of CUDA's driver API that the backend uses, opened at run time.
#ifndef TF_INTEROP_CORE_CUDNN_CUDA_DRIVER_H_
#define TF_INTEROP_CORE_CUDNN_CUDA_DRIVER_H_

#include <cuda.h>

#include <mutex>
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
  X(cuCtxGetDevice)                     \
  X(cuCtxGetStreamPriorityRange)        \
  X(cuDeviceGet)                        \
  X(cuDeviceGetAttribute)               \
  X(cuDeviceGetName)                    \
  X(cuDevicePrimaryCtxRetain)           \
  X(cuDevicePrimaryCtxRelease)          \
  X(cuDeviceTotalMem)                   \
  X(cuDriverGetVersion)                 \
  X(cuMemAlloc)                         \
  X(cuMemFree)                          \
  X(cuMemcpy2DAsync)                    \
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

// What green contexts take. A driver may lack them; the headers have them all from 12.5 on.
#if CUDA_VERSION >= 12050
#define TF_INTEROP_CUDA_GREEN_CONTEXT_ENTRY_POINTS(X) \
  X(cuDeviceGetDevResource)                           \
  X(cuDevSmResourceSplitByCount)                      \
  X(cuDevResourceGenerateDesc)                        \
  X(cuGreenCtxCreate)                                 \
  X(cuGreenCtxDestroy)                                \
  X(cuGreenCtxGetDevResource)                         \
  X(cuGreenCtxStreamCreate)                           \
  X(cuCtxFromGreenCtx)
#else
#define TF_INTEROP_CUDA_GREEN_CONTEXT_ENTRY_POINTS(X)
#endif

// Immutable once open; thread-safe.
struct CudaDriver {
  // The process's driver, opened and initialized by the first call; a failure is final. The path
  // comes from TF_INTEROP_LIBCUDA where that is set.
  static Status Get(const CudaDriver** driver);

  // Opens `path` (or the default where it is empty) and initializes the driver.
  static Status Open(const std::string& path, CudaDriver* driver);

  // Ok, or an error with CUDA's name and text for `result`. `call` names what was called.
  Status Check(CUresult result, const char* call) const;

  // kUnsupported, with the entry points that are missing, where there are no green contexts.
  Status CheckHasGreenContexts() const;

#define TF_INTEROP_DECLARE(name) decltype(&::name) name = nullptr;
  TF_INTEROP_CUDA_ENTRY_POINTS(TF_INTEROP_DECLARE)
  TF_INTEROP_CUDA_GREEN_CONTEXT_ENTRY_POINTS(TF_INTEROP_DECLARE)  // null where missing
#undef TF_INTEROP_DECLARE

  DynamicLibrary library;
};

// The two halves of a ScopedContext: `outer` is what the first tells the second.
Status EnterContext(const CudaDriver& driver, CUcontext context, CUcontext* outer);
void LeaveContext(const CudaDriver& driver, CUcontext outer);

// A context that streams belong to.
struct ExecutionContext {
  CUcontext context = nullptr;
  // Held while the context is current, where only one thread at a time may have it current: CUDA
  // asks that of green contexts. Null where any number may.
  std::mutex* turn = nullptr;
};

// Makes a CUDA context current on this thread for as long as it lives, whatever context the thread
// has: the runner is called on TensorFlow's threads, which may have another device's or none.
// Inside a scope of the same context it does nothing, which is what makes many calls in a row
// cheap; whatever else runs inside a scope has to leave the thread's context as it was. A thread
// must not make a context current again that it has to wait its turn for.
class ScopedContext {
 public:
  ScopedContext(const CudaDriver& driver, CUcontext context)
      : ScopedContext(driver, ExecutionContext{context, nullptr}) {}
  ScopedContext(const CudaDriver& driver, const ExecutionContext& execution);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  // Whether the context could be made current.
  const Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  std::unique_lock<std::mutex> turn_;  // given up after the destructor has popped the context
  CUcontext outer_ = nullptr;
  Status status_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDA_DRIVER_H_
