#include "cc_kernels/core/cudnn/dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>

namespace tf_interop {
namespace {

std::string LastLoaderError() {
  const char* error = dlerror();
  return error == nullptr ? "no reason given" : error;
}

// Appends the Python package folder that the library at `info` lies in, if any.
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

}  // namespace

Status DynamicLibrary::Open(const std::vector<std::string>& candidates, const std::string& advice,
                            DynamicLibrary* library) {
  std::string reasons;
  for (const std::string& candidate : candidates) {
    // Local, so that a cuDNN of another version in the process keeps its own symbols.
    void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      library->handle_ = handle;
      library->path_ = candidate;
      return Status::Ok();
    }
    if (!reasons.empty()) reasons += "; ";
    reasons += LastLoaderError();
  }
  return Unavailable("Expected a shared library that can be opened, got: " + reasons + ". " +
                     advice);
}

Status DynamicLibrary::FindAddress(const char* symbol, void** address) const {
  *address = dlsym(handle_, symbol);
  if (*address != nullptr) return Status::Ok();
  return Unavailable(std::string("Expected '") + symbol + "' in '" + path_ +
                     "', got: " + LastLoaderError() + ". Install a newer version of this library.");
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

}  // namespace tf_interop
