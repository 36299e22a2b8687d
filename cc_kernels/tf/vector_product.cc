#include "cc_kernels/tf/vector_product.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/tf/narrow_device.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int64_t kColumns = 64;  // that one thread computes at least: some cache lines of a row

// Adds the products of `rows` values and rows of weights, `width` apart.
void AddProducts(const float* values, const float* weights, int64_t rows, int64_t width,
                 int64_t columns, float* sums) {
  constexpr int64_t kLine = 64 / sizeof(float);
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const float a = values[row];
    const float b = values[row + 1];
    const float c = values[row + 2];
    const float d = values[row + 3];
    const float* const first = weights + row * width;
    for (int64_t begin = 0; begin < columns; begin += kLine) {
      for (int next = 4; next < 8; ++next) __builtin_prefetch(first + next * width + begin);
      const int64_t end = std::min(begin + kLine, columns);
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) {
        sums[i] += (a * first[i] + b * first[width + i]) +
                   (c * first[2 * width + i] + d * first[3 * width + i]);
      }
    }
  }
  for (; row < rows; ++row) {
    const float value = values[row];
    const float* const weight = weights + row * width;
#pragma GCC ivdep
    for (int64_t i = 0; i < columns; ++i) sums[i] += value * weight[i];
  }
}

void Activate(const FusedOps& fused, int64_t count, float* values) {
  const auto apply = [&](auto function) {
    for (int64_t i = 0; i < count; ++i) values[i] = function(values[i]);
  };
  switch (fused.activation) {
    case FusedActivation::kNone:
      return;
    case FusedActivation::kRelu:
      if (fused.slope == 0) return apply([](float x) { return x > 0 ? x : 0; });
      return apply([slope = fused.slope](float x) { return x > 0 ? x : slope * x; });
    case FusedActivation::kRelu6:
      return apply([](float x) { return std::min(x > 0 ? x : 0, 6.0F); });
    case FusedActivation::kElu:
      return apply([](float x) { return x > 0 ? x : std::expm1(x); });
    case FusedActivation::kSwish:
      return apply([](float x) { return x / (1 + std::exp(-x)); });
    case FusedActivation::kHardSwish:
      return apply([](float x) { return x * std::clamp(x / 6 + 0.5F, 0.0F, 1.0F); });
  }
}

}  // namespace

std::unique_ptr<VectorProduct> VectorProduct::Make(const tensorflow::OpKernel& kernel) {
  const absl::string_view op = kernel.type_string_view();  // maybe oneDNN's
  const bool is_convolution = absl::EndsWith(op, "Conv2D") && !absl::StrContains(op, "Depthwise");
  const bool is_product = absl::EndsWith(op, "MatMul") && !absl::StrContains(op, "Batch");
  if ((!is_convolution && !is_product) || kernel.num_inputs() < 2 ||
      kernel.input_type(0) != tensorflow::DT_FLOAT || kernel.num_outputs() != 1) {
    return nullptr;
  }
  const tensorflow::NodeDef& node = kernel.def();
  const std::optional<FusedOps> fused = ReadFusedOps(node);
  if (!fused.has_value() || fused->has_summand) return nullptr;
  std::string padding;
  std::string data_format = "NHWC";
  tensorflow::TryGetNodeAttr(node, "padding", &padding);
  tensorflow::TryGetNodeAttr(node, "data_format", &data_format);
  bool is_transposed = false;
  for (const char* const attribute : {"transpose_a", "transpose_b"}) {
    bool is_set = false;
    is_transposed |= tensorflow::TryGetNodeAttr(node, attribute, &is_set) && is_set;
  }
  if (padding == "EXPLICIT" || data_format != "NHWC" || is_transposed) return nullptr;
  return std::unique_ptr<VectorProduct>(new VectorProduct(*fused, is_convolution));
}

bool VectorProduct::Takes(OpKernelContext* context) const {
  const Tensor& values = context->input(0);
  const Tensor& weights = context->input(1);
  const int dims = is_convolution_ ? 4 : 2;
  if (values.dims() != dims || weights.dims() != dims) return false;
  const int64_t rows = values.dim_size(dims - 1);
  const int64_t columns = weights.dim_size(dims - 1);
  return rows > 0 && columns > 0 && values.NumElements() == rows &&
         weights.dim_size(dims - 2) == rows && weights.NumElements() == rows * columns &&
         (!fused_.has_bias || context->input(2).shape() == tensorflow::TensorShape({columns}));
}

absl::Status VectorProduct::Run(OpKernelContext* context) const {
  const Tensor& values = context->input(0);
  const Tensor& weights = context->input(1);
  const int64_t rows = values.NumElements();
  const int64_t columns = weights.dim_size(weights.dims() - 1);
  tensorflow::TensorShape shape = values.shape();
  shape.set_dim(shape.dims() - 1, columns);
  Tensor* output = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &output));
  const float* const from = static_cast<const float*>(values.data());
  const float* const matrix = static_cast<const float*>(weights.data());
  const float* const bias =
      fused_.has_bias ? static_cast<const float*>(context->input(2).data()) : nullptr;
  float* const to = static_cast<float*>(output->data());
  const int64_t blocks = (columns + kColumns - 1) / kColumns;
  constexpr int64_t kCyclesOfRow = kColumns / 2;  // two values in a cycle, from a cache
  DivideWork(*context->device(), blocks, rows * kCyclesOfRow, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kColumns;
    const int64_t count = std::min(last * kColumns, columns) - begin;
    float* const sums = to + begin;
    if (bias != nullptr) {
      std::copy_n(bias + begin, count, sums);
    } else {
      std::fill_n(sums, count, 0.0F);
    }
    AddProducts(from, matrix + begin, rows, columns, count, sums);
    Activate(fused_, count, sums);
  });
  return absl::OkStatus();
}

}  // namespace tf_interop
