#include "cc_kernels/tf/resolved_stage.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "cc_kernels/core/ladder.h"
#include "tensorflow/core/framework/kernel_shape_util.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_interop {
namespace {

using tensorflow::TensorShape;

absl::Status ExpectRank(const StepProgram& step, const char* tensor, const TensorShape& shape) {
  if (shape.dims() == step.rank()) return absl::OkStatus();
  return AtStep(step.name, "expected ", tensor, " of rank ", step.rank(), ", got shape ",
                shape.DebugString(), ".");
}

int64_t ChannelsOf(const StepProgram& step, const TensorShape& image) {
  return image.dim_size(GetTensorFeatureDimIndex(step.rank(), step.format));
}

// Makes the shape of an image or an output; `spatial` is by depth, height and width.
absl::Status MakeImageShape(const StepProgram& step, int64_t batch, const int64_t* spatial,
                            int64_t channels, TensorShape* shape) {
  return tensorflow::ShapeFromFormatWithStatus(
      step.format, batch, absl::MakeConstSpan(spatial + step.first_spatial(), step.spatial_rank),
      channels, shape);
}

// Makes the image's shape from the value of input_sizes: the whole shape, or only height and width;
// the rest then follows from filter and output gradient, as in TensorFlow's Conv2DBackpropInput.
absl::Status ImageShapeFromSizes(const StepProgram& step, const std::vector<int64_t>& sizes,
                                 const TensorShape& filter, const TensorShape& output,
                                 TensorShape* image) {
  if (static_cast<int>(sizes.size()) == step.rank()) {
    return TensorShape::BuildTensorShape(sizes, image);
  }
  if (sizes.size() != 2 || step.depthwise || step.spatial_rank != 2) {
    return AtStep(step.name, "expected input_sizes with ", step.rank(), " entries, got ",
                  sizes.size(), ".");
  }
  const int64_t spatial[3] = {1, sizes[0], sizes[1]};
  return MakeImageShape(step, output.dim_size(0), spatial, filter.dim_size(2), image);
}

// Resolves the spatial dimensions: output and pads follow from image and filter. Without volumes,
// depths keep the core's defaults.
absl::Status ResolveSpatial(const StepProgram& step, const TensorShape& image,
                            const TensorShape& filter, Convolution* c) {
  struct Dimension {
    int64_t *image, *filter, *output, *stride, *dilation, *pad_before, *pad_after;
  };
  const Dimension dimensions[] = {
      {&c->image_depth, &c->filter_depth, &c->output_depth, &c->stride_depth, &c->dilation_depth,
       &c->pad_front, &c->pad_back},
      {&c->image_height, &c->filter_height, &c->output_height, &c->stride_height,
       &c->dilation_height, &c->pad_top, &c->pad_bottom},
      {&c->image_width, &c->filter_width, &c->output_width, &c->stride_width, &c->dilation_width,
       &c->pad_left, &c->pad_right},
  };
  c->spatial_rank = step.spatial_rank;
  for (int i = step.first_spatial(); i < 3; ++i) {
    const Dimension& of = dimensions[i];
    *of.image = image.dim_size(step.image_dimension(i));
    *of.filter = filter.dim_size(step.filter_dimension(i));
    *of.stride = step.strides[i];
    *of.dilation = step.dilations[i];
    *of.pad_before = step.explicit_pads[i][0];
    *of.pad_after = step.explicit_pads[i][1];
    const absl::Status status = tensorflow::GetWindowedOutputSizeVerbose(
        *of.image, *of.filter, *of.dilation, *of.stride, step.padding, of.output, of.pad_before,
        of.pad_after);
    if (!status.ok()) return AtStep(step.name, status.message());
  }
  return absl::OkStatus();
}

// Resolves channels and groups.
absl::Status ResolveChannels(const StepProgram& step, const TensorShape& filter,
                             int64_t image_channels, Convolution* c) {
  const int64_t filter_channels = filter.dim_size(step.spatial_rank);
  const bool fits =
      image_channels >= 1 && filter_channels >= 1 &&
      (step.depthwise ? filter_channels == image_channels : image_channels % filter_channels == 0);
  if (!fits) {
    return AtStep(step.name, "expected a filter for ", image_channels, " channels, got shape ",
                  filter.DebugString(), ".");
  }
  c->image_channels = image_channels;
  c->group_count = step.depthwise ? image_channels : image_channels / filter_channels;
  c->output_channels =
      filter.dim_size(step.spatial_rank + 1) * (step.depthwise ? image_channels : 1);
  return absl::OkStatus();
}

// A gradient of `elements` zeros, because a tensor of the convolution is empty. The convolution
// itself may not exist (a filter of height 0 has no output), so this is the simplest one that reads
// nothing and has a result of that size.
Convolution ZeroGradient(ConvolutionKind kind, DataType dtype, int64_t elements) {
  Convolution c;
  c.kind = kind;
  c.dtype = dtype;
  c.image_height = c.image_width = c.image_channels = 1;
  c.filter_height = c.filter_width = 1;
  c.output_height = c.output_width = 1;
  // [elements, 1, 1, 1] from no output channels, or [1, 1, 1, elements] from no images.
  (kind == ConvolutionKind::kBackwardInput ? c.batch : c.output_channels) = elements;
  return c;
}

// TensorFlow fuses a BiasAdd, whose bias is a vector, and with oneDNN also the equivalent addition
// of a bias such as [1, 1, 1, channels].
bool IsBiasOf(const TensorShape& bias, int64_t channels) {
  int dimensions_of_channels = bias.dims() > 0 && channels == 1 ? 1 : 0;
  for (const int64_t size : bias.dim_sizes()) {
    if (size == 1) continue;
    if (size != channels) return false;
    ++dimensions_of_channels;
  }
  return dimensions_of_channels == 1;
}

// 0 if every convolution computes nothing.
int64_t BatchSizeOf(const std::vector<Convolution>& convolutions) {
  std::map<int64_t, int> counts;
  for (const Convolution& each : convolutions) {
    if (each.computes_something()) ++counts[each.batch];
  }
  int64_t most_frequent = 0;
  for (const Convolution& each : convolutions) {
    if (each.computes_something() && counts[each.batch] > counts[most_frequent]) {
      most_frequent = each.batch;
    }
  }
  return most_frequent;
}

// If the workspaces of a prepared stage exceed the user's limit, which no call can change, prepares
// the first lesser stage within it.
void KeepWithinLimit(Backend* backend, ResolvedStage* resolved) {
  const size_t limit = resolved->options.workspace_limit_bytes;
  if (absl::c_accumulate(resolved->prepared.lane_workspace_bytes, size_t{0}) <= limit) return;
  LadderCalls calls;
  calls.get_workspaces = [&](const std::vector<size_t>& bytes, std::vector<void*>*) {
    return absl::c_accumulate(bytes, size_t{0}) <= limit;
  };
  LesserStage lesser = FindForMemory(backend, resolved->stage, resolved->options.convolutions,
                                     resolved->prepared, calls);
  resolved->prepared = std::move(lesser.stage);
  resolved->rung = lesser.rung;
}

// Finds the filters that a launch of `steps` reads. Returns false if one of them may not be held.
bool FindInputs(const StageProgram& program, const ResolvedStage& resolved,
                const std::vector<size_t>& steps, HeldFilter* found) {
  for (const size_t step : steps) {
    const StepProgram& each = program.steps[resolved.schedule->operations[step]];
    if (!each.has_held_filter) return false;
    found->inputs.push_back(each.operands[each.filter_operand()].index);
  }
  found->step = steps.front();
  found->operation = resolved.schedule->operations[found->step];
  return true;
}

// Finds the launches of a prepared stage that gain from transforming held filters once.
std::vector<HeldFilter> FindHeldFilters(const StageProgram& program, const ResolvedStage& resolved,
                                        Backend* backend) {
  std::vector<HeldFilter> held;
  const auto add = [&](HeldFilter found, const Convolution& convolution,
                       const PreparedConvolution& prepared) {
    found.key.convolution = convolution;
    found.key.algorithm = prepared.algorithm();
    found.key.allow_tf32 = resolved.options.convolutions.allow_tf32;
    found.key.backend = backend;
    held.push_back(std::move(found));
  };
  for (size_t i = 0; i < resolved.prepared.merged.size(); ++i) {
    const MergedSteps& merged = resolved.prepared.merged[i];
    HeldFilter found;
    found.merged = i;
    if (!FindInputs(program, resolved, merged.steps, &found)) continue;
    for (const size_t step : merged.steps) {
      found.key.filter_channels.push_back(resolved.stage.steps[step].convolution.output_channels);
    }
    add(std::move(found), merged.merge.wide, *merged.merge.convolution);
  }
  for (size_t step = 0; step < resolved.stage.steps.size(); ++step) {
    const PreparedConvolution* const prepared = resolved.prepared.steps[step].convolution.get();
    if (prepared == nullptr || prepared->transformed_filter_bytes() == 0) continue;
    HeldFilter found;
    if (!FindInputs(program, resolved, {step}, &found)) continue;
    add(std::move(found), resolved.stage.steps[step].convolution, *prepared);
  }
  return held;
}

}  // namespace

