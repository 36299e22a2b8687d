// The op TfInterop>Elementwise and its kernel.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "cc_kernels/tf/elementwise.h"
#include "cc_kernels/tf/program.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace tf_interop {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

REGISTER_OP("TfInterop>Elementwise")
    .Input("inputs: Tin")
    .Output("output: Tout")
    .Attr("Tin: list({float, bfloat16}) >= 1")
    .Attr("Tout: {float, bfloat16}")
    .Attr("steps: list(string) >= 1")
    .SetShapeFn(tensorflow::shape_inference::UnknownShape)
    .Doc(R"doc(
Elementwise operations in one pass over memory. Only a TfInterop>Unit has this op, as a step.

inputs: The tensors that the steps read, each once.
output: The output of the last step.
steps: As in TfInterop>Unit.
)doc");

// The shape of what is broadcast to both.
std::optional<TensorShape> Broadcast(const TensorShape& first, const TensorShape& second) {
  const bool is_longer = first.dims() >= second.dims();
  TensorShape shape = is_longer ? first : second;
  const TensorShape& other = is_longer ? second : first;
  const int skipped = shape.dims() - other.dims();
  for (int i = 0; i < other.dims(); ++i) {
    const int64_t size = shape.dim_size(skipped + i);
    if (size == other.dim_size(i) || other.dim_size(i) == 1) continue;
    if (size != 1) return std::nullopt;
    shape.set_dim(skipped + i, other.dim_size(i));
  }
  return shape;
}

int64_t Product(const TensorShape& shape, int first, int last) {
  int64_t product = 1;
  for (int i = first; i < last; ++i) product *= shape.dim_size(i);
  return product;
}

// A shape among those that a tensor is broadcast to: it has the first `images` dimensions of the
// result and those from `period` on, and between them ones.
struct Form {
  int images = 0;
  int period = 0;
};

// Empty if a shape has another form.
std::optional<Form> FindForm(const TensorShape& shape, const TensorShape& result) {
  const int skipped = result.dims() - shape.dims();
  const auto size = [&](int i) { return i < skipped ? 1 : shape.dim_size(i - skipped); };
  int i = result.dims();
  while (i > 0 && size(i - 1) == result.dim_size(i - 1)) --i;
  Form form{0, i};
  while (i > 0 && size(i - 1) == 1) --i;
  // Sizes of one belong to the images, too, if others before them do.
  form.images = i;
  for (; i > 0; --i) {
    if (size(i - 1) != result.dim_size(i - 1)) return std::nullopt;
  }
  return form;
}

// Gives a tensor the shape `shape`, with its values repeated.
absl::Status Repeat(OpKernelContext* context, const TensorShape& shape, Tensor* tensor) {
  Tensor repeated;
  TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), shape, &repeated));
  const int skipped = shape.dims() - tensor->dims();
  std::vector<int64_t> strides(shape.dims());
  int64_t stride = 1;
  for (int i = shape.dims() - 1; i >= skipped; --i) {
    const int64_t size = tensor->dim_size(i - skipped);
    strides[i] = size == 1 ? 0 : stride;
    stride *= size;
  }
  const size_t size = tensorflow::DataTypeSize(tensor->dtype());
  const char* const from = static_cast<const char*>(tensor->data());
  char* const to = static_cast<char*>(repeated.data());
  std::vector<int64_t> place(shape.dims());
  int64_t offset = 0;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    std::memcpy(to + i * size, from + offset * size, size);
    for (int dim = shape.dims() - 1; dim >= 0; --dim) {
      offset += strides[dim];
      if (++place[dim] < shape.dim_size(dim)) break;
      offset -= strides[dim] * shape.dim_size(dim);
      place[dim] = 0;
    }
  }
  *tensor = std::move(repeated);
  return absl::OkStatus();
}

class ElementwiseKernel : public OpKernel {
 public:
  explicit ElementwiseKernel(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<std::string> steps;
    OP_REQUIRES_OK(context, context->GetAttr("steps", &steps));
    for (const std::string& serialized : steps) {
      OP_REQUIRES_OK(context, ReadStep(serialized));
    }
  }

  void Compute(OpKernelContext* context) override {
    std::vector<TensorShape> shapes;
    OP_REQUIRES_OK(context, FindShapes(*context, &shapes));
    // Operations of other shapes than the last, such as factors of channels, have a pass each.
    const TensorShape& shape = shapes.back();
    std::vector<Tensor> values(operations_.size());
    std::vector<const Operation*> of_the_result;
    for (size_t i = 0; i < operations_.size(); ++i) {
      const Operation& operation = operations_[i];
      const TensorShape& own = shapes[operation.result];
      if (own == shape) {
        of_the_result.push_back(&operation);
        continue;
      }
      const auto dtype = operation.is_narrow ? tensorflow::DT_BFLOAT16 : tensorflow::DT_FLOAT;
      Tensor value;
      OP_REQUIRES_OK(context, context->allocate_temp(dtype, own, &value));
      OP_REQUIRES_OK(context, Run(context, {&operation}, values, &value));
      values[i] = std::move(value);
    }
    std::vector<int> inputs_of_the_shape;
    for (int i = 0; i < num_inputs(); ++i) {
      if (shapes[i] == shape) inputs_of_the_shape.push_back(i);
    }
    Tensor* output = nullptr;
    OP_REQUIRES_OK(
        context, context->forward_input_or_allocate_output(inputs_of_the_shape, 0, shape, &output));
    OP_REQUIRES_OK(context, Run(context, std::move(of_the_result), values, output));
  }

