// What computes a prepared convolution, or its epilogue, out of one of cuDNN's APIs.
#ifndef TF_INTEROP_CORE_CUDNN_EXECUTABLE_H_
#define TF_INTEROP_CORE_CUDNN_EXECUTABLE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "cc_kernels/core/cudnn/algorithm.h"
#include "cc_kernels/core/cudnn/cudnn_library.h"
#include "cc_kernels/core/status.h"

namespace tf_interop {

// The device memory bound to a tensor, by its TensorId (cudnn_graph.h).
using TensorBinding = std::pair<int64_t, void*>;

// Those of one execution: at most those of a fused convolution. Allocates nothing.
class TensorBindings {
 public:
  void Add(int64_t id, void* pointer) { bound_[size_++] = {id, pointer}; }
  const TensorBinding* begin() const { return bound_.data(); }
  const TensorBinding* end() const { return bound_.data() + size_; }
  // Null where the tensor is not bound.
  void* Find(int64_t id) const {
    for (const auto& [bound, pointer] : *this) {
      if (bound == id) return pointer;
    }
    return nullptr;
  }
  bool operator==(const TensorBindings& other) const {
    return size_ == other.size_ && std::equal(begin(), end(), other.begin());
  }

 private:
  std::array<TensorBinding, 4> bound_;
  size_t size_ = 0;
};

// Runs on bound tensors, with a workspace. Immutable and thread-safe: it may be executed with any
// handle of the device that it was made for.
//
// There are two kinds: plans of operation graphs, and calls of the legacy API.
class Executable {
 public:
  virtual ~Executable() = default;

  // What cuDNN says that it will run, which need not be what was asked for.
  virtual AlgorithmTag tag() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // Whether float operands may be rounded to TF32 or less on the way.
  virtual bool reduces_precision() const = 0;
  // Whether it gives the same bits every time, as far as cuDNN promises.
  virtual bool is_deterministic() const = 0;

  // Enqueues the work on the handle's stream. `workspace` holds workspace_bytes().
  virtual Status Execute(cudnnHandle_t handle, const TensorBindings& bindings,
                         void* workspace) const = 0;
};

// Which executables are good enough.
struct ExecutableRequest {
  // Whether float operands may be rounded to TF32 or less.
  bool allow_reduced_precision = true;
  // Whether it has to give the same bits every time.
  bool requires_determinism = false;
  // The most that the workspace may hold.
  size_t workspace_limit_bytes = 0;
  // Takes the plan with the smallest workspace, whatever the limit.
  bool wants_least_workspace = false;
};

// kUnsupported where the workspace is larger than the request allows.
Status CheckWorkspace(const Executable& executable, const ExecutableRequest& request);

// kUnsupported where the request asks for the same bits every time and cuDNN does not promise them.
Status CheckDeterminism(bool is_deterministic, const ExecutableRequest& request);

// `status` for a pin: what cuDNN refuses about it is the pin's fault (kUnsupported) unless memory
// or a library is missing.
Status AsRefusalOfPin(const AlgorithmTag& tag, const Status& status);

}  // namespace tf_interop

#endif  // TF_INTEROP_CORE_CUDNN_EXECUTABLE_H_