std::array<int64_t, StageOptions::kNumbers> StageOptions::Numbers() const {
  return {static_cast<int64_t>(convolutions.workspace_limit_bytes), convolutions.allow_tf32,
          convolutions.deterministic, static_cast<int64_t>(workspace_limit_bytes)};
}

StageOptions StageOptions::Of(absl::Span<const int64_t> numbers) {
  StageOptions options;
  options.convolutions.workspace_limit_bytes = static_cast<size_t>(numbers[0]);
  options.convolutions.allow_tf32 = numbers[1] != 0;
  options.convolutions.deterministic = numbers[2] != 0;
  options.workspace_limit_bytes = static_cast<size_t>(numbers[3]);
  return options;
}

absl::Status ResolveStep(const StepProgram& step, const std::vector<TensorShape>& operand_shapes,
                         const std::vector<int64_t>& sizes, Convolution* c,
                         TensorShape* result_shape) {
  const bool forward = step.kind == ConvolutionKind::kForward;
  TensorShape image, filter, output;
  if (step.kind != ConvolutionKind::kBackwardInput) image = operand_shapes[step.image_operand()];
  if (step.kind != ConvolutionKind::kBackwardFilter) {
    filter = operand_shapes[step.filter_operand()];
    TF_RETURN_IF_ERROR(ExpectRank(step, "the filter", filter));
  }
  if (!forward) {
    output = operand_shapes[step.output_operand()];
    TF_RETURN_IF_ERROR(ExpectRank(step, "the output gradient", output));
  }
  if (step.kind == ConvolutionKind::kBackwardInput) {
    TF_RETURN_IF_ERROR(ImageShapeFromSizes(step, sizes, filter, output, &image));
  }
  if (step.kind == ConvolutionKind::kBackwardFilter) {
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(sizes, &filter));
    TF_RETURN_IF_ERROR(ExpectRank(step, "the filter of filter_sizes", filter));
  }
  TF_RETURN_IF_ERROR(ExpectRank(step, "the image", image));
  if (!forward) *result_shape = step.kind == ConvolutionKind::kBackwardInput ? image : filter;
  const bool is_empty =
      image.num_elements() == 0 || filter.num_elements() == 0 || output.num_elements() == 0;
  if (!forward && is_empty) {
    *c = ZeroGradient(step.kind, step.core_dtype, result_shape->num_elements());
    return absl::OkStatus();
  }

  if (filter.num_elements() == 0 && !step.depthwise) {  // in TensorFlow's words
    return AtStep(step.name,
                  "filter must not have zero elements (i.e. all dimensions must be non-zero)");
  }

  *c = Convolution();
  c->kind = step.kind;
  c->dtype = step.core_dtype;
  c->layout = step.format == tensorflow::FORMAT_NHWC ? Layout::kNHWC : Layout::kNCHW;
  c->batch = image.dim_size(0);
  c->has_bias = step.has_bias;
  c->activation = step.activation;
  c->leaky_relu_alpha = step.leaky_relu_alpha;
  TF_RETURN_IF_ERROR(ResolveChannels(step, filter, ChannelsOf(step, image), c));
  TF_RETURN_IF_ERROR(ResolveSpatial(step, image, filter, c));

  const int64_t output_sizes[3] = {c->output_depth, c->output_height, c->output_width};
  TensorShape expected_output;
  TF_RETURN_IF_ERROR(
      MakeImageShape(step, c->batch, output_sizes, c->output_channels, &expected_output));
  if (!forward && output != expected_output) {
    return AtStep(step.name, "expected an output gradient of shape ", expected_output.DebugString(),
                  ", got ", output.DebugString(), ".");
  }
  if (step.has_bias) {
    const TensorShape& bias = operand_shapes[2];
    if (!IsBiasOf(bias, c->output_channels)) {
      return AtStep(step.name, "expected a bias of ", c->output_channels, " channels, got shape ",
                    bias.DebugString(), ".");
    }
  }
  if (forward) *result_shape = expected_output;
  return absl::OkStatus();
}

