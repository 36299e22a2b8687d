#include "cc_kernels/core/measure/cupti_library.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tf_interop {
namespace {

constexpr int kOldestMajor = 12;

std::vector<std::string> Candidates(int driver_version) {
  std::vector<std::string> all;
  for (int major = std::max(driver_version / 1000, kOldestMajor); major >= kOldestMajor; --major) {
    const std::string name = "libcupti.so." + std::to_string(major);
    // NVIDIA's wheels have a folder for each library up to CUDA 12, and one for all from 13 on.
    const std::string package = major == 12 ? "cuda_cupti" : "cu" + std::to_string(major);
    const std::vector<std::string> usual =
        LibraryCandidates("TF_INTEROP_LIBCUPTI", name, "nvidia/" + package + "/lib/" + name);
    if (usual.front() != name) return usual;  // the variable is set
    all.insert(all.end(), usual.begin(), usual.end());
    // The toolkit keeps it where the loader may not look.
    for (const std::string& folder : {"-" + std::to_string(major), std::string()}) {
      all.push_back("/usr/local/cuda" + folder + "/lib64/" + name);
      all.push_back("/usr/local/cuda" + folder + "/extras/CUPTI/lib64/" + name);
    }
  }
  return all;
}

}  // namespace

Status CuptiLibrary::Open(int driver_version, CuptiLibrary* library) {
  TF_INTEROP_RETURN_IF_ERROR(DynamicLibrary::Open(
      Candidates(driver_version),
      "Install CUPTI (pip install nvidia-cuda-cupti-cu12, or the CUDA toolkit), or set "
      "TF_INTEROP_LIBCUPTI to its path.",
      &library->library));
#define TF_INTEROP_FIND(name) \
  TF_INTEROP_RETURN_IF_ERROR(library->library.Find(#name, &library->name));
  TF_INTEROP_CUPTI_ENTRY_POINTS(TF_INTEROP_FIND)
#undef TF_INTEROP_FIND
  return Status::Ok();
}

Status CuptiLibrary::Check(CUptiResult result, const char* call) const {
  if (result == CUPTI_SUCCESS) return Status::Ok();
  const char* name = nullptr;
  if (cuptiGetResultString(result, &name) != CUPTI_SUCCESS || name == nullptr) {
    name = "unknown error";
  }
  return Unavailable(std::string(call) + " failed with " + name + " (" +
                     std::to_string(static_cast<int>(result)) + ").");
}

}  // namespace tf_interop