 private:
  absl::Status ReadStep(const std::string& serialized) {
    tensorflow::NodeDef node;
    const int step_count = static_cast<int>(operations_.size());
    Operation& operation = operations_.emplace_back();
    operation.result = num_inputs() + step_count;
    const auto kind = node.ParseFromString(serialized) ? FindElementwise(node.op()) : std::nullopt;
    if (!kind.has_value()) {
      return InvalidArgument("Expected an elementwise operation, got '", node.op(), "'.");
    }
    operation.kind = *kind;
    tensorflow::DataType dtype = tensorflow::DT_INVALID;
    TF_RETURN_IF_ERROR(GetNodeAttr(node, *kind == Elementwise::kCast ? "DstT" : "T", &dtype));
    operation.is_narrow = dtype == tensorflow::DT_BFLOAT16;
    operation.op = node.op();
    operation.name = node.name();
    const bool is_unary = *kind == Elementwise::kCast || *kind == Elementwise::kSquare ||
                          *kind == Elementwise::kRelu || *kind == Elementwise::kRelu6;
    if (is_unary != (node.input_size() == 1)) {
      return InvalidArgument("Expected other operands of ", node.op(), " than ", node.input_size(),
                             ".");
    }
    for (const std::string& text : node.input()) {
      const std::optional<Operand> operand = ParseOperand(text);
      if (!operand.has_value() ||
          operand->index >= (operand->is_step ? step_count : num_inputs())) {
        return InvalidArgument("Expected an operand of a step before, got '", text, "'.");
      }
      operation.operands.push_back(operand->index + (operand->is_step ? num_inputs() : 0));
    }
    return absl::OkStatus();
  }

  static bool MayBroadcast(const Operation& operation, const TensorShape& first,
                           const TensorShape& other) {
    if (operation.op == "AddN") return first == other;
    if (operation.op != "BiasAdd") return true;
    return other.dims() == 1 && first.dims() > 1 &&
           other.dim_size(0) == first.dim_size(first.dims() - 1);
  }

  // By operand.
  absl::Status FindShapes(const OpKernelContext& context, std::vector<TensorShape>* shapes) const {
    for (int i = 0; i < num_inputs(); ++i) shapes->push_back(context.input(i).shape());
    for (const Operation& operation : operations_) {
      TensorShape shape = (*shapes)[operation.operands[0]];
      for (size_t i = 1; i < operation.operands.size(); ++i) {
        const TensorShape& other = (*shapes)[operation.operands[i]];
        auto both = Broadcast(shape, other);
        if (both.has_value() && !MayBroadcast(operation, shape, other)) both.reset();
        if (!both.has_value()) {
          return InvalidArgument("Incompatible shapes: ", shape.DebugString(), " vs. ",
                                 other.DebugString(), " [of ", operation.op, " '", operation.name,
                                 "']");
        }
        shape = *both;
      }
      shapes->push_back(std::move(shape));
    }
    return absl::OkStatus();
  }

  // The operands that `operations` read from outside; each once.
  static std::vector<int> ReadsOf(const std::vector<const Operation*>& operations) {
    std::vector<int> reads;
    for (const Operation* const operation : operations) {
      for (const int operand : operation->operands) {
        const bool is_inside = absl::c_any_of(
            operations, [operand](const Operation* each) { return each->result == operand; });
        if (!is_inside && !absl::c_linear_search(reads, operand)) reads.push_back(operand);
      }
    }
    return reads;
  }

  // Runs operations of one shape. `values` are the results of earlier operations.
  absl::Status Run(OpKernelContext* context, std::vector<const Operation*> operations,
                   const std::vector<Tensor>& values, Tensor* out) const {
    const TensorShape& shape = out->shape();
    if (shape.num_elements() == 0) return absl::OkStatus();
    const std::vector<int> reads = ReadsOf(operations);
    std::vector<Tensor> read;
    std::vector<Form> forms;
    int images = 0;
    for (const int operand : reads) {
      const Tensor& tensor =
          operand < num_inputs() ? context->input(operand) : values[operand - num_inputs()];
      const std::optional<Form> form = FindForm(tensor.shape(), shape);
      const bool has_images = form.has_value() && form->images > 0 && form->period > 0;
      if (form.has_value() && (!has_images || images == 0 || images == form->images)) {
        if (has_images) images = form->images;
        read.push_back(tensor);
        forms.push_back(*form);
        continue;
      }
      TF_RETURN_IF_ERROR(Repeat(context, shape, &read.emplace_back(tensor)));
      forms.push_back({});
    }
    Pass pass;
    pass.operations = std::move(operations);
    pass.operand_count = num_inputs() + static_cast<int>(operations_.size());
    pass.images = Product(shape, 0, images);
    pass.elements = Product(shape, images, shape.dims());
    for (size_t i = 0; i < read.size(); ++i) {
      if (forms[i].period > 0 && forms[i].period < images) {  // repeats groups of images
        TF_RETURN_IF_ERROR(Repeat(context, shape, &read[i]));
        forms[i] = {};
      }
      const bool is_full = forms[i].period == 0;
      const int64_t period =
          is_full ? pass.elements : Product(shape, forms[i].period, shape.dims());
      const int64_t image_size = is_full ? pass.elements : forms[i].images > 0 ? period : 0;
      const bool is_narrow = read[i].dtype() == tensorflow::DT_BFLOAT16;
      pass.sources.push_back({reads[i], read[i].data(), is_narrow, image_size, period});
    }
    RunPass(pass, *context->device(), out->data());
    return absl::OkStatus();
  }

  std::vector<Operation> operations_;
};

REGISTER_KERNEL_BUILDER(Name("TfInterop>Elementwise").Device(tensorflow::DEVICE_CPU),
                        ElementwiseKernel);

}  // namespace
}  // namespace tf_interop
