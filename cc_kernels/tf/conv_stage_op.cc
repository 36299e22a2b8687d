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

absl::Status GetStageAttributes(InferenceContext* context, StageAttributes* attributes) {
  TF_RETURN_IF_ERROR(context->GetAttr("steps", &attributes->steps));
  TF_RETURN_IF_ERROR(context->GetAttr("batch_sizes", &attributes->schedules.batch_sizes));
  TF_RETURN_IF_ERROR(context->GetAttr("step_lanes", &attributes->schedules.step_lanes));
  TF_RETURN_IF_ERROR(context->GetAttr("algorithms", &attributes->schedules.algorithms));
  TF_RETURN_IF_ERROR(context->GetAttr("lane_priorities", &attributes->schedules.lane_priorities));
  TF_RETURN_IF_ERROR(context->GetAttr("lane_sm_counts", &attributes->schedules.lane_sm_counts));
  TF_RETURN_IF_ERROR(context->GetAttr("merged_lanes", &attributes->schedules.merged_lanes));
  TF_RETURN_IF_ERROR(context->GetAttr("Tin", &attributes->input_types));
  TF_RETURN_IF_ERROR(context->GetAttr("Tout", &attributes->output_types));
  TF_RETURN_IF_ERROR(context->GetAttr("constant_inputs", &attributes->constant_inputs));
  return context->GetAttr("num_sizes", &attributes->size_count);
}

// Index of an operand among all inputs of the node: the list `inputs`, then the list `sizes`.
int InputIndex(const StageAttributes& attributes, const Operand& operand) {
  return operand.index + (operand.is_size ? static_cast<int>(attributes.input_types.size()) : 0);
}

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

// The shape that the value of a sizes operand gives, or one of `rank` unknown dimensions.
absl::Status ShapeFromSizes(InferenceContext* context, int input, int rank, ShapeHandle* shape) {
  TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(input, shape));
  if (!InferenceContext::RankKnown(*shape) || InferenceContext::Rank(*shape) != rank) {
    *shape = context->UnknownShapeOfRank(rank);
  }
  return absl::OkStatus();
}

absl::Status InferShapes(InferenceContext* context) {
  StageAttributes attributes;
  TF_RETURN_IF_ERROR(GetStageAttributes(context, &attributes));
  StageProgram program;
  TF_RETURN_IF_ERROR(ParseStageProgram(attributes, &program));
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const StepProgram& step = program.steps[i];
    ShapeHandle result;
    if (step.kind == ConvolutionKind::kForward) {
      const auto shape_of = [&](int operand) {
        return context->input(InputIndex(attributes, step.operands[operand]));
      };
      TF_RETURN_IF_ERROR(OutputShape(context, step, shape_of(step.image_operand()),
                                     shape_of(step.filter_operand()), &result));
    } else {
      TF_RETURN_IF_ERROR(ShapeFromSizes(context,
                                        InputIndex(attributes, step.operands[step.sizes_operand()]),
                                        step.rank(), &result));
    }
    context->set_output(static_cast<int>(i), result);
  }
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TfInterop>ConvStage")
    .Input("inputs: Tin")
    .Input("sizes: num_sizes * int32")
    .Output("outputs: Tout")
    .Attr("Tin: list({float, half, bfloat16, double}) >= 1")
    .Attr("Tout: list({float, half, bfloat16, double}) >= 1")
    .Attr("num_sizes: int >= 0")
    .Attr("constant_inputs: list(int) = []")
    .Attr("steps: list(string) >= 1")
    .Attr("batch_sizes: list(int) = []")
    .Attr("step_lanes: list(int) >= 1")
    .Attr("algorithms: list(string) >= 1")
    .Attr("lane_priorities: list(int) = []")
    .Attr("lane_sm_counts: list(int) = []")
    .Attr("merged_lanes: list(int) = []")
    .SetShapeFn(InferShapes)
    .Doc(R"doc(
Runs convolutions that do not depend on each other at the same time, each lane on a stream group of
its own.

inputs: The tensors that the convolutions read; one that several read appears once.
sizes: The input_sizes and filter_sizes of backward convolutions, in host memory.
outputs: The result of each step.
constant_inputs: Positions in `inputs` of filters that are the same in every call, so that they may
  be transformed once. Nobody may write to their memory.
steps: For each step a serialized NodeDef: name, op and attributes of the convolution that it
  stands for, and as inputs its operands, `inputs:<i>` or `sizes:<i>`.
batch_sizes: The batch sizes that the node has schedules for, ascending: each call runs by the one
  for its batch size, and in sequence where there is none. Empty where the one schedule is for all.
step_lanes: The lane of each step, counted from 0 in the order in which they come up. With several
  schedules, the lanes of all steps for the first batch size, then those for the second, and so on.
algorithms: The algorithm pinned for each step, empty where the choice is left to the runner;
  likewise for each schedule.
lane_priorities: The priority of each lane's stream, as CUDA counts: lower goes first. Those of the
  first schedule's lanes, then those of the second's, and so on. Empty where all are 0.
lane_sm_counts: How many SMs of a GPU each lane is to have for itself; 0 for a share of what the
  others leave. Likewise. Empty where all lanes share all.
merged_lanes: For each lane 1 where its steps, which read one image and differ in their filters,
  run as one wider convolution, else 0. Likewise. Empty where no lane is merged.
)doc");

}  // namespace tf_interop
