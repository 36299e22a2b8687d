// The parts of CUDA's driver API and of cuDNN 9 that the backend uses, opened at run time.
#ifndef TF_INTEROP_CORE_CUDNN_LIBRARIES_H_
#define TF_INTEROP_CORE_CUDNN_LIBRARIES_H_

#include <cuda.h>
#include <cudnn.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cc_kernels/core/status.h"

// Headers of CUDA 13 rename it to cuEventElapsedTime_v2, which drivers older than CUDA 12.8 lack.
#undef cuEventElapsedTime
// NOLINTNEXTLINE(readability-redundant-declaration,readability-inconsistent-declaration-parameter-name)
extern "C" CUresult CUDAAPI cuEventElapsedTime(float* elapsed_ms, CUevent start, CUevent stop);

namespace tf_interop {

// A function of a library: its name, and the pointer that it is to be found for.
struct EntryPoint {
  const char* name;
  void* pointer;
};

// An open shared library. It stays loaded until the process ends: CUDA's libraries start threads
// and register handlers at exit that outlive any handle. Copies refer to the same library.
class DynamicLibrary {
 public:
  // Opens the first of `candidates` (names or paths) that can be opened. `advice` says what to do
  // where none can; kUnavailable then.
  Status Open(const std::vector<std::string>& candidates, const std::string& advice);

  // The candidate that was opened.
  const std::string& path() const { return path_; }

  // Fills all pointers. Returns kUnavailable, with the library's path, where one is not there.
  Status Find(const std::vector<EntryPoint>& entry_points) const;
  // Fills those that exist; gives the names of the others, with commas between them.
  std::string FindSome(const std::vector<EntryPoint>& entry_points) const;

 private:
  void* handle_ = nullptr;
  std::string path_;
};

// Where to look for a library: the path in the environment variable `override_variable` alone if
// that is set, else `name`, then `package_path` below every site-packages or dist-packages folder
// that a loaded library comes from, which is where pip puts NVIDIA's libraries.
std::vector<std::string> LibraryCandidates(const char* override_variable, const std::string& name,
                                           const std::string& package_path);

// Declare a pointer for each name of a list, and list them with their names.
#define TF_INTEROP_DECLARE(name) decltype(&::name) name = nullptr;
#define TF_INTEROP_NAME(name) #name
#define TF_INTEROP_ENTRY_POINT(name) {TF_INTEROP_NAME(name), &this->name},

// The status of a call of one of these functions.
#define TF_INTEROP_CALL(library, function, ...) \
  (library).Check((library).function(__VA_ARGS__), #function)

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
  X(cuGraphInstantiateWithFlags)        \
  X(cuGraphLaunch)                      \
  X(cuGraphExecDestroy)                 \
  X(cuGraphDestroy)

// What green contexts take; a driver may lack them.
#define TF_INTEROP_CUDA_GREEN_CONTEXT_ENTRY_POINTS(X) \
  X(cuDeviceGetDevResource)                           \
  X(cuDevSmResourceSplitByCount)                      \
  X(cuDevResourceGenerateDesc)                        \
  X(cuGreenCtxCreate)                                 \
  X(cuGreenCtxDestroy)                                \
  X(cuGreenCtxGetDevResource)                         \
  X(cuGreenCtxStreamCreate)

// Immutable once open; thread-safe.
struct CudaDriver {
  // The process's driver, opened and initialized by the first call; a failure is final. The path
  // comes from TF_INTEROP_LIBCUDA where that is set.
  static Status Get(const CudaDriver** driver);

  // Opens `path` (or the default where it is empty) and initializes the driver.
  Status Open(const std::string& path);

  // Ok, or an error with CUDA's name and text for `result`. `call` names what was called.
  Status Check(CUresult result, const char* call) const;

  // kUnsupported, with the entry points that are missing, if there are no green contexts.
  Status CheckHasGreenContexts() const;

  TF_INTEROP_CUDA_ENTRY_POINTS(TF_INTEROP_DECLARE)
  TF_INTEROP_CUDA_GREEN_CONTEXT_ENTRY_POINTS(TF_INTEROP_DECLARE)  // null where missing

  DynamicLibrary library;
  std::string missing_of_green_contexts;
};

// The two halves of a ScopedContext: `outer` is what the first tells the second.
Status EnterContext(const CudaDriver& driver, CUcontext context, CUcontext* outer);
void LeaveContext(const CudaDriver& driver, CUcontext outer);

// Makes a CUDA context current on this thread for as long as it lives, whatever context the thread
// has. Inside a scope of the same context it does nothing, which makes many calls in a row cheap;
// whatever else runs inside a scope has to leave the thread's context as it was.
class ScopedContext {
 public:
  ScopedContext(const CudaDriver& driver, CUcontext context)
      : driver_(driver), status_(EnterContext(driver, context, &outer_)) {}
  ~ScopedContext() {
    if (status_.ok()) LeaveContext(driver_, outer_);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  // Whether the context could be made current.
  const Status& status() const { return status_; }

 private:
  const CudaDriver& driver_;
  CUcontext outer_ = nullptr;
  Status status_;
};

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

// Immutable once open; thread-safe. cuDNN itself wants each handle on one thread at a time.
struct CudnnLibrary {
  // The process's cuDNN, opened by the first call; a failure is final. The path comes from
  // TF_INTEROP_LIBCUDNN where that is set.
  static Status Get(const CudnnLibrary** library);

  // Opens `path` (or the default where it is empty). Returns kUnavailable if there is no
  // cuDNN, or one that is older than 9.0.
  Status Open(const std::string& path);

  // What cudnnGetVersion gives, such as "9.10.2".
  std::string version() const;

  // Ok, or an error with cuDNN's name for `status`, its last error text, and how to learn more.
  // `call` names what was called.
  Status Check(cudnnStatus_t status, std::string_view call) const;

  TF_INTEROP_CUDNN_ENTRY_POINTS(TF_INTEROP_DECLARE)

  DynamicLibrary library;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_LIBRARIES_H_
