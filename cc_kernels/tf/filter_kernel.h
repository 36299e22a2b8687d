// A step's kernel for a filter that seldom or never changes.
//
// oneDNN needs a filter in another form, and this keeps it: in a DirectConvolution, or in a kernel
// of TensorFlow's, which keeps a filter for as long as it lives. So a filter that has changed needs
// a new one.
#ifndef TF_INTEROP_TF_FILTER_KERNEL_H_
#define TF_INTEROP_TF_FILTER_KERNEL_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

#include "cc_kernels/tf/direct_convolution.h"
#include "cc_kernels/tf/holding.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// A kernel that arranges its filter in its first run. It does that under a lock and on the pool,
// whose threads may all run steps of other calls. So none of them may wait for this lock.
// Thread-safe.
class ArrangingKernel {
 public:
  explicit ArrangingKernel(std::unique_ptr<tensorflow::OpKernel> kernel)
      : kernel_(std::move(kernel)) {}

  tensorflow::OpKernel* get() const { return kernel_.get(); }
  // Whether a call may run it now; EndRun follows its run.
  bool BeginRun() {
    State state = State::kNew;
    return state_.compare_exchange_strong(state, State::kArranging) || state == State::kArranged;
  }
  void EndRun() { state_.store(State::kArranged); }

 private:
  enum class State { kNew, kArranging, kArranged };

  const std::unique_ptr<tensorflow::OpKernel> kernel_;
  std::atomic<State> state_{State::kNew};
};

// Thread-safe.
class FilterKernel {
 public:
  // For `node` on `device`, which must outlive this. See DirectConvolution for `tries_winograd`.
  FilterKernel(tensorflow::DeviceBase* device, int graph_def_version,
               const tensorflow::NodeDef& node, bool tries_winograd)
      : device_(device),
        graph_def_version_(graph_def_version),
        node_(node),
        tries_winograd_(tries_winograd) {}

  // `direct` for the inputs that it takes, if it is not null, and `kernel` for others.
  struct Held {
    std::shared_ptr<DirectConvolution> direct;
    std::shared_ptr<ArrangingKernel> kernel;
  };

  // For this filter; nothing if the filter should not be held now.
  Held Find(const tensorflow::Tensor& filter);

 private:
  tensorflow::DeviceBase* const device_;
  const int graph_def_version_;
  const tensorflow::NodeDef node_;
  const bool tries_winograd_;
  std::mutex mutex_;  // guards the rest
  tensorflow::Tensor filter_;
  Held held_;
  Holding holding_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_FILTER_KERNEL_H_
