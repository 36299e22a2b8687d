// The op TfInterop>ConvStage and its shape function.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc_kernels/tf/stage_program.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status OutputShape(InferenceContext* context, const StepProgram& step, ShapeHandle image,
                         ShapeHandle filter, ShapeHandle* output) {
  TF_RETURN_IF_ERROR(context->WithRank(image, step.rank(), &image));
  TF_RETURN_IF_ERROR(context->WithRank(filter, step.rank(), &filter));
  std::vector<DimensionHandle> dimensions(step.rank());
  dimensions[0] = context->Dim(image, 0);
  for (int i = step.first_spatial(); i < 3; ++i) {
    const int dimension = step.image_dimension(i);
    TF_RETURN_IF_ERROR(tensorflow::shape_inference::GetWindowedOutputSizeFromDimsV2(
        context, context->Dim(image, dimension), context->Dim(filter, step.filter_dimension(i)),
        step.dilations[i], step.strides[i], step.padding, step.explicit_pads[i][0],
        step.explicit_pads[i][1], &dimensions[dimension]));
  }
  DimensionHandle channels = context->Dim(filter, step.rank() - 1);
  if (step.depthwise) {
    TF_RETURN_IF_ERROR(
        context->Multiply(context->Dim(filter, step.spatial_rank), channels, &channels));
  }
  dimensions[tensorflow::GetTensorFeatureDimIndex(step.rank(), step.format)] = channels;
  *output = context->MakeShape(dimensions);
  return absl::OkStatus();
}

// Reads a shape from the value of a sizes operand, else returns one of `rank` unknown dimensions.
absl::Status ShapeFromSizes(InferenceContext* context, int input, int rank, ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(input, shape));
  if (!InferenceContext::RankKnown(*shape) || InferenceContext::Rank(*shape) != rank) {
    *shape = context->UnknownShapeOfRank(rank);
  }
  return absl::OkStatus();
}

absl::Status InferShapes(InferenceContext* context) {
  StageProgram program;
  TF_RETURN_IF_ERROR(GetStageProgram(context, &program));
  std::vector<ShapeHandle> results(program.steps.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const StepProgram& step = program.steps[i];
    const auto shape_of = [&](int place) {
      const Operand& operand = step.operands[place];
      return operand.is_step ? results[operand.index] : context->input(operand.index);
    };
    ShapeHandle* const result = &results[i];
    if (step.kind == ConvolutionKind::kForward) {
      TF_RETURN_IF_ERROR(OutputShape(context, step, shape_of(step.image_operand()),
                                     shape_of(step.filter_operand()), result));
    } else {
      const int sizes = step.operands[step.sizes_operand()].index;
      TF_RETURN_IF_ERROR(ShapeFromSizes(context, sizes, step.rank(), result));
    }
  }
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    context->set_output(static_cast<int>(i), results[program.outputs[i]]);
  }
  return absl::OkStatus();
}

}  // namespace

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
    .SetShapeFn(InferShapes)
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

}  // namespace tf_interop
