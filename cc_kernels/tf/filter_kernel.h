// A step's kernel for a filter that seldom or never changes.
//
// oneDNN needs a filter in another form, and this keeps it: in a DirectConvolution, or in a kernel
// of TensorFlow's, which keeps a filter for as long as it lives. So a filter that has changed needs
// a new one.
#ifndef TF_INTEROP_TF_FILTER_KERNEL_H_
#define TF_INTEROP_TF_FILTER_KERNEL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "cc_kernels/core/held_values.h"
#include "cc_kernels/tf/direct_convolution.h"
#include "cc_kernels/tf/holding.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// A kernel that arranges its filter in the first run that needs it in another form, which depends
// on the image's sizes. It does that under a lock and on the pool, whose threads may all run steps
// of other calls. So none of them may wait for this lock: the first run with any sizes is alone.
// Thread-safe.
class ArrangingKernel {
 public:
  explicit ArrangingKernel(std::unique_ptr<tensorflow::OpKernel> kernel)
      : kernel_(std::move(kernel)) {}

  tensorflow::OpKernel* get() const { return kernel_.get(); }
  // Whether a call may run it now; EndRun follows its run.
  bool BeginRun(const tensorflow::Tensor& image, int cores);
  // `is_complete`: it computed a result that is not empty.
  void EndRun(bool is_complete);

 private:
  using Sizes = absl::InlinedVector<int64_t, 6>;  // of an image, and the number of cores

  const std::unique_ptr<tensorflow::OpKernel> kernel_;
  std::mutex mutex_;  // guards the rest
  std::vector<Sizes> arranged_;
  std::optional<Sizes> arranging_;  // for which a call runs alone
  int running_ = 0;                 // others
};

// Thread-safe.
class FilterKernel {
 public:
  // For `node` on `device`, which must outlive this. With `tries_ways` a DirectConvolution tries
  // Winograd's way, and computes with oneDNN even where TensorFlow does not.
  FilterKernel(tensorflow::DeviceBase* device, int graph_def_version,
               const tensorflow::NodeDef& node, bool tries_ways)
      : device_(device),
        graph_def_version_(graph_def_version),
        node_(node),
        tries_ways_(tries_ways) {}

  // `direct` for the inputs that it takes, if it is not null, and `kernel` for others.
  struct Kernels {
    tensorflow::Tensor filter;
    std::unique_ptr<DirectConvolution> direct;
    bool is_direct_stock = true;  // else not for a run as in stock TensorFlow
    std::unique_ptr<ArrangingKernel> kernel;
  };

  // For this filter; null if the filter should not be held now.
  std::shared_ptr<const Kernels> Find(const tensorflow::Tensor& filter);

 private:
  tensorflow::DeviceBase* const device_;
  const int graph_def_version_;
  const tensorflow::NodeDef node_;
  const bool tries_ways_;
  Held<Kernels> held_;
  std::mutex mutex_;  // held while kernels are made
  Holding holding_;   // guarded by mutex_
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_FILTER_KERNEL_H_
