// The ops that graphs have. Those that only units have are in the files of their kernels.
#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "cc_kernels/tf/program.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_def_builder.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::OpDefBuilder;
using tensorflow::PartialTensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Does as REGISTER_OP. TensorFlow takes every op that has a resource for one with state: a Session
// shares the kernels of such ops between its graphs, by the node's name, and no pass removes them.
bool RegisterWithoutState(const OpDefBuilder& builder) {
  tensorflow::OpRegistry::Global()->Register(
      [builder](tensorflow::OpRegistrationData* op) -> absl::Status {
        TF_RETURN_IF_ERROR(builder.Finalize(op));
        op->op_def.set_is_stateful(false);
        return absl::OkStatus();
      });
  return true;
}

// Reads `output_shapes`: a shape for every output, or none.
absl::Status InferStatedShapes(InferenceContext* context) {
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("output_shapes", &shapes));
  const size_t output_count = context->num_outputs();
  if (!shapes.empty() && shapes.size() != output_count) {
    return InvalidArgument("Expected output_shapes for all ", output_count,
                           " outputs or none, got ", shapes.size(), ".");
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

// Of a stage, whose kernel alone knows the sizes.
absl::Status InferRanks(InferenceContext* context) {
  StageProgram program;
  TF_RETURN_IF_ERROR(GetStageProgram(context, &program));
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const StepProgram& step = program.steps[program.outputs[i]];
    context->set_output(static_cast<int>(i), context->UnknownShapeOfRank(step.rank()));
  }
  return absl::OkStatus();
}

absl::Status SetHandleShapes(InferenceContext* context) {
  std::vector<tensorflow::DataType> types;
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("dtypes", &types));
  TF_RETURN_IF_ERROR(context->GetAttr("shapes", &shapes));
  const size_t count = context->num_outputs();
  if (types.size() != count || shapes.size() != count) {
    return InvalidArgument("Expected ", count, " dtypes and shapes, got ", types.size(), " and ",
                           shapes.size(), ".");
  }
  for (int i = 0; i < context->num_outputs(); ++i) {
    context->set_output(i, context->Scalar());
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    context->set_output_handle_shapes_and_types(
        i, std::vector<tensorflow::shape_inference::ShapeAndType>{{shape, types[i]}});
  }
  return absl::OkStatus();
}

REGISTER_OP("TfInterop>ConvStage")
    .Input("inputs: Tin")
    .Input("sizes: num_sizes * int32")
    .Output("outputs: Tout")
    .Attr("Tin: list({float, half, bfloat16, double}) >= 0")
    .Attr("Tout: list({float, half, bfloat16, double}) >= 1")
    .Attr("num_sizes: int >= 0")
    .Attr("steps: list(string) >= 1")
    .Attr("results: list(string) >= 1")
    .Attr("kept_inputs: list(int) = []")
    .Attr("schedules: string")
    .Attr("timed: bool = false")
    .SetShapeFn(InferRanks)
    .Doc(R"doc(
Runs lanes of convolutions together, each lane on its own stream group.

inputs: The tensors that the steps read, each once.
sizes: The input_sizes and filter_sizes of backward convolutions, in host memory.
outputs: The tensors that other nodes read.
steps: As in TfInterop>Unit. Each is a convolution, and `inputs:<i>` also numbers the sizes, after
  the inputs.
results: As in TfInterop>Unit.
kept_inputs: As in TfInterop>Unit. The stage holds their transformed filters, and nobody writes them
  while they are held.
schedules: A JSON document with the lanes that run the steps. Its format is in
  cc_kernels/tf/stage_program.h.
timed: Whether the stage compares the plan with TensorFlow's own kernels while it runs, and keeps
  what is faster.
)doc");

