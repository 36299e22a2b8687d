#define EIGEN_USE_THREADS

#include "cc_kernels/tf/winograd_convolution.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/onednn_calls.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

// If each core has so many tiles, it transforms and multiplies its own, which stay in its cache.
// With fewer, all cores divide each of these steps, so that no two read the same part of the
// filter.
constexpr int64_t kLeastTilesOfCore = 24;
// Of one product, so that its planes stay in the caches.
constexpr int64_t kMostTilesOfProduct = 256;
// Only for deciding whether to divide.
constexpr int64_t kProductsOfCycle = 16;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The largest difference from oneDNN's result, as a part of the largest result. It is up to 3e-6
// for 3x3 and 64 to 256 channels of pixels after a rectifier.
constexpr float kMostError = 2e-5F;

OneDnnPtr<dnnl_memory_desc> DescribePlanes(int64_t rows, int64_t columns,
                                           bool are_transposed = false) {
  return DescribeMatrices(kWinogradPlanes, WinogradPlaneSize(rows, columns), rows, columns,
                          are_transposed);
}

}  // namespace

bool MayGain(const WinogradShape& shape) {
  // With fewer tiles, reading the filter, which is four times as large, takes longer than what is
  // gained. Fewer products are done too soon to gain much.
  constexpr int64_t kLeastTiles = 9;
  constexpr int64_t kLeastProducts = 2'000'000;
  return shape.tiles() >= kLeastTiles && shape.products() >= kLeastProducts;
}

bool AreNear(const tensorflow::Tensor& result, const tensorflow::Tensor& expected) {
  const auto* const values = static_cast<const float*>(result.data());
  const auto* const others = static_cast<const float*>(expected.data());
  float largest = 0;
  float error = 0;
  for (int64_t i = 0; i < expected.NumElements(); ++i) {
    const float difference = std::abs(values[i] - others[i]);
    if (!std::isfinite(difference)) return false;
    error = std::max(error, difference);
    largest = std::max(largest, std::abs(others[i]));
  }
  return largest > 0 && error <= kMostError * largest;
}

WinogradConvolution::WinogradConvolution(const WinogradShape& shape, int cores)
    : shape_(shape), cores_(cores) {
  if (shape.tiles() >= kLeastTilesOfCore * cores) parts_ = cores;
  const int64_t tiles_of_part = RoundUp(shape.tiles(), parts_) / parts_;
  const int64_t products = RoundUp(tiles_of_part, kMostTilesOfProduct) / kMostTilesOfProduct;
  product_tiles_ = RoundUp(tiles_of_part, products) / products;
  image_plane_ = WinogradPlaneSize(product_tiles_, shape.depth);
  product_plane_ = WinogradPlaneSize(product_tiles_, shape.channels);
}

std::unique_ptr<WinogradConvolution> WinogradConvolution::Make(const WinogradShape& shape,
                                                               int cores,
                                                               const FindFilter& find_filter) {
  std::unique_ptr<WinogradConvolution> made(new WinogradConvolution(shape, cores));
  made->MakeProduct(
      Describe({kWinogradPlanes, shape.depth, shape.channels}, 3, dnnl_format_tag_any));
  if (made->product_ == nullptr) return nullptr;
  const OneDnnPtr<dnnl_memory_desc> given = DescribePlanes(shape.depth, shape.channels);
  made->filter_ = find_filter(given.get(), made->product_->right());
  return made->filter_.memory != nullptr ? std::move(made) : nullptr;
}

std::unique_ptr<WinogradConvolution> WinogradConvolution::MakeForAnyFilter(
    const WinogradShape& shape, int cores, bool is_gradient) {
  std::unique_ptr<WinogradConvolution> made(new WinogradConvolution(shape, cores));
  made->is_gradient_ = is_gradient;
  made->MakeProduct(DescribePlanes(shape.depth, shape.channels, /*are_transposed=*/is_gradient));
  return made->product_ != nullptr ? std::move(made) : nullptr;
}

void WinogradConvolution::MakeProduct(OneDnnPtr<dnnl_memory_desc> filter) {
  product_ = MatrixProduct::Make(DescribePlanes(product_tiles_, shape_.depth), std::move(filter),
                                 DescribePlanes(product_tiles_, shape_.channels), cores_ / parts_);
}

