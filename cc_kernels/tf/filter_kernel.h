// A step's kernel for a filter that seldom changes.
//
// oneDNN's kernels bring a constant filter into the form that they need once, and keep it for as
// long as they live. So a filter that has changed needs a new kernel.
#ifndef TF_INTEROP_TF_FILTER_KERNEL_H_
#define TF_INTEROP_TF_FILTER_KERNEL_H_

#include <memory>
#include <mutex>

#include "cc_kernels/tf/holding.h"
#include "tensorflow/core/framework/device_base.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {

// Thread-safe.
class FilterKernel {
 public:
  // Makes kernels for `node` on `device`, which must outlive this.
  FilterKernel(tensorflow::DeviceBase* device, int graph_def_version,
               const tensorflow::NodeDef& node)
      : device_(device), graph_def_version_(graph_def_version), node_(node) {}

  // The kernel for this filter; null if the filter should not be held now.
  std::shared_ptr<tensorflow::OpKernel> Find(const tensorflow::Tensor& filter);

 private:
  tensorflow::DeviceBase* const device_;
  const int graph_def_version_;
  const tensorflow::NodeDef node_;
  std::mutex mutex_;  // guards the rest
  tensorflow::Tensor filter_;
  std::shared_ptr<tensorflow::OpKernel> kernel_;  // null if no filter is held
  Holding holding_;
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_FILTER_KERNEL_H_
