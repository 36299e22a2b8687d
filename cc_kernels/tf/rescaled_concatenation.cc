// A concatenation of channels and the normalization after it in one pass over memory.
//
// Each layer of a DenseNet normalizes the results of all layers before it. TensorFlow copies them
// side by side again for each layer. Here the normalization reads them where they are:
//
//     before                                             after
//     a ─┐                                               a ─┐
//     b ─┴ ConcatV2 ── _FusedDepthwiseConv2dNative       b ─┴ TfInterop>RescaledConcatenation
//
// The depthwise convolution is one that graph/rescale.py makes: its filter is one pixel.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "cc_kernels/tf/fused_ops.h"
#include "cc_kernels/tf/narrow_device.h"
#include "cc_kernels/tf/program.h"
#include "cc_kernels/tf/program_rewrites.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace tf_interop {
namespace {

using tensorflow::NodeDef;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr char kRescaledConcatenation[] = "TfInterop>RescaledConcatenation";
constexpr char kRescales[] = "_tf_interop_rescales";  // as in graph/program.py

REGISTER_OP("TfInterop>RescaledConcatenation")
    .Input("parts: N * float")
    .Input("axis: int32")
    .Input("scale: float")
    .Input("offset: float")
    .Output("output: float")
    .Attr("N: int >= 2")
    .Attr("is_relu: bool = false")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
The concatenation of images, whose channels are then scaled and moved. Only a TfInterop>Unit has
this op, as a step.

parts: Images of four dimensions, channels last.
axis: As ConcatV2 has it.
scale: The factor of each channel of the result.
offset: What is added to each channel.
is_relu: Whether negative values and NaN become 0.
)doc");

// The channels of a part of one pixel.
template <bool is_relu>
void Rescale(const float* from, const float* scale, const float* offset, int64_t count, float* to) {
#pragma GCC ivdep
  for (int64_t i = 0; i < count; ++i) {
    const float value = from[i] * scale[i] + offset[i];
    to[i] = !is_relu || value > 0 ? value : 0;
  }
}

// What `parts` have in each row, such as the channels of a pixel.
struct Rows {
  struct Part {
    const float* data;
    int64_t size;
  };
  absl::InlinedVector<Part, 8> parts;
  int64_t count = 1;
  int64_t channels = 0;  // of the result; rows are as long, or a multiple of it

  void Run(int64_t first, int64_t last, const float* scale, const float* offset, bool is_relu,
           float* to) const {
    const auto rescale = is_relu ? Rescale<true> : Rescale<false>;
    for (int64_t row = first; row < last; ++row) {
      int64_t channel = 0;
      for (const Part& part : parts) {
        const float* from = part.data + row * part.size;
        for (int64_t left = part.size; left > 0;) {
          const int64_t count = std::min(left, channels - channel);
          rescale(from, scale + channel, offset + channel, count, to);
          from += count;
          to += count;
          left -= count;
          channel = (channel + count) % channels;
        }
      }
    }
  }
};

class RescaledConcatenation : public tensorflow::OpKernel {
 public:
  explicit RescaledConcatenation(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("is_relu", &is_relu_));
  }

  void Compute(OpKernelContext* context) override {
    const int part_count = num_inputs() - 3;
    const Tensor& axis_value = context->input(part_count);
    const Tensor& scale = context->input(part_count + 1);
    const Tensor& offset = context->input(part_count + 2);
    TensorShape shape = context->input(0).shape();
    int axis = axis_value.NumElements() == 1 ? axis_value.flat<int32_t>()(0) : shape.dims();
    if (axis < 0) axis += shape.dims();
    OP_REQUIRES(context, shape.dims() == 4 && axis >= 0 && axis < 4,
                InvalidArgument("Expected images with four dimensions and one of them as the axis, "
                                "got the shape ",
                                shape.DebugString(), " and the axis ", axis_value.DebugString()));
    int64_t size = 0;  // of all parts along the axis
    for (int i = 0; i < part_count; ++i) {
      const TensorShape& other = context->input(i).shape();
      OP_REQUIRES_OK(context, CheckFits(shape, other, axis, i));
      size += other.dim_size(axis);
    }
    shape.set_dim(axis, size);
    const int64_t channels = shape.dim_size(3);
    OP_REQUIRES(context, scale.NumElements() == channels && offset.NumElements() == channels,
                InvalidArgument("Expected a scale and an offset of ", channels, " channels, got ",
                                scale.NumElements(), " and ", offset.NumElements(), "."));
    Tensor* output = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &output));
    if (output->NumElements() == 0) return;
    Rows rows;
    rows.channels = channels;
    for (int i = 0; i < axis; ++i) rows.count *= shape.dim_size(i);
    for (int i = 0; i < part_count; ++i) {
      const Tensor& part = context->input(i);
      rows.parts.push_back({part.flat<float>().data(), part.NumElements() / rows.count});
    }
    const int64_t row_size = output->NumElements() / rows.count;
    DivideWork(*context->device(), rows.count, row_size / 2, [&](int64_t first, int64_t last) {
      rows.Run(first, last, scale.flat<float>().data(), offset.flat<float>().data(), is_relu_,
               output->flat<float>().data() + first * row_size);
    });
  }

 private:
  static absl::Status CheckFits(const TensorShape& first, const TensorShape& other, int axis,
                                int place) {
    bool fits = other.dims() == first.dims();
    for (int i = 0; fits && i < first.dims(); ++i) {
      fits = i == axis || other.dim_size(i) == first.dim_size(i);
    }
    if (fits) return absl::OkStatus();
    return InvalidArgument("ConcatOp : Dimensions of inputs should match: shape[0] = ",
                           first.DebugString(), " vs. shape[", place, "] = ", other.DebugString());
  }

  bool is_relu_ = false;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>RescaledConcatenation").Device(tensorflow::DEVICE_CPU),
                        RescaledConcatenation);