absl::Status ResolveConvolutions(const StageProgram& program, const StageInputs& inputs,
                                 std::vector<Convolution>* convolutions,
                                 std::vector<TensorShape>* result_shapes) {
  result_shapes->resize(program.steps.size());
  convolutions->resize(program.steps.size());
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const StepProgram& step = program.steps[i];
    std::vector<TensorShape> operand_shapes;
    std::vector<int64_t> sizes;
    for (const Operand& operand : step.operands) {
      if (step.is_sizes(operand_shapes.size())) sizes = inputs.sizes[operand.index];
      operand_shapes.push_back(operand.is_step ? (*result_shapes)[operand.index]
                                               : inputs.shapes[operand.index]);
    }
    TF_RETURN_IF_ERROR(
        ResolveStep(step, operand_shapes, sizes, &(*convolutions)[i], &(*result_shapes)[i]));
  }
  return absl::OkStatus();
}

const StageSchedule* FindSchedule(const StageProgram& program,
                                  const std::vector<Convolution>& convolutions) {
  const std::vector<StageSchedule>& schedules = program.schedules;
  const int64_t batch_size = BatchSizeOf(convolutions);
  // If nothing is computed, any schedule will do.
  if (schedules.front().batch_size == 0 || batch_size == 0) return &schedules.front();
  const auto found = absl::c_find_if(
      schedules, [&](const StageSchedule& schedule) { return schedule.batch_size == batch_size; });
  return found == schedules.end() ? nullptr : &*found;
}