absl::Status WinogradConvolution::Transform(tensorflow::OpKernelContext* context,
                                            const float* filter, tensorflow::Tensor* planes) const {
  // The filter of a gradient has rows of its results.
  const int64_t rows = is_gradient_ ? shape_.channels : shape_.depth;
  const int64_t width = is_gradient_ ? shape_.depth : shape_.channels;
  TF_RETURN_IF_ERROR(context->allocate_temp(
      tensorflow::DT_FLOAT,
      tensorflow::TensorShape({kWinogradPlanes, WinogradPlaneSize(rows, width)}), planes));
  auto* const to = static_cast<float*>(planes->data());
  DivideWork(*context->device(), rows, width * kWinogradTransformCycles,
             [&](int64_t first, int64_t last) {
               TransformWinogradFilter(filter, shape_.filter_size, rows, width, first, last,
                                       is_gradient_, to);
             });
  return absl::OkStatus();
}

absl::Status WinogradConvolution::Run(tensorflow::OpKernelContext* context, const FusedOps& fused,
                                      const float* image, const float* filter, const float* bias,
                                      float* output) const {
  tensorflow::Tensor planes;
  OneDnnPtr<dnnl_memory> planes_memory;
  if (filter_.memory == nullptr) {
    TF_RETURN_IF_ERROR(Transform(context, filter, &planes));
    planes_memory = MakeMemory(product_->right(), planes.data());
  }
  const dnnl_memory_t filter_memory =
      planes_memory != nullptr ? planes_memory.get() : filter_.memory;
  tensorflow::Tensor memory;
  TF_RETURN_IF_ERROR(context->allocate_temp(
      tensorflow::DT_FLOAT, tensorflow::TensorShape({parts_ * part_floats()}), &memory));
  const tensorflow::DeviceBase& device = *context->device();
  std::vector<absl::Status> statuses(parts_);

  const auto run_part = [&](int64_t part) {
    // Only a part that has all cores divides its work.
    const auto divide = [&](int64_t first, int64_t last, int64_t cycles, const auto& work) {
      if (parts_ > 1) return work(first, last);
      DivideWork(device, last - first, cycles,
                 [&](int64_t begin, int64_t end) { work(first + begin, first + end); });
    };
    std::optional<DeviceThreads> all_threads;
    CallingThread one_thread;
    if (parts_ == 1) all_threads.emplace(*device.tensorflow_cpu_worker_threads());
    const OneDnnPtr<dnnl_stream> stream =
        all_threads.has_value() ? MakeStream(&*all_threads) : MakeStream(&one_thread);

    float* const pixels = memory.flat<float>().data() + part * part_floats();
    float* const products = pixels + image_floats();
    const int64_t end = (part + 1) * shape_.tiles() / parts_;
    for (int64_t first = part * shape_.tiles() / parts_; first < end; first += product_tiles_) {
      const int64_t last = std::min(end, first + product_tiles_);
      divide(first, last, shape_.depth * kWinogradTransformCycles, [&](int64_t from, int64_t to) {
        TransformWinogradTiles(shape_, image, from, to, pixels + (from - first) * shape_.depth,
                               image_plane_);
      });
      // If there are fewer tiles, the last rows are products of anything, which nobody reads.
      statuses[part] =
          product_->Run(stream.get(), pixels, filter_memory, products, products + product_floats());
      if (!statuses[part].ok()) return;
      divide(first, last, shape_.channels * kWinogradTransformCycles,
             [&](int64_t from, int64_t to) {
               TransformWinogradProducts(shape_, products + (from - first) * shape_.channels,
                                         product_plane_, from, to, fused, bias, output);
             });
    }
  };
  if (parts_ == 1) {
    run_part(0);
  } else {
    const int64_t products = kWinogradPlanes * shape_.depth * shape_.channels;
    const int64_t cycles = shape_.tiles() / parts_ * products / kProductsOfCycle;
    DivideWork(device, parts_, cycles, [&](int64_t first, int64_t last) {
      for (int64_t part = first; part < last; ++part) run_part(part);
    });
  }
  for (const absl::Status& status : statuses) TF_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace tf_interop
