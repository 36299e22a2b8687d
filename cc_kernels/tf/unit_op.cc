// The op TfInterop>Unit and its shape function.
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status GiveShapes(InferenceContext* context) {
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("output_shapes", &shapes));
  const size_t output_count = context->num_outputs();
  if (!shapes.empty() && shapes.size() != output_count) {
    return absl::InvalidArgumentError(absl::StrCat("Expected output_shapes of ", output_count,
                                                   " outputs or none, got ", shapes.size(), "."));
  }
  for (size_t i = 0; i < output_count; ++i) {
    ShapeHandle shape = context->UnknownShape();
    if (!shapes.empty()) {
      TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    }
    context->set_output(static_cast<int>(i), shape);
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfInterop>Unit")
    .Input("inputs: Tin")
    .Output("outputs: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 1")
    .Attr("steps: list(string) >= 1")
    .Attr("results: list(string) >= 1")
    .Attr("constant_inputs: list(int) = []")
    .Attr("batch_sizes: list(int) = []")
    .Attr("cores: list(int) = []")
    .Attr("split_inputs: list(int) = []")
    .Attr("output_shapes: list(shape) = []")
    .SetShapeFn(GiveShapes)
    .Doc(R"doc(
Runs pure operations back to back, with TensorFlow's own kernels, on one core or a few, or for each
part of the batch on cores of its own.

An operand is `inputs:<i>`, an input of the op, or `steps:<j>:<port>`, an output of an earlier step.

inputs: The tensors that the steps read; one that several read appears once.
outputs: What other nodes read of what the steps give.
steps: Serialized NodeDefs in the order in which they run, each with the name, op and attributes of
  the node that it stands for and with operands as its inputs. It has no device, no control input and
  no attribute whose name starts with an underscore.
results: Of each output the operand that it is.
constant_inputs: Positions in `inputs` of constants: oneDNN's kernels keep filters that no call
  changes in the form that they need.
batch_sizes: Only where the first dimension of the first input is one of these do the steps run as
  said here; otherwise each runs on all cores. Empty: always.
cores: On how many cores the steps run: for each of `batch_sizes`, or one number for all. One is the
  calling thread. More are a group of threads of their own, or the calling thread where too few are
  free. As many as there are threads inside of an operation, or more: as in stock TensorFlow. Empty: 1.
split_inputs: Positions in `inputs` of tensors whose first dimension is the batch, of which all steps
  that read them, and the steps that read those, compute each image by itself. The batch is divided
  into as many parts as there are threads inside of an operation, and each part runs through the
  steps on one core; on its share of the cores where there are fewer images. Empty: the whole batch
  does.
output_shapes: What is known of the outputs' shapes; empty where nothing is.
)doc");

}  // namespace tf_interop