absl::Status ResolveStage(const StageProgram& program, const StageInputs& inputs,
                          const StageOptions& options, Backend* backend, ResolvedStage* resolved) {
  std::vector<Convolution> convolutions;
  TF_RETURN_IF_ERROR(ResolveConvolutions(program, inputs, &convolutions, &resolved->result_shapes));
  for (const Convolution& each : convolutions) {
    resolved->computes_nothing.push_back(!each.computes_something());
  }
  resolved->options = options;
  resolved->schedule = FindSchedule(program, convolutions);
  if (resolved->schedule == nullptr) {
    resolved->schedule = &program.schedules.front();
    resolved->unplanned_kind = kNoPlan;
    resolved->why_unplanned =
        absl::StrCat("batch size ", BatchSizeOf(convolutions), " is not in the plan (",
                     absl::StrJoin(program.schedules, ", ",
                                   [](std::string* text, const StageSchedule& schedule) {
                                     absl::StrAppend(text, schedule.batch_size);
                                   }),
                     ")");
    return absl::OkStatus();
  }
  resolved->stage = resolved->schedule->stage;
  for (size_t i = 0; i < resolved->stage.steps.size(); ++i) {
    const size_t operation = resolved->schedule->operations[i];
    resolved->stage.steps[i].convolution = convolutions[operation];
  }
  const Status prepared =
      PrepareStage(backend, resolved->stage, options.convolutions, &resolved->prepared);
  if (!IsLasting(prepared) || resolved->prepared.is_provisional()) {
    // The backend waits longer before each retry, so this costs little.
    resolved->try_again_at = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  }
  if (!prepared.ok()) {
    resolved->unplanned_kind = kNoAlgorithm;
    resolved->why_unplanned = prepared.message();
    return absl::OkStatus();
  }
  KeepWithinLimit(backend, resolved);
  if (resolved->rung != Rung::kStock) {
    resolved->held_filters = FindHeldFilters(program, *resolved, backend);
  }
  return absl::OkStatus();
}

}  // namespace tf_interop
