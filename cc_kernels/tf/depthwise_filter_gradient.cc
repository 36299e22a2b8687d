#include "cc_kernels/tf/depthwise_filter_gradient.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "cc_kernels/tf/convolution_shape.h"
#include "cc_kernels/tf/narrow_device.h"
#include "tensorflow/core/framework/tensor.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int kLanes = 8;
constexpr int kVectors = 2;                            // of a block
constexpr int64_t kBlock = kLanes * kVectors;          // channels of which one pass has the sums
constexpr int64_t kPartsOfCore = 4;                    // of the rows
constexpr std::array<int64_t, 3> kWidths = {3, 5, 7};  // of filters

using Lanes = float __attribute__((vector_size(kLanes * sizeof(float))));

Lanes LoadLanes(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

// A row of the gradient, and the row of the image that one row of the filter reads for it.
struct RowPair {
  const float* image = nullptr;
  const float* gradient = nullptr;
};

class DepthwiseFilterGradient : public OtherWay {
 public:
  DepthwiseFilterGradient(const ConvolutionShape& shape, int cores)
      : shape_(shape),
        parts_(std::min(shape.images * shape.windows[0].output_size, kPartsOfCore * cores)) {}

  absl::string_view name() const override { return "TfInterop>DepthwiseFilterGradient"; }

  absl::Status Run(OpKernelContext* context, absl::Span<Tensor* const> results) const override {
    const int64_t size = shape_.filter[0] * shape_.filter[1] * shape_.channels;
    Tensor memory;
    TF_RETURN_IF_ERROR(
        context->allocate_temp(tensorflow::DT_FLOAT, TensorShape({parts_, size}), &memory));
    const float* const image = FloatsOf(*context, 0);
    const float* const gradient = FloatsOf(*context, 2);
    float* const sums = FloatsOf(&memory);
    const int64_t blocks = (shape_.channels + kBlock - 1) / kBlock;
    const int64_t rows = shape_.images * shape_.windows[0].output_size;
    const int64_t products = shape_.filter[0] * shape_.filter[1] * shape_.windows[1].output_size;
    DivideWork(*context->device(), parts_ * blocks, kVectors * products * rows / parts_,
               [&](int64_t first, int64_t last) {
                 for (int64_t i = first; i < last; ++i) {
                   const int64_t part = i / blocks;
                   AddPart(image, gradient, part * rows / parts_, (part + 1) * rows / parts_,
                           i % blocks, sums + part * size);
                 }
               });
    float* const result = FloatsOf(results[0]);
    std::copy_n(sums, size, result);
    for (int64_t part = 1; part < parts_; ++part) {
      const float* const more = sums + part * size;
      for (int64_t i = 0; i < size; ++i) result[i] += more[i];
    }
    return absl::OkStatus();
  }

 private:
  // Sums over rows of the gradient, counted through all images, of one block of channels.
  void AddPart(const float* image, const float* gradient, int64_t first_row, int64_t last_row,
               int64_t block, float* sums) const {
    switch (shape_.filter[1]) {
      case 3:
        return AddRows<3>(image, gradient, first_row, last_row, block, sums);
      case 5:
        return AddRows<5>(image, gradient, first_row, last_row, block, sums);
      default:
        return AddRows<7>(image, gradient, first_row, last_row, block, sums);
    }
  }

  template <int width>
  void AddRows(const float* image, const float* gradient, int64_t first_row, int64_t last_row,
               int64_t block, float* sums) const {
    const auto& [down, across] = shape_.windows;
    const int64_t channels = shape_.channels;
    // The last block begins early, so that it is full; what the one before has is not written.
    const int64_t begin = std::min(block * kBlock, channels - kBlock);
    const int64_t skipped = block * kBlock - begin;
    for (int64_t y = 0; y < shape_.filter[0]; ++y) {
      Sums<width> row_sums = {};
      for (int64_t row = first_row; row < last_row; ++row) {
        const int64_t read = row % down.output_size * down.stride + y - down.before;
        if (read < 0 || read >= shape_.image[0]) continue;
        const int64_t image_row = row / down.output_size * shape_.image[0] + read;
        AddRow<width>({image + image_row * shape_.image[1] * channels + begin,
                       gradient + row * across.output_size * channels + begin},
                      &row_sums);
      }
      for (int x = 0; x < width; ++x) {
        const auto* const values = reinterpret_cast<const float*>(&row_sums[x]);
        std::copy(values + skipped, values + kBlock,
                  sums + (y * width + x) * channels + begin + skipped);
      }
    }
  }

  template <int width>
  using Sums = std::array<std::array<Lanes, kVectors>, width>;

  template <int width>
  void AddRow(const RowPair& rows, Sums<width>* all_sums) const {
    const Window& across = shape_.windows[1];
    const int64_t channels = shape_.channels;
    // From `inner` to before `outer` the whole filter is inside the image.
    const int64_t inner =
        std::min((across.before + across.stride - 1) / across.stride, across.output_size);
    const int64_t room = shape_.image[1] - 1 - (width - 1) + across.before;
    const int64_t outer =
        std::max(inner, room < 0 ? 0 : std::min(room / across.stride + 1, across.output_size));
    Sums<width> sums = *all_sums;
    const auto add_checked = [&](int64_t column) {
      for (int x = 0; x < width; ++x) {
        const int64_t read = column * across.stride + x - across.before;
        if (read < 0 || read >= shape_.image[1]) continue;
        for (int v = 0; v < kVectors; ++v) {
          sums[x][v] += LoadLanes(rows.image + read * channels + v * kLanes) *
                        LoadLanes(rows.gradient + column * channels + v * kLanes);
        }
      }
    };
    for (int64_t column = 0; column < inner; ++column) add_checked(column);
    for (int64_t column = inner; column < outer; ++column) {
      const float* const image = rows.image + (column * across.stride - across.before) * channels;
      const float* const gradient = rows.gradient + column * channels;
      for (int v = 0; v < kVectors; ++v) {
        const Lanes value = LoadLanes(gradient + v * kLanes);
        for (int x = 0; x < width; ++x) {
          sums[x][v] += LoadLanes(image + x * channels + v * kLanes) * value;
        }
      }
    }
    for (int64_t column = outer; column < across.output_size; ++column) add_checked(column);
    *all_sums = sums;
  }

  const ConvolutionShape shape_;
  const int64_t parts_;  // of the rows; each has sums of its own
};

}  // namespace

