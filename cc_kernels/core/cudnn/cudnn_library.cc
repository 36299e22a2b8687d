#include "cc_kernels/core/cudnn/cudnn_library.h"

namespace tf_interop {
namespace {

constexpr size_t kOldestVersion = 90000;

StatusCode CodeOf(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
      return StatusCode::kResourceExhausted;
    default:
      break;
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

struct LoadedCudnn {
  LoadedCudnn() : status(CudnnLibrary::Open("", &library)) {}
  CudnnLibrary library;
  Status status;
};

}  // namespace

Status CudnnLibrary::Get(const CudnnLibrary** library) {
  // Never destroyed: handles and plans are used until the very end of the process.
  static const LoadedCudnn* loaded = new LoadedCudnn();
  *library = &loaded->library;
  return loaded->status;
}

Status CudnnLibrary::Open(const std::string& path, CudnnLibrary* library) {
  const std::vector<std::string> candidates =
      path.empty() ? LibraryCandidates("TF_INTEROP_LIBCUDNN", "libcudnn.so.9",
                                       "nvidia/cudnn/lib/libcudnn.so.9")
                   : std::vector<std::string>{path};
  TF_INTEROP_RETURN_IF_ERROR(DynamicLibrary::Open(
      candidates,
      "Install cuDNN 9 (it comes with pip install tensorflow[and-cuda]), or set "
      "TF_INTEROP_LIBCUDNN to the path of libcudnn.so.9.",
      &library->library));
  // The version first: an older cuDNN lacks entry points, and that message would not help.
  TF_INTEROP_RETURN_IF_ERROR(library->library.Find("cudnnGetVersion", &library->cudnnGetVersion));
  const size_t version = library->cudnnGetVersion();
  if (version < kOldestVersion) {
    return Unavailable("Expected cuDNN 9.0 or newer, got " + CudnnVersionText(version) + " from '" +
                       library->library.path() +
                       "'. Install cuDNN 9, or set TF_INTEROP_LIBCUDNN to its path.");
  }
#define TF_INTEROP_FIND(name) \
  TF_INTEROP_RETURN_IF_ERROR(library->library.Find(#name, &library->name));
  TF_INTEROP_CUDNN_ENTRY_POINTS(TF_INTEROP_FIND)
#undef TF_INTEROP_FIND
  // Null where it is missing, which CheckHasLegacyApi reports to those who need it.
#define TF_INTEROP_FIND_IF_THERE(name) (void)library->library.Find(#name, &library->name);
  TF_INTEROP_CUDNN_LEGACY_ENTRY_POINTS(TF_INTEROP_FIND_IF_THERE)
#undef TF_INTEROP_FIND_IF_THERE
  return Status::Ok();
}

Status CudnnLibrary::CheckHasLegacyApi() const {
#define TF_INTEROP_CHECK_THERE(name)                                                          \
  if (this->name == nullptr) {                                                                \
    return Unsupported("Expected '" #name "' in '" + library.path() + "' (cuDNN " +           \
                       CudnnVersionText(cudnnGetVersion()) +                                  \
                       "), which is not there: algorithms of cuDNN's legacy API cannot run. " \
                       "Pin engines of its graph API.");                                      \
  }
  TF_INTEROP_CUDNN_LEGACY_ENTRY_POINTS(TF_INTEROP_CHECK_THERE)
#undef TF_INTEROP_CHECK_THERE
  return Status::Ok();
}

std::string CudnnLibrary::version() const { return CudnnVersionText(cudnnGetVersion()); }

Status CudnnLibrary::Check(cudnnStatus_t status, std::string_view call) const {
  if (status == CUDNN_STATUS_SUCCESS) return Status::Ok();
  char last_error[1024] = "";
  cudnnGetLastErrorString(last_error, sizeof(last_error));
  last_error[sizeof(last_error) - 1] = '\0';
  const std::string detail = *last_error == '\0' ? "" : std::string(": ") + last_error;
  return Status(CodeOf(status), std::string(call) + " failed with " + cudnnGetErrorString(status) +
                                    " (" + std::to_string(static_cast<int>(status)) + ")" + detail +
                                    ". Set CUDNN_LOGLEVEL_DBG=3 and CUDNN_LOGDEST_DBG=stderr to "
                                    "see cuDNN's log.");
}

std::string CudnnVersionText(size_t version) {
  // Up to cuDNN 8 another unit was used: 8907 for 8.9.7.
  const size_t major_unit = version >= kOldestVersion ? 10000 : 1000;
  return std::to_string(version / major_unit) + "." + std::to_string(version % major_unit / 100) +
         "." + std::to_string(version % 100);
}

}  // namespace tf_interop