// The step whose first output an operand is, or -1.
int StepOf(const std::string& text) {
  const auto operand = ParseOperand(text);
  return operand.has_value() && operand->is_step && operand->port == 0 ? operand->index : -1;
}

bool IsConcatenation(const NodeDef& node) {
  tensorflow::DataType dtype = tensorflow::DT_INVALID;
  tensorflow::DataType of_axis = tensorflow::DT_INT32;
  tensorflow::TryGetNodeAttr(node, "T", &dtype);
  tensorflow::TryGetNodeAttr(node, "Tidx", &of_axis);
  return node.op() == "ConcatV2" && dtype == tensorflow::DT_FLOAT &&
         of_axis == tensorflow::DT_INT32 && node.input_size() > 2;
}

bool IsRescaling(const NodeDef& node) {
  bool rescales = false;
  if (!tensorflow::TryGetNodeAttr(node, kRescales, &rescales) || !rescales) return false;
  const std::optional<FusedOps> fused = ReadFusedOps(node);
  return node.input_size() == 3 && fused.has_value() && fused->has_bias && !fused->has_summand &&
         (fused->activation == FusedActivation::kNone ||
          (fused->activation == FusedActivation::kRelu && fused->slope == 0));
}

const std::string& AxisOf(const NodeDef& concatenation) {
  return concatenation.input(concatenation.input_size() - 1);
}

// Which concatenations only rescalings need, directly or through other such concatenations.
std::vector<bool> FindNeedless(const std::vector<NodeDef>& steps,
                               const std::vector<std::string>& results) {
  const int count = static_cast<int>(steps.size());
  std::vector<bool> is_needless(count);
  std::vector<std::vector<int>> readers(count);
  for (int i = 0; i < count; ++i) is_needless[i] = IsConcatenation(steps[i]);
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < steps[i].input_size(); ++j) {
      const auto operand = ParseOperand(steps[i].input(j));
      if (!operand.has_value() || !operand->is_step) continue;
      if (operand->index >= i) return std::vector<bool>(count);
      readers[operand->index].push_back(i);
      const bool is_image = IsRescaling(steps[i]) && j == 0;
      const bool is_part = IsConcatenation(steps[i]) && j + 1 < steps[i].input_size();
      if (!(is_image || is_part) || operand->port != 0) is_needless[operand->index] = false;
    }
  }
  for (const std::string& result : results) {
    if (StepOf(result) >= 0 && StepOf(result) < count) is_needless[StepOf(result)] = false;
  }
  for (int i = count - 1; i >= 0; --i) {
    for (const int reader : readers[i]) {
      if (IsRescaling(steps[reader])) continue;
      if (!is_needless[reader] || AxisOf(steps[reader]) != AxisOf(steps[i])) is_needless[i] = false;
    }
    if (readers[i].empty()) is_needless[i] = false;
  }
  return is_needless;
}

void AddParts(const std::vector<NodeDef>& steps, const std::vector<bool>& is_needless,
              const std::string& operand, NodeDef* to) {
  const int step = StepOf(operand);
  if (step < 0 || !is_needless[step]) {
    to->add_input(operand);
    return;
  }
  for (int i = 0; i + 1 < steps[step].input_size(); ++i) {
    AddParts(steps, is_needless, steps[step].input(i), to);
  }
}

}  // namespace

void JoinConcatenations(std::vector<NodeDef>* steps, std::vector<std::string>* results) {
  const std::vector<bool> is_needless = FindNeedless(*steps, *results);
  if (!absl::c_linear_search(is_needless, true)) return;
  for (NodeDef& step : *steps) {
    if (!IsRescaling(step) || StepOf(step.input(0)) < 0 || !is_needless[StepOf(step.input(0))]) {
      continue;
    }
    NodeDef joined;
    joined.set_name(step.name());
    joined.set_op(kRescaledConcatenation);
    AddParts(*steps, is_needless, step.input(0), &joined);
    (*joined.mutable_attr())["N"].set_i(joined.input_size());
    (*joined.mutable_attr())["is_relu"].set_b(ReadFusedOps(step)->activation ==
                                              FusedActivation::kRelu);
    joined.add_input(AxisOf((*steps)[StepOf(step.input(0))]));
    joined.add_input(step.input(1));
    joined.add_input(step.input(2));
    step = std::move(joined);
  }
  RemoveSteps(is_needless, steps, results);
}

}  // namespace tf_interop
