// The part of cuDNN 9 that the backend uses, opened at run time.
#ifndef TF_INTEROP_CORE_CUDNN_CUDNN_LIBRARY_H_
#define TF_INTEROP_CORE_CUDNN_CUDNN_LIBRARY_H_

#include <cudnn.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "cc_kernels/core/cudnn/dynamic_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

#define TF_INTEROP_CUDNN_ENTRY_POINTS(X) \
  X(cudnnGetVersion)                     \
  X(cudnnGetErrorString)                 \
  X(cudnnGetLastErrorString)             \
  X(cudnnCreate)                         \
  X(cudnnDestroy)                        \
  X(cudnnSetStream)                      \
  X(cudnnBackendCreateDescriptor)        \
  X(cudnnBackendDestroyDescriptor)       \
  X(cudnnBackendSetAttribute)            \
  X(cudnnBackendGetAttribute)            \
  X(cudnnBackendFinalize)                \
  X(cudnnBackendExecute)                 \
  X(cudnnCreateTensorDescriptor)         \
  X(cudnnSetTensorNdDescriptor)          \
  X(cudnnDestroyTensorDescriptor)        \
  X(cudnnTransformTensor)

// The legacy API for convolutions, which a future cuDNN may lack: it is deprecated since 9.0.
#define TF_INTEROP_CUDNN_LEGACY_ENTRY_POINTS(X)     \
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

  // Opens `path` (or the default where it is empty). Returns kUnavailable where there is no
  // cuDNN, or one that is older than 9.0.
  static Status Open(const std::string& path, CudnnLibrary* library);

  // What cudnnGetVersion gives, such as "9.10.2".
  std::string version() const;

  // Ok, or an error with cuDNN's name for `status`, its last error text, and how to learn more.
  // `call` names what was called.
  Status Check(cudnnStatus_t status, std::string_view call) const;

  // Ok where the legacy API for convolutions is there, else kUnsupported with the name of what is
  // missing.
  Status CheckHasLegacyApi() const;

#define TF_INTEROP_DECLARE(name) decltype(&::name) name = nullptr;
  TF_INTEROP_CUDNN_ENTRY_POINTS(TF_INTEROP_DECLARE)
  TF_INTEROP_CUDNN_LEGACY_ENTRY_POINTS(TF_INTEROP_DECLARE)  // any of these may stay null
#undef TF_INTEROP_DECLARE

  DynamicLibrary library;
};

// "9.3.1" for 90301.
std::string CudnnVersionText(size_t version);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_CUDNN_LIBRARY_H_
