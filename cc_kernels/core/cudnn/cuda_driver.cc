#include "cc_kernels/core/cudnn/cuda_driver.h"

namespace tf_interop {
namespace {

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

// Of the scopes that this thread is in; null outside of all.
thread_local CUcontext innermost_context = nullptr;

struct LoadedDriver {
  LoadedDriver() : status(CudaDriver::Open("", &driver)) {}
  CudaDriver driver;
  Status status;
};

}  // namespace

Status CudaDriver::Get(const CudaDriver** driver) {
  // Never destroyed: streams are used until the very end of the process.
  static const LoadedDriver* loaded = new LoadedDriver();
  *driver = &loaded->driver;
  return loaded->status;
}

Status CudaDriver::Open(const std::string& path, CudaDriver* driver) {
  const std::vector<std::string> candidates =
      path.empty() ? LibraryCandidates("TF_INTEROP_LIBCUDA", "libcuda.so.1", "")
                   : std::vector<std::string>{path};
  TF_INTEROP_RETURN_IF_ERROR(DynamicLibrary::Open(
      candidates, "Install NVIDIA's driver, or set TF_INTEROP_LIBCUDA to the path of libcuda.so.1.",
      &driver->library));
#define TF_INTEROP_STRING(name) #name
#define TF_INTEROP_FIND(name) \
  TF_INTEROP_RETURN_IF_ERROR(driver->library.Find(TF_INTEROP_STRING(name), &driver->name));
  TF_INTEROP_CUDA_ENTRY_POINTS(TF_INTEROP_FIND)
#undef TF_INTEROP_FIND
// A failure leaves the entry point null, which CheckHasGreenContexts sees.
#define TF_INTEROP_TRY_TO_FIND(name) \
  (void)driver->library.Find(TF_INTEROP_STRING(name), &driver->name);
  TF_INTEROP_CUDA_GREEN_CONTEXT_ENTRY_POINTS(TF_INTEROP_TRY_TO_FIND)
#undef TF_INTEROP_TRY_TO_FIND
#undef TF_INTEROP_STRING
  return driver->Check(driver->cuInit(0), "cuInit");
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

Status CudaDriver::CheckHasGreenContexts() const {
#if CUDA_VERSION >= 12050
  std::string missing;
#define TF_INTEROP_LIST_MISSING(name) \
  if (name == nullptr) missing += (missing.empty() ? "" : ", ") + std::string(#name);
  TF_INTEROP_CUDA_GREEN_CONTEXT_ENTRY_POINTS(TF_INTEROP_LIST_MISSING)
#undef TF_INTEROP_LIST_MISSING
  if (missing.empty()) return Status::Ok();
  return Unsupported(
      "Expected a driver with green contexts, as those of CUDA 12.5 and newer are, '" +
      library.path() + "' lacks " + missing +
      ". Install a newer NVIDIA driver, or ask for no SM counts.");
#else
  return Unsupported("Expected a library built with the headers of CUDA 12.5 or newer, got " +
                     std::to_string(CUDA_VERSION / 1000) + "." +
                     std::to_string(CUDA_VERSION % 1000 / 10) +
                     ", which have no green contexts. Build it anew, or ask for no SM counts.");
#endif
}

Status EnterContext(const CudaDriver& driver, CUcontext context, CUcontext* outer) {
  *outer = innermost_context;
  if (innermost_context == context) return Status::Ok();
  TF_INTEROP_RETURN_IF_ERROR(driver.Check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent"));
  innermost_context = context;
  return Status::Ok();
}

void LeaveContext(const CudaDriver& driver, CUcontext outer) {
  if (innermost_context == outer) return;
  innermost_context = outer;
  CUcontext popped = nullptr;
  // Nothing can be done about a failure here, and the next call on the context reports it.
  (void)driver.cuCtxPopCurrent(&popped);
}

ScopedContext::ScopedContext(const CudaDriver& driver, const ExecutionContext& execution)
    : driver_(driver),
      turn_(execution.turn != nullptr ? std::unique_lock<std::mutex>(*execution.turn)
                                      : std::unique_lock<std::mutex>()),
      status_(EnterContext(driver, execution.context, &outer_)) {}

ScopedContext::~ScopedContext() {
  if (status_.ok()) LeaveContext(driver_, outer_);
}

}  // namespace tf_interop
