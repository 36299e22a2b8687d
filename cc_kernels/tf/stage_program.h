// The program of a ConvStage node: its steps, as its attributes state them.
#ifndef TF_INTEROP_TF_STAGE_PROGRAM_H_
#define TF_INTEROP_TF_STAGE_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/tf/stage_schedule.h"
#include "tensorflow/core/framework/attr_value.pb.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/padding.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_interop {

// An operand of a step: an entry of the node's list `inputs` or of its list `sizes`.
struct Operand {
  bool is_size = false;
  int index = 0;
};

// What a step's NodeDef says, checked and in the core's words.
struct StepProgram {
  std::string name;
  ConvolutionKind kind = ConvolutionKind::kForward;
  bool depthwise = false;
  tensorflow::DataType dtype = tensorflow::DT_FLOAT;
  DataType core_dtype = DataType::kFloat;  // the same in the core's words
  tensorflow::TensorFormat format = tensorflow::FORMAT_NHWC;
  tensorflow::Padding padding = tensorflow::SAME;
  int spatial_rank = 2;  // 3 for the convolutions of volumes
  // Of depth, height and width; depth keeps these where the spatial rank is 2.
  int64_t explicit_pads[3][2] = {{0, 0}, {0, 0}, {0, 0}};  // before and after
  int64_t strides[3] = {1, 1, 1};
  int64_t dilations[3] = {1, 1, 1};
  bool has_bias = false;
  Activation activation = Activation::kNone;
  float leaky_relu_alpha = 0.2f;
  std::vector<Operand> operands;     // in the order of the op that the step stands for
  bool has_constant_filter = false;  // a filter that is read, and is the same in every call

  // Where the two tensors that are read, and the sizes of the one that is computed, stand among
  // the operands. Forward has no sizes operand.
  int image_operand() const { return 0; }
  int filter_operand() const { return 1; }
  int output_operand() const { return 2; }
  int sizes_operand() const { return kind == ConvolutionKind::kBackwardInput ? 0 : 1; }

  int rank() const { return spatial_rank + 2; }  // of the tensors
  // Spatial dimensions by their place among depth, height and width: 0, 1 and 2 of volumes, 1 and 2
  // of images.
  int first_spatial() const { return 3 - spatial_rank; }
  // Where spatial dimension `i` is among the dimensions of an image or an output, and of a filter.
  int image_dimension(int i) const;
  int filter_dimension(int i) const { return i - first_spatial(); }
};

struct StageProgram {
  std::vector<StepProgram> steps;
  StageSchedules schedules;
};

// Attributes of a ConvStage node, as TensorFlow hands them over.
struct StageAttributes {
  std::vector<std::string> steps;  // serialized NodeDefs
  ScheduleAttributes schedules;
  std::vector<tensorflow::DataType> input_types;
  std::vector<tensorflow::DataType> output_types;
  int size_count = 0;
  std::vector<int> constant_inputs;  // positions in the list `inputs`
};

// Returns kInvalidArgument that names the step, what was expected and what came.
absl::Status ParseStageProgram(const StageAttributes& attributes, StageProgram* program);

// An error of a step, by the step's name.
absl::Status AtStep(absl::string_view step, absl::string_view message);

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_PROGRAM_H_
