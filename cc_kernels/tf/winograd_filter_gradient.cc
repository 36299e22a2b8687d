#include "cc_kernels/tf/winograd_filter_gradient.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/onednn_calls.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

// For each core in one product, so that its planes stay in the caches.
constexpr int64_t kMostTilesOfCore = 256;

int64_t DivideUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }

}  // namespace

WinogradFilterGradient::WinogradFilterGradient(const WinogradShape& shape, int cores)
    : shape_(shape) {
  const int64_t products = DivideUp(shape.tiles(), kMostTilesOfCore * cores);
  product_tiles_ = DivideUp(shape.tiles(), products);
  image_plane_ = WinogradPlaneSize(product_tiles_, shape.depth);
  gradient_plane_ = WinogradPlaneSize(product_tiles_, shape.channels);
  sum_plane_ = WinogradPlaneSize(shape.depth, shape.channels);
  image_ = DescribeMatrices(kWinogradPlanes, image_plane_, shape.depth, product_tiles_,
                            /*are_transposed=*/true);
  gradient_ = DescribeMatrices(kWinogradPlanes, gradient_plane_, product_tiles_, shape.channels);
  sums_ = DescribeMatrices(kWinogradPlanes, sum_plane_, shape.depth, shape.channels);
}

std::unique_ptr<WinogradFilterGradient> WinogradFilterGradient::Make(const WinogradShape& shape,
                                                                     int cores) {
  std::unique_ptr<WinogradFilterGradient> made(new WinogradFilterGradient(shape, cores));
  if (!made->MakeProduct(cores, /*adds=*/false, &made->first_)) return nullptr;
  const bool has_several = made->product_tiles_ < shape.tiles();
  if (has_several && !made->MakeProduct(cores, /*adds=*/true, &made->next_)) return nullptr;
  return made;
}

bool WinogradFilterGradient::MakeProduct(int cores, bool adds, Product* product) {
  const OneDnn& onednn = *FindOneDnn();
  onednn.threadpool_interop_set_max_concurrency(cores);
  dnnl_post_ops_t made_ops = nullptr;
  onednn.post_ops_create(&made_ops);
  const OneDnnPtr<dnnl_post_ops> ops(made_ops);
  if (adds) {
    onednn.post_ops_append_sum(made_ops, /*scale=*/1, /*zero_point=*/0, dnnl_data_type_undef);
  }
  const OneDnnPtr<dnnl_primitive_attr> attributes = MakeAttributes();
  onednn.primitive_attr_set_post_ops(attributes.get(), made_ops);
  dnnl_primitive_desc_t made = nullptr;
  onednn.matmul_primitive_desc_create(&made, onednn.engine, image_.get(), gradient_.get(),
                                      /*bias_desc=*/nullptr, sums_.get(), attributes.get());
  product->desc.reset(made);
  product->primitive = MakePrimitive(made);
  if (product->primitive == nullptr) return false;
  const_dnnl_memory_desc_t scratchpad =
      onednn.primitive_desc_query_md(made, dnnl_query_scratchpad_md, 0);
  const auto bytes = static_cast<int64_t>(onednn.memory_desc_get_size_v2(scratchpad, /*index=*/0));
  scratchpad_bytes_ = std::max(scratchpad_bytes_, bytes);
  return true;
}

absl::Status WinogradFilterGradient::Run(tensorflow::OpKernelContext* context, const float* image,
                                         const float* gradient, float* filter) const {
  const OneDnn& onednn = *FindOneDnn();
  const tensorflow::DeviceBase& device = *context->device();
  const int64_t image_floats = kWinogradPlanes * image_plane_;
  const int64_t gradient_floats = kWinogradPlanes * gradient_plane_;
  const int64_t sum_floats = kWinogradPlanes * sum_plane_;
  const int64_t scratchpad_floats =
      DivideUp(scratchpad_bytes_, static_cast<int64_t>(sizeof(float)));
  tensorflow::Tensor memory;
  TF_RETURN_IF_ERROR(context->allocate_temp(
      tensorflow::DT_FLOAT,
      tensorflow::TensorShape({image_floats + gradient_floats + sum_floats + scratchpad_floats}),
      &memory));
  float* const pixels = memory.flat<float>().data();
  float* const gradients = pixels + image_floats;
  float* const sums = gradients + gradient_floats;
  DeviceThreads threads(*device.tensorflow_cpu_worker_threads());
  const OneDnnPtr<dnnl_stream> stream = MakeStream(&threads);
  const auto image_memory = MakeMemory(image_.get(), pixels);
  const auto gradient_memory = MakeMemory(gradient_.get(), gradients);
  const auto sum_memory = MakeMemory(sums_.get(), sums);

  const int64_t tiles = shape_.tiles();
  for (int64_t first = 0; first < tiles; first += product_tiles_) {
    const int64_t count = std::min(product_tiles_, tiles - first);
    DivideWork(device, count, (shape_.depth + shape_.channels) * kWinogradTransformCycles,
               [&](int64_t from, int64_t to) {
                 TransformWinogradTiles(shape_, image, first + from, first + to,
                                        pixels + from * shape_.depth, image_plane_);
                 TransformWinogradGradients(shape_, gradient, first + from, first + to,
                                            gradients + from * shape_.channels, gradient_plane_);
               });
    // Tiles of the product before are multiplied with 0.
    if (count < product_tiles_) {
      for (int64_t plane = 0; plane < kWinogradPlanes; ++plane) {
        std::fill_n(gradients + plane * gradient_plane_ + count * shape_.channels,
                    (product_tiles_ - count) * shape_.channels, 0.0F);
      }
    }
    const Product& product = first == 0 ? first_ : next_;
    const auto scratchpad_memory =
        MakeMemory(onednn.primitive_desc_query_md(product.desc.get(), dnnl_query_scratchpad_md, 0),
                   sums + sum_floats);
    const std::array<dnnl_exec_arg_t, 4> arguments = {
        {{DNNL_ARG_SRC, image_memory.get()},
         {DNNL_ARG_WEIGHTS, gradient_memory.get()},
         {DNNL_ARG_DST, sum_memory.get()},
         {DNNL_ARG_SCRATCHPAD, scratchpad_memory.get()}}};
    const dnnl_status_t status =
        onednn.primitive_execute(product.primitive.get(), stream.get(),
                                 static_cast<int>(arguments.size()), arguments.data());
    if (status != dnnl_success) {
      return absl::InternalError(
          absl::StrCat("oneDNN's matrix product failed with status ", status));
    }
  }
  DivideWork(device, shape_.depth, shape_.channels * kWinogradTransformCycles,
             [&](int64_t first, int64_t last) {
               TransformWinogradSums(shape_, sums, first, last, filter);
             });
  return absl::OkStatus();
}

}  // namespace tf_interop
