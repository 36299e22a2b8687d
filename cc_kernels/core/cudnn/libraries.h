// The functions of CUDA's driver and of cuDNN 9 that the backend uses, opened at run time.
#ifndef TF_INTEROP_CORE_CUDNN_LIBRARIES_H_
#define TF_INTEROP_CORE_CUDNN_LIBRARIES_H_

#include <cuda.h>
#include <cudnn.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cc_kernels/core/status.h"

// CUDA 13's headers rename it to cuEventElapsedTime_v2, which drivers before 12.8 lack.
#undef cuEventElapsedTime
// NOLINTNEXTLINE(readability-redundant-declaration,readability-inconsistent-declaration-parameter-name)
extern "C" CUresult CUDAAPI cuEventElapsedTime(float* elapsed_ms, CUevent start, CUevent stop);

namespace tf_interop {

// The name of a library's function, and the pointer to fill with its address.
struct EntryPoint {
  const char* name;
  void* pointer;
};

// An open shared library. It stays loaded until the process ends: CUDA's libraries start threads
// and register exit handlers that outlive any handle.
class DynamicLibrary {
 public:
  // Opens the first of `candidates` (names or paths) that can be opened. If none can, returns
  // kUnavailable with `advice`.
  Status Open(const std::vector<std::string>& candidates, const std::string& advice);

  // The candidate that was opened.
  const std::string& path() const { return path_; }

  // Fills all pointers. Returns kUnavailable, with the library's path, if a function is missing.
  Status Find(const std::vector<EntryPoint>& entry_points) const;

 private:
  void* handle_ = nullptr;
  std::string path_;
};

// The places to look for a library: only the path in the environment variable `override_variable`
// if that is set; otherwise `name`, then `package_path` in every site-packages or dist-packages
// folder that a loaded library comes from, where pip puts NVIDIA's libraries.
std::vector<std::string> LibraryCandidates(const char* override_variable, const std::string& name,
                                           const std::string& package_path);

// Declare a pointer for each name of a list, and make the list of EntryPoints.
#define TF_INTEROP_DECLARE(name) decltype(&::name) name = nullptr;
#define TF_INTEROP_NAME(name) #name
#define TF_INTEROP_ENTRY_POINT(name) {TF_INTEROP_NAME(name), &this->name},

// The status of a call of one of these functions.
#define TF_INTEROP_CALL(library, function, ...) \
  (library).Check((library).function(__VA_ARGS__), #function)

// cuda.h renames entry points to the version that it declares (cuStreamDestroy to
// cuStreamDestroy_v2). Members and symbols have the new names.
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
  X(cuEventQuery)                       \
  X(cuEventRecord)                      \
  X(cuMemsetD8Async)                    \
  X(cuStreamBeginCapture)               \
  X(cuStreamEndCapture)                 \
  X(cuStreamIsCapturing)                \
  X(cuThreadExchangeStreamCaptureMode)  \
  X(cuGraphInstantiateWithFlags)        \
  X(cuGraphLaunch)                      \
  X(cuGraphExecDestroy)                 \
  X(cuGraphDestroy)

// Immutable once open; thread-safe.
struct CudaDriver {
  // The process's driver. The first call opens it; a failure is final.
  static Status Get(const CudaDriver** driver);

  // Opens and initializes the driver, at the path in TF_INTEROP_LIBCUDA if that is set.
  Status Open();

  // Ok, or an error with CUDA's name and text for `result`. `call` is the name of the function.
  Status Check(CUresult result, const char* call) const;

  TF_INTEROP_CUDA_ENTRY_POINTS(TF_INTEROP_DECLARE)

  DynamicLibrary library;
};

// Whether the work on a stream is being captured. If that is unknown, it is not.
bool IsCapturing(const CudaDriver& driver, CUstream stream);

// The two halves of a ScopedContext. The first sets `outer` for the second.
Status EnterContext(const CudaDriver& driver, CUcontext context, CUcontext* outer);
void LeaveContext(const CudaDriver& driver, CUcontext outer);

// Makes a CUDA context current on this thread while it lives. Inside a scope of the same context it
// does nothing, so that many calls in a row are cheap. Other code inside a scope must leave the
// thread's context as it was.
class ScopedContext {
 public:
  ScopedContext(const CudaDriver& driver, CUcontext context)
      : driver_(driver), status_(EnterContext(driver, context, &outer_)) {}
  ~ScopedContext() {
    if (status_.ok()) LeaveContext(driver_, outer_);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  CUcontext outer_ = nullptr;
  Status status_;
};

// Makes a context current until the end of the block, or returns the error.
#define TF_INTEROP_ENTER_CONTEXT(driver, context)        \
  const ScopedContext scope_of_context(driver, context); \
  TF_INTEROP_RETURN_IF_ERROR(scope_of_context.status())

#define TF_INTEROP_CUDNN_ENTRY_POINTS(X)            \
  X(cudnnGetVersion)                                \
  X(cudnnGetErrorString)                            \
  X(cudnnGetLastErrorString)                        \
  X(cudnnCreate)                                    \
  X(cudnnSetStream)                                 \
  X(cudnnBackendCreateDescriptor)                   \
  X(cudnnBackendDestroyDescriptor)                  \
  X(cudnnBackendSetAttribute)                       \
  X(cudnnBackendGetAttribute)                       \
  X(cudnnBackendFinalize)                           \
  X(cudnnBackendExecute)                            \
  X(cudnnCreateTensorDescriptor)                    \
  X(cudnnSetTensorNdDescriptor)                     \
  X(cudnnDestroyTensorDescriptor)                   \
  X(cudnnTransformTensor)                           \
  X(cudnnCreateFilterDescriptor)                    \
  X(cudnnSetFilterNdDescriptor)                     \
  X(cudnnDestroyFilterDescriptor)                   \
  X(cudnnCreateConvolutionDescriptor)               \
  X(cudnnSetConvolutionNdDescriptor)                \
  X(cudnnSetConvolutionGroupCount)                  \
  X(cudnnSetConvolutionMathType)                    \
  X(cudnnDestroyConvolutionDescriptor)              \
  X(cudnnGetConvolutionForwardWorkspaceSize)        \
  X(cudnnGetConvolutionBackwardDataWorkspaceSize)   \
  X(cudnnGetConvolutionBackwardFilterWorkspaceSize) \
  X(cudnnConvolutionForward)                        \
  X(cudnnConvolutionBackwardData)                   \
  X(cudnnConvolutionBackwardFilter)

// Immutable once open; thread-safe. But cuDNN allows a handle on only one thread at a time.
struct CudnnLibrary {
  // The process's cuDNN. The first call opens it; a failure is final.
  static Status Get(const CudnnLibrary** library);

  // Opens cuDNN, at the path in TF_INTEROP_LIBCUDNN if that is set. Returns kUnavailable if there
  // is none, or one older than 9.0, which lacks some of these functions.
  Status Open();

  // cuDNN's version, such as "9.10.2".
  std::string version() const;

  // Ok, or an error with cuDNN's name for `status`, its last error text, and a way to learn more.
  Status Check(cudnnStatus_t status, std::string_view call) const;

  TF_INTEROP_CUDNN_ENTRY_POINTS(TF_INTEROP_DECLARE)

  DynamicLibrary library;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_LIBRARIES_H_
