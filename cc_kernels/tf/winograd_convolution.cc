#define EIGEN_USE_THREADS

#include "cc_kernels/tf/winograd_convolution.h"

#include <algorithm>
#include <array>
#include <atomic>
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
// Only for deciding whether to divide: cycles for a channel of a tile, and products in a cycle.
constexpr int64_t kTransformCycles = 10;
constexpr int64_t kProductsOfCycle = 16;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Planes begin an odd number of cache lines after each other. Otherwise many of them would share a
// few places of the cache.
int64_t PlaneSize(int64_t floats) {
  constexpr int64_t kLine = 16;
  const int64_t lines = RoundUp(floats, kLine) / kLine;
  return (lines | 1) * kLine;
}

OneDnnPtr<dnnl_memory_desc> DescribePlanes(int64_t rows, int64_t columns, int64_t plane_size) {
  const dnnl_dims_t sizes = {kWinogradPlanes, rows, columns};
  const dnnl_dims_t strides = {plane_size, columns, 1};
  dnnl_memory_desc_t made = nullptr;
  FindOneDnn()->memory_desc_create_with_strides(&made, 3, sizes, dnnl_f32, strides);
  return OneDnnPtr<dnnl_memory_desc>(made);
}

}  // namespace

std::unique_ptr<WinogradConvolution> WinogradConvolution::Make(const WinogradShape& shape,
                                                               int cores,
                                                               const FindFilter& find_filter) {
  std::unique_ptr<WinogradConvolution> made(new WinogradConvolution(shape));
  if (shape.tiles() >= kLeastTilesOfCore * cores) made->parts_ = cores;
  return made->MakeProduct(cores / made->parts_, find_filter) ? std::move(made) : nullptr;
}

bool WinogradConvolution::MakeProduct(int cores, const FindFilter& find_filter) {
  const int64_t tiles_of_part = RoundUp(shape_.tiles(), parts_) / parts_;
  const int64_t products = RoundUp(tiles_of_part, kMostTilesOfProduct) / kMostTilesOfProduct;
  product_tiles_ = RoundUp(tiles_of_part, products) / products;
  image_plane_ = PlaneSize(product_tiles_ * shape_.depth);
  product_plane_ = PlaneSize(product_tiles_ * shape_.channels);
  image_ = DescribePlanes(product_tiles_, shape_.depth, image_plane_);
  product_ = DescribePlanes(product_tiles_, shape_.channels, product_plane_);
  const dnnl_dims_t filter_sizes = {kWinogradPlanes, shape_.depth, shape_.channels};
  const OneDnnPtr<dnnl_memory_desc> given_filter = Describe(filter_sizes, 3, dnnl_abc);
  const OneDnnPtr<dnnl_memory_desc> any_filter = Describe(filter_sizes, 3, dnnl_format_tag_any);

  const OneDnn& onednn = *FindOneDnn();
  onednn.threadpool_interop_set_max_concurrency(cores);
  dnnl_primitive_desc_t made = nullptr;
  onednn.matmul_primitive_desc_create(&made, onednn.engine, image_.get(), any_filter.get(),
                                      /*bias_desc=*/nullptr, product_.get(),
                                      MakeAttributes().get());
  desc_.reset(made);
  if (made == nullptr) return false;
  scratchpad_ = onednn.primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
  const auto bytes = static_cast<int64_t>(onednn.memory_desc_get_size_v2(scratchpad_, /*index=*/0));
  scratchpad_floats_ = RoundUp(bytes, 64) / static_cast<int64_t>(sizeof(float));
  filter_ = find_filter(given_filter.get(),
                        onednn.primitive_desc_query_md(made, dnnl_query_weights_md, 0));
  if (filter_.memory != nullptr) primitive_ = MakePrimitive(made);
  return primitive_ != nullptr;
}

absl::Status WinogradConvolution::Run(tensorflow::OpKernelContext* context, const FusedOps& fused,
                                      const float* image, const float* bias, float* output) const {
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
         {DNNL_ARG_WEIGHTS, filter_.memory},
         {DNNL_ARG_DST, product_memory.get()},
         {DNNL_ARG_SCRATCHPAD, scratchpad_memory.get()}}};
    const int64_t end = (part + 1) * shape_.tiles() / parts_;
    for (int64_t first = part * shape_.tiles() / parts_; first < end; first += product_tiles_) {
      const int64_t last = std::min(end, first + product_tiles_);
      divide(first, last, shape_.depth * kTransformCycles, [&](int64_t from, int64_t to) {
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
      divide(first, last, shape_.channels * kTransformCycles, [&](int64_t from, int64_t to) {
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
