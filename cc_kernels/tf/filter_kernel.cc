#include "cc_kernels/tf/filter_kernel.h"

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/algorithm/container.h"
#include "cc_kernels/tf/own_memory.h"
#include "cc_kernels/tf/stock_kernel.h"
#include "tensorflow/core/util/util.h"

namespace tf_interop {
namespace {

// Calls with more sizes run the kernel that keeps no filter.
constexpr size_t kMostArranged = 64;
// Of a filter: in oneDNN's form, and its own memory. Winograd's is larger, but few filters have it.
constexpr size_t kCopies = 2;

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

std::shared_ptr<const FilterKernel::Kernels> FilterKernel::Find(const tensorflow::Tensor& filter) {
  std::shared_ptr<const Kernels> held;  // first, so that it is freed after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  held = held_.Get();
  if (held != nullptr && IsSame(filter, held->filter)) {
    holding_.SawTheSame();
    return held;
  }
  held_.Take();
  const bool replaces = held != nullptr;
  const auto bytes = static_cast<int64_t>(kCopies * filter.TotalBytes());
  if (!IsTensorFlowsOwn(filter) || !holding_.ShouldHoldNew(replaces) || !MakeRoomForHeld(bytes)) {
    return nullptr;
  }
  std::unique_ptr<tensorflow::OpKernel> kernel;
  if (!MakeStockKernel(device_, graph_def_version_, /*has_constant_filter=*/true, node_, &kernel)
           .ok()) {
    return nullptr;  // the step's other kernel runs
  }
  auto made = std::make_shared<Kernels>();
  made->filter = filter;
  made->direct = DirectConvolution::Make(*kernel, tries_ways_);
  made->kernel = std::make_unique<ArrangingKernel>(std::move(kernel));
  if (made->direct == nullptr && tries_ways_ && !tensorflow::IsMKLEnabled() &&
      MakeOneDnnKernel(device_, graph_def_version_, /*has_constant_filter=*/true, node_, &kernel)
          .ok()) {
    made->direct = DirectConvolution::Make(*kernel, tries_ways_);
    made->is_direct_stock = false;
  }
  held_.Set(made, bytes);
  return made;
}

}  // namespace tf_interop
