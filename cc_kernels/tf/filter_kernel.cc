#include "cc_kernels/tf/filter_kernel.h"

#include <utility>

#include "cc_kernels/tf/own_memory.h"
#include "cc_kernels/tf/stock_kernel.h"

namespace tf_interop {

std::shared_ptr<tensorflow::OpKernel> FilterKernel::Find(const tensorflow::Tensor& filter) {
  // Declared first, so that they are freed after the lock.
  std::shared_ptr<tensorflow::OpKernel> old_kernel;
  tensorflow::Tensor old_filter;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (kernel_ != nullptr && IsSame(filter, filter_)) {
    holding_.SawTheSame();
    return kernel_;
  }
  old_kernel = std::exchange(kernel_, nullptr);
  old_filter = std::exchange(filter_, tensorflow::Tensor());
  if (!IsTensorFlowsOwn(filter) || !holding_.ShouldHoldNew()) return nullptr;
  std::unique_ptr<tensorflow::OpKernel> made;
  if (!MakeStockKernel(device_, graph_def_version_, /*has_constant_filter=*/true, node_, &made)
           .ok()) {
    return nullptr;  // the step's other kernel runs
  }
  kernel_ = std::move(made);
  filter_ = filter;
  return kernel_;
}

}  // namespace tf_interop