OtherWayMaker FindDepthwiseFilterGradient(const OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();
  if (!absl::StartsWith(op, "_MklNative") ||
      !absl::EndsWith(op, "DepthwiseConv2dNativeBackpropFilter")) {
    return nullptr;
  }
  const auto attributes = ConvolutionAttributes::Read(kernel.def(), /*is_depthwise=*/true);
  if (!attributes.has_value() || attributes->data_format != tensorflow::FORMAT_NHWC) return nullptr;
  return [attributes = *attributes](const OpKernelContext& context,
                                    int cores) -> std::unique_ptr<OtherWay> {
    const auto filter = ShapeOfSizes(context.input(1));
    if (!filter.has_value()) return nullptr;
    const auto shape = attributes.ShapeFor(context.input(0).shape(), *filter);
    if (!shape.has_value() || shape->channels != shape->depth || shape->channels < kBlock ||
        std::find(kWidths.begin(), kWidths.end(), shape->filter[1]) == kWidths.end()) {
      return nullptr;
    }
    const auto& [rows, columns] = shape->windows;
    // TensorFlow's kernels ignore dilations here.
    if (rows.dilation > 0 || columns.dilation > 0) return nullptr;
    if (context.input(2).shape() !=
        TensorShape({shape->images, rows.output_size, columns.output_size, shape->channels})) {
      return nullptr;
    }
    return std::make_unique<DepthwiseFilterGradient>(*shape, cores);
  };
}

}  // namespace tf_interop
