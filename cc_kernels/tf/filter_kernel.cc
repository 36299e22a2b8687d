#include "cc_kernels/tf/filter_kernel.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "cc_kernels/tf/own_memory.h"
#include "cc_kernels/tf/stock_kernel.h"

namespace tf_interop {
namespace {

// Calls with more sizes run the kernel that keeps no filter.
constexpr size_t kMostArranged = 64;

}  // namespace

bool ArrangingKernel::BeginRun(const tensorflow::Tensor& image, int cores) {
  Sizes sizes = {cores};
  for (int axis = 0; axis < image.dims(); ++axis) sizes.push_back(image.dim_size(axis));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (arranging_.has_value()) return false;
  if (absl::c_linear_search(arranged_, sizes)) {
    ++running_;
    return true;
  }
  if (running_ > 0 || arranged_.size() == kMostArranged) return false;
  arranging_ = std::move(sizes);
  return true;
}

void ArrangingKernel::EndRun(bool is_complete) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!arranging_.has_value()) {
    --running_;
    return;
  }
  if (is_complete) arranged_.push_back(*std::move(arranging_));
  arranging_.reset();
}

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
  const bool replaces = old.kernel != nullptr;
  if (!IsTensorFlowsOwn(filter) || !holding_.ShouldHoldNew(replaces)) return {};
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
