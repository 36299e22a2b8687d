#define EIGEN_USE_THREADS

#include "cc_kernels/tf/winograd_convolution.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
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
  return error <= kMostError * largest;
}

WinogradConvolution::WinogradConvolution(const WinogradShape& shape, int cores)
    : shape_(shape), cores_(cores) {
  if (shape.tiles() >= kLeastTilesOfCore * cores) parts_ = cores;
  const int64_t tiles_of_part = RoundUp(shape.tiles(), parts_) / parts_;
  const int64_t products = RoundUp(tiles_of_part, kMostTilesOfProduct) / kMostTilesOfProduct;
  product_tiles_ = RoundUp(tiles_of_part, products) / products;
  image_plane_ = WinogradPlaneSize(product_tiles_, shape.depth);
  product_plane_ = WinogradPlaneSize(product_tiles_, shape.channels);
  image_ = DescribePlanes(product_tiles_, shape.depth);
  product_ = DescribePlanes(product_tiles_, shape.channels);
}

std::unique_ptr<WinogradConvolution> WinogradConvolution::Make(const WinogradShape& shape,
                                                               int cores,
                                                               const FindFilter& find_filter) {
  std::unique_ptr<WinogradConvolution> made(new WinogradConvolution(shape, cores));
  const OneDnnPtr<dnnl_memory_desc> any =
      Describe({kWinogradPlanes, shape.depth, shape.channels}, 3, dnnl_format_tag_any);
  if (!made->MakeProduct(any.get())) return nullptr;
  const OneDnnPtr<dnnl_memory_desc> given = DescribePlanes(shape.depth, shape.channels);
  made->filter_ = find_filter(given.get(), FindOneDnn()->primitive_desc_query_md(
                                               made->desc_.get(), dnnl_query_weights_md, 0));
  return made->filter_.memory != nullptr ? std::move(made) : nullptr;
}

std::unique_ptr<WinogradConvolution> WinogradConvolution::MakeForAnyFilter(
    const WinogradShape& shape, int cores, bool is_gradient) {
  std::unique_ptr<WinogradConvolution> made(new WinogradConvolution(shape, cores));
  made->is_gradient_ = is_gradient;
  made->planes_ = DescribePlanes(shape.depth, shape.channels, /*are_transposed=*/is_gradient);
  return made->MakeProduct(made->planes_.get()) ? std::move(made) : nullptr;
}

bool WinogradConvolution::MakeProduct(const_dnnl_memory_desc_t filter) {
  const OneDnn& onednn = *FindOneDnn();
  onednn.threadpool_interop_set_max_concurrency(cores_of_product());
  dnnl_primitive_desc_t made = nullptr;
  onednn.matmul_primitive_desc_create(&made, onednn.engine, image_.get(), filter,
                                      /*bias_desc=*/nullptr, product_.get(),
                                      MakeAttributes().get());
  desc_.reset(made);
  if (made == nullptr) return false;
  scratchpad_ = onednn.primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
  const auto bytes = static_cast<int64_t>(onednn.memory_desc_get_size_v2(scratchpad_, /*index=*/0));
  scratchpad_floats_ = RoundUp(bytes, 64) / static_cast<int64_t>(sizeof(float));
  primitive_ = MakePrimitive(made);
  return primitive_ != nullptr;
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
  if (planes_ != nullptr) {
    TF_RETURN_IF_ERROR(Transform(context, filter, &planes));
    planes_memory = MakeMemory(planes_.get(), planes.data());
  }
  tensorflow::Tensor memory;
  TF_RETURN_IF_ERROR(context->allocate_temp(
      tensorflow::DT_FLOAT, tensorflow::TensorShape({parts_ * part_floats()}), &memory));
  const tensorflow::DeviceBase& device = *context->device();
  const OneDnn& onednn = *FindOneDnn();
  std::atomic<dnnl_status_t> failure = dnnl_success;

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
    const auto image_memory = MakeMemory(image_.get(), pixels);
    const auto product_memory = MakeMemory(product_.get(), products);
    const auto scratchpad_memory = MakeMemory(scratchpad_, products + product_floats());
    const std::array<dnnl_exec_arg_t, 4> arguments = {
        {{DNNL_ARG_SRC, image_memory.get()},
         {DNNL_ARG_WEIGHTS, planes_ != nullptr ? planes_memory.get() : filter_.memory},
         {DNNL_ARG_DST, product_memory.get()},
         {DNNL_ARG_SCRATCHPAD, scratchpad_memory.get()}}};
    const int64_t end = (part + 1) * shape_.tiles() / parts_;
    for (int64_t first = part * shape_.tiles() / parts_; first < end; first += product_tiles_) {
      const int64_t last = std::min(end, first + product_tiles_);
      divide(first, last, shape_.depth * kWinogradTransformCycles, [&](int64_t from, int64_t to) {
        TransformWinogradTiles(shape_, image, from, to, pixels + (from - first) * shape_.depth,
                               image_plane_);
      });
      // If there are fewer tiles, the last rows are products of anything, which nobody reads.
      const dnnl_status_t status = onednn.primitive_execute(
          primitive_.get(), stream.get(), static_cast<int>(arguments.size()), arguments.data());
      if (status != dnnl_success) {
        failure = status;
        return;
      }
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
  if (failure == dnnl_success) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("oneDNN's matrix product failed with status ", failure.load()));
}

}  // namespace tf_interop
