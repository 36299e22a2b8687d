// The program of a ConvStage node: its steps, checked, and the lanes that run them.
//
// The attributes `steps` and `results` are those of program.h. Only convolutions are steps. Inputs
// are numbered with `sizes` (vectors of int32 in host memory) after `inputs`.
//
// The attribute `schedules` is a JSON document:
//
//   [{"batch_size": null, "stage": {"lanes": [
//        {"steps": [{"operation": 0, "algorithm": "eng4_k2=1"}, …],
//         <the fields of TfiLaneOptions>}, …]}}, …]
//
// It has one schedule for all batch sizes, with batch size null, or one for each of several batch
// sizes, ascending. Each has every step (`operation`) on one lane, after the steps that it reads,
// and lanes run theirs in order. If an algorithm is null or empty, the backend chooses. Every field
// is required.
#ifndef TF_INTEROP_TF_STAGE_PROGRAM_H_
#define TF_INTEROP_TF_STAGE_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/stage.h"
#include "cc_kernels/core/status.h"
#include "cc_kernels/tf/program.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/padding.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_interop {

// A step's NodeDef, checked and in the core's terms.
struct StepProgram {
  std::string name;
  tensorflow::NodeDef node_def;
  tensorflow::DataType dtype = tensorflow::DT_FLOAT;
  std::vector<Operand> operands;  // in the order of the NodeDef's op
  int output = -1;                // the node's output that this computes, or -1
  ConvolutionKind kind = ConvolutionKind::kForward;
  bool depthwise = false;
  DataType core_dtype = DataType::kFloat;
  tensorflow::TensorFormat format = tensorflow::FORMAT_NHWC;
  tensorflow::Padding padding = tensorflow::SAME;
  int spatial_rank = 2;  // 3 for volumes
  // By depth, height and width; with a spatial rank of 2 depth keeps these values.
  int64_t explicit_pads[3][2] = {{0, 0}, {0, 0}, {0, 0}};  // before and after
  int64_t strides[3] = {1, 1, 1};
  int64_t dilations[3] = {1, 1, 1};
  bool has_bias = false;
  Activation activation = Activation::kNone;
  float leaky_relu_alpha = 0.2f;
  bool has_held_filter = false;  // reads an input that nobody writes while it is held

  // Positions among the operands: of the tensors, and of the sizes of a gradient's result.
  int image_operand() const { return 0; }
  int filter_operand() const { return 1; }
  int output_operand() const { return 2; }
  int sizes_operand() const { return kind == ConvolutionKind::kBackwardInput ? 0 : 1; }
  bool is_sizes(size_t operand) const {
    return kind != ConvolutionKind::kForward && static_cast<int>(operand) == sizes_operand();
  }

  int rank() const { return spatial_rank + 2; }  // of the tensors
  // Volumes have the spatial dimensions 0, 1 and 2: depth, height and width. Images have 1 and 2.
  int first_spatial() const { return 3 - spatial_rank; }
  // The place of spatial dimension `i` in the shape of an image or an output, and of a filter.
  int image_dimension(int i) const;
  int filter_dimension(int i) const { return i - first_spatial(); }
};

// Reads all but the operands.
absl::Status ParseConvolution(const tensorflow::NodeDef& node, StepProgram* step);

// The lanes for one batch size. The core runs a lane's steps in the order of their numbers, so
// they are numbered lane by lane.
struct StageSchedule {
  int64_t batch_size = 0;          // 0: all of them
  Stage stage;                     // without convolutions, which depend on shapes
  std::vector<size_t> operations;  // the program's step that each step of `stage` is
};

struct StageProgram {
  std::vector<StepProgram> steps;        // each after those that it reads
  std::vector<size_t> outputs;           // the step of each output
  std::vector<size_t> reader_counts;     // for each step, the operands that read its result
  std::vector<StageSchedule> schedules;  // one or more, ascending
};

// The attributes of a ConvStage node.
struct StageAttributes {
  std::vector<tensorflow::DataType> input_types;
  std::vector<tensorflow::DataType> output_types;
  int size_count = 0;
  std::vector<std::string> steps;
  std::vector<std::string> results;
  std::vector<int> kept_inputs;
  std::string schedules;
};

// Returns kInvalidArgument with the step or the place in the document, and the expected and actual
// values.
absl::Status ParseStageProgram(const StageAttributes& attributes, StageProgram* program);

// An attribute of a ConvStage node in a function that XLA compiled. The memory of such a call
// belongs to XLA, and TensorFlow's own kernels cannot run on a GPU there.
inline constexpr char kInXla[] = "_tf_interop_in_xla";

// Reads the attributes of a ConvStage node from an OpKernelConstruction or an InferenceContext.
template <typename Context>
absl::Status GetStageProgram(Context* context, StageProgram* program) {
  StageAttributes attributes;
  for (const absl::Status& status : {context->GetAttr("Tin", &attributes.input_types),
                                     context->GetAttr("Tout", &attributes.output_types),
                                     context->GetAttr("num_sizes", &attributes.size_count),
                                     context->GetAttr("steps", &attributes.steps),
                                     context->GetAttr("results", &attributes.results),
                                     context->GetAttr("kept_inputs", &attributes.kept_inputs),
                                     context->GetAttr("schedules", &attributes.schedules)}) {
    if (!status.ok()) return status;
  }
  return ParseStageProgram(attributes, program);
}

absl::Status ToAbslStatus(const Status& status);
Status FromAbslStatus(const absl::Status& status);

// An error that names its step.
template <typename... Parts>
absl::Status AtStep(absl::string_view step, const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("ConvStage step '", step, "': ", parts...));
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_PROGRAM_H_
