#include "cc_kernels/core/cudnn/libraries.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tf_interop {
namespace {

// Appends the Python package folder of the library at `info`, if it is in one.
int AppendPackageFolder(struct dl_phdr_info* info, size_t, void* folders) {
  const std::string path = info->dlpi_name;
  for (const char* name : {"/site-packages/", "/dist-packages/"}) {
    const size_t found = path.rfind(name);
    if (found == std::string::npos) continue;
    auto* all = static_cast<std::vector<std::string>*>(folders);
    std::string folder = path.substr(0, found + std::string(name).size());
    if (std::find(all->begin(), all->end(), folder) == all->end()) {
      all->push_back(std::move(folder));
    }
  }
  return 0;
}

// Never destroyed: the library is used until the process ends.
template <typename Library>
Status OpenOnce(const Library** library) {
  struct Opened {
    Library library;
    Status status = library.Open();
  };
  static const auto* const opened = new Opened();
  *library = &opened->library;
  return opened->status;
}

StatusCode CodeOf(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return StatusCode::kResourceExhausted;
    case CUDA_ERROR_NOT_SUPPORTED:
      return StatusCode::kUnsupported;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return StatusCode::kUnavailable;
    default:
      return StatusCode::kInternal;
  }
}

StatusCode CodeOf(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
    return StatusCode::kResourceExhausted;
  }
  switch (CUDNN_STATUS_CATEGORY(static_cast<int>(status))) {
    case 1000:
      return StatusCode::kUnavailable;
    case CUDNN_STATUS_NOT_SUPPORTED:
      return StatusCode::kUnsupported;
    default:
      return StatusCode::kInternal;
  }
}

// The context of this thread's innermost scope; null outside all scopes.
thread_local CUcontext innermost_context = nullptr;

}  // namespace

Status DynamicLibrary::Open(const std::vector<std::string>& candidates, const std::string& advice) {
  std::string reasons;
  for (const std::string& candidate : candidates) {
    // Local, so that another version of cuDNN in the process keeps its own symbols.
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    path_ = candidate;
    if (handle_ != nullptr) return Status::Ok();
    reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
  }
  return Unavailable("No shared library could be opened: " + reasons + ". " + advice);
}

Status DynamicLibrary::Find(const std::vector<EntryPoint>& entry_points) const {
  std::string missing;
  for (const EntryPoint& entry_point : entry_points) {
    void* const address = dlsym(handle_, entry_point.name);
    std::memcpy(entry_point.pointer, &address, sizeof(address));
    if (address == nullptr)
      missing += (missing.empty() ? "" : ", ") + std::string(entry_point.name);
  }
  if (missing.empty()) return Status::Ok();
  return Unavailable("Expected '" + missing + "' in '" + path_ +
                     "', found no such symbols. Install a newer version of this library.");
}

std::vector<std::string> LibraryCandidates(const char* override_variable, const std::string& name,
                                           const std::string& package_path) {
  const char* override_path = std::getenv(override_variable);
  if (override_path != nullptr && *override_path != '\0') return {override_path};
  std::vector<std::string> candidates = {name};
  if (package_path.empty()) return candidates;
  std::vector<std::string> folders;
  dl_iterate_phdr(AppendPackageFolder, &folders);
  for (const std::string& folder : folders) candidates.push_back(folder + package_path);
  return candidates;
}

Status CudaDriver::Get(const CudaDriver** driver) { return OpenOnce(driver); }

Status CudaDriver::Open() {
  TF_INTEROP_RETURN_IF_ERROR(library.Open(
      LibraryCandidates("TF_INTEROP_LIBCUDA", "libcuda.so.1", ""),
      "Install NVIDIA's driver, or set TF_INTEROP_LIBCUDA to the path of libcuda.so.1."));
  TF_INTEROP_RETURN_IF_ERROR(library.Find({TF_INTEROP_CUDA_ENTRY_POINTS(TF_INTEROP_ENTRY_POINT)}));
  return TF_INTEROP_CALL(*this, cuInit, 0);
}

Status CudaDriver::Check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return Status::Ok();
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) name = "unknown error";
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "no description";
  return Status(CodeOf(result), std::string(call) + " failed with " + name + " (" +
                                    std::to_string(static_cast<int>(result)) + "): " + text + ".");
}

bool IsCapturing(const CudaDriver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

Status EnterContext(const CudaDriver& driver, CUcontext context, CUcontext* outer) {
  *outer = innermost_context;
  if (innermost_context == context) return Status::Ok();
  TF_INTEROP_RETURN_IF_ERROR(TF_INTEROP_CALL(driver, cuCtxPushCurrent, context));
  innermost_context = context;
  return Status::Ok();
}

void LeaveContext(const CudaDriver& driver, CUcontext outer) {
  if (innermost_context == outer) return;
  innermost_context = outer;
  CUcontext popped = nullptr;
  driver.cuCtxPopCurrent(&popped);  // the next call on the context reports a failure
}

Status CudnnLibrary::Get(const CudnnLibrary** library) { return OpenOnce(library); }

Status CudnnLibrary::Open() {
  TF_INTEROP_RETURN_IF_ERROR(library.Open(
      LibraryCandidates("TF_INTEROP_LIBCUDNN", "libcudnn.so.9", "nvidia/cudnn/lib/libcudnn.so.9"),
      "Install cuDNN 9 (it comes with pip install tensorflow[and-cuda]), or set "
      "TF_INTEROP_LIBCUDNN to the path of libcudnn.so.9."));
  return library.Find({TF_INTEROP_CUDNN_ENTRY_POINTS(TF_INTEROP_ENTRY_POINT)});
}

std::string CudnnLibrary::version() const {
  const size_t version = cudnnGetVersion();
  // 90301 is 9.3.1.
  return std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
         std::to_string(version % 100);
}

Status CudnnLibrary::Check(cudnnStatus_t status, std::string_view call) const {
  if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();
  char last_error[1024] = "";
  cudnnGetLastErrorString(last_error, sizeof(last_error));
  const std::string detail = *last_error == '\0' ? "" : std::string(": ") + last_error;
  return Status(CodeOf(status), std::string(call) + " failed with " + cudnnGetErrorString(status) +
                                    " (" + std::to_string(static_cast<int>(status)) + ")" + detail +
                                    ". Set CUDNN_LOGLEVEL_DBG=3 and CUDNN_LOGDEST_DBG=stderr to "
                                    "see cuDNN's log.");
}

}  // namespace tf_interop
