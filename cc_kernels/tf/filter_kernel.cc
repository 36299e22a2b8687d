#include "cc_kernels/tf/filter_kernel.h"

#include <memory>
#include <utility>

#include "cc_kernels/tf/own_memory.h"
#include "cc_kernels/tf/stock_kernel.h"

namespace tf_interop {

FilterKernel::Held FilterKernel::Find(const tensorflow::Tensor& filter) {
  // Declared first, so that they are freed after the lock.
  Held old;
  tensorflow::Tensor old_filter;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (held_.kernel != nullptr && IsSame(filter, filter_)) {
    holding_.SawTheSame();
    return held_;
  }
  old = std::exchange(held_, {});
  old_filter = std::exchange(filter_, tensorflow::Tensor());
  if (!IsTensorFlowsOwn(filter) || !holding_.ShouldHoldNew()) return {};
  std::unique_ptr<tensorflow::OpKernel> kernel;
  if (!MakeStockKernel(device_, graph_def_version_, /*has_constant_filter=*/true, node_, &kernel)
           .ok()) {
    return {};  // the step's other kernel runs
  }
  held_.direct = DirectConvolution::Make(*kernel, tries_winograd_);
  held_.kernel = std::make_shared<ArrangingKernel>(std::move(kernel));
  filter_ = filter;
  return held_;
}

}  // namespace tf_interop
