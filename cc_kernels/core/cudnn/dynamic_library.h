// A shared library that is opened by name while the program runs.
#ifndef TF_INTEROP_CORE_CUDNN_DYNAMIC_LIBRARY_H_
#define TF_INTEROP_CORE_CUDNN_DYNAMIC_LIBRARY_H_

#include <string>
#include <vector>

#include "cc_kernels/core/status.h"

namespace tf_interop {

// An open shared library. It stays loaded until the process ends: CUDA's libraries start threads
// and register handlers at exit that outlive any handle. Copies refer to the same library.
class DynamicLibrary {
 public:
  // Opens the first of `candidates` (names or paths) that can be opened. `advice` says what to do
  // where none can; kUnavailable then.
  static Status Open(const std::vector<std::string>& candidates, const std::string& advice,
                     DynamicLibrary* library);

  // The candidate that was opened.
  const std::string& path() const { return path_; }

  // Looks up `symbol`. Returns kUnavailable, with the library's path, where it is not there.
  template <typename Function>
  Status Find(const char* symbol, Function* function) const {
    void* address = nullptr;
    TF_INTEROP_RETURN_IF_ERROR(FindAddress(symbol, &address));
    *function = reinterpret_cast<Function>(address);
    return Status::Ok();
  }

 private:
  Status FindAddress(const char* symbol, void** address) const;

  void* handle_ = nullptr;
  std::string path_;
};

// Where to look for a library: the path in the environment variable `override_variable` alone if
// that is set, else `name` (found if already loaded, or on the loader's search path), then
// `package_path` below every site-packages or dist-packages folder that a loaded library comes
// from. The last is where pip puts NVIDIA's libraries, which the loader does not search.
std::vector<std::string> LibraryCandidates(const char* override_variable, const std::string& name,
                                           const std::string& package_path);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_DYNAMIC_LIBRARY_H_