REGISTER_OP("TfInterop>Unit")
    .Input("inputs: Tin")
    .Output("outputs: Tout")
    .Attr("Tin: list(type) >= 0")
    .Attr("Tout: list(type) >= 1")
    .Attr("steps: list(string) >= 1")
    .Attr("results: list(string) >= 1")
    .Attr("kept_inputs: list(int) = []")
    .Attr("kept_types: list(type) = []")
    .Attr("cores: int = 1")
    .Attr("split_inputs: list(int) = []")
    .Attr("timed_graph: string = ''")
    .Attr("timed_unit: int = 0")
    .Attr("timed_units: int = 0")
    .Attr("output_shapes: list(shape) = []")
    .SetShapeFn(InferStatedShapes)
    .Doc(R"doc(
Runs pure operations back to back with TensorFlow's own kernels. A few in float32 have faster ones: see
docs/how_it_works.md. The units of a graph may find out by
themselves on how many cores they run fastest, or with the batch divided.

An operand is `inputs:<i>`, an input of the op or a value in the last one (see kept_types), or `steps:<j>:<port>`, an output of an earlier step.

inputs: The tensors that the steps read, each once.
outputs: The tensors that other nodes read.
steps: Serialized NodeDefs in the order in which they run, with operands as inputs, and without
  devices, control inputs and attributes that start with an underscore.
results: The operand of each output.
kept_inputs: Positions in `inputs` of filters that seldom or never change. oneDNN's kernels transform
  each once, and again after it has changed.
kept_types: The types of all values of a TfInterop>Kept, if the last input has them. They take the
  place of that input and those after it. Empty: the last input is like others.
cores: The number of cores, if the unit does not time itself. One core is the calling thread. Several
  are a group of threads that stay awake while the unit runs, or the calling thread if too few are
  free. A group has no more threads than there are intra-op threads. With 0, steps run as in stock
  TensorFlow.
split_inputs: Positions in `inputs` of tensors whose first dimension is the batch. Steps that read
  them, directly or through others, must compute each image by itself. A unit that times itself may
  divide the batch into as many parts as there are intra-op threads; each part runs through the steps
  on one core, or on its share of the cores if there are fewer images. Empty: the batch is not divided.
timed_graph: A name for the graph. Not empty: `cores` does not apply. The units of this name time their
  steps, and run in the fastest way: on one core, on several, as in stock TensorFlow, or, if there is one
  unit with `split_inputs`, with the batch divided.
timed_unit: The number of this unit among those of the graph.
timed_units: Their count. Each runs once in a step.
output_shapes: The outputs' shapes as far as they are known, or empty.
)doc");

// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const bool kept_is_registered =
    RegisterWithoutState(OpDefBuilder("TfInterop>Kept")
                             .Input("variables: N * resource")
                             .Input("packed: P * variant")
                             .Input("constants: Tin")
                             .Output("values: Tout")
                             .Attr("N: int >= 0")
                             .Attr("P: int >= 0")
                             .Attr("Tin: list(type) >= 0")
                             .Attr("Tout: list(type) >= 1")
                             .Attr("handles: list(int) >= 0")
                             .Attr("reads: list(string) >= 0")
                             .Attr("steps: list(string) >= 0")
                             .Attr("results: list(string) >= 1")
                             .Attr("kept_types: list(type) = []")
                             .Attr("output_shapes: list(shape) = []")
                             .SetShapeFn(InferStatedShapes)
                             .Doc(R"doc(
Values that depend only on variables and constants: computed once, and again after a variable changed.

An operand is `inputs:<i>`, the value of a variable or, after those, a constant; or
`steps:<j>:<port>`, an output of an earlier step.

variables: The variables. No op of the graph writes them.
packed: None, or more variables in one tensor that TfInterop>PackVariables made.
constants: Tensors that are the same in every call.
values: The results, or one tensor with all of them, which a TfInterop>Unit can read.
handles: The place of each read's variable among `variables`, continued in `packed`.
reads: The ReadVariableOp that reads each variable, as a serialized NodeDef.
steps: Serialized NodeDefs of pure operations, with operands as inputs.
results: The operand of each result.
kept_types: The types of the results if they are in one tensor, else empty.
output_shapes: The outputs' shapes as far as they are known, or empty.
)doc"));

// NOLINTNEXTLINE(bugprone-throwing-static-initialization)
[[maybe_unused]] const bool packing_is_registered =
    RegisterWithoutState(OpDefBuilder("TfInterop>PackVariables")
                             .Input("handles: N * resource")
                             .Output("packed: variant")
                             .Attr("N: int >= 1")
                             .SetShapeFn([](InferenceContext* context) {
                               context->set_output(0, context->Scalar());
                               return absl::OkStatus();
                             })
                             .Doc(R"doc(
Packs the handles of variables into one tensor, which a function takes in place of all of them.

handles: Scalars.
packed: A scalar. The variables live as long as it does.
)doc")) &&
    RegisterWithoutState(OpDefBuilder("TfInterop>UnpackVariables")
                             .Input("packed: variant")
                             .Output("handles: N * resource")
                             .Attr("N: int >= 1")
                             .Attr("dtypes: list(type) >= 1")
                             .Attr("shapes: list(shape) >= 1")
                             .SetShapeFn(SetHandleShapes)
                             .Doc(R"doc(
The handles in a tensor that TfInterop>PackVariables made.

packed: A scalar with N handles.
handles: Scalars.
dtypes: The types of the variables.
shapes: Their shapes as far as they are known.
)doc"));

}  // namespace
}  // namespace tf_interop
