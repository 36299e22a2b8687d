// The program of a ConvStage node: what its steps compute, and how they are put onto lanes.
//
// The attribute `program` is one JSON document:
//
//   {"version": 1,
//    "operations": ["<a serialized NodeDef in base64>", …],
//    "outputs": [0, 2, …],
//    "held_inputs": [1, 4],
//    "schedules": [{"batch_size": null, "stage": {"lanes": [
//        {"steps": [{"operation": 0, "algorithm": "eng4_k2=1"}, …],
//         <the fields of TfiLaneOptions>}, …]}}, …]}
//
// operations: what the steps compute, by the name, op and attributes of the nodes that they stand
//   for. Operands are written `inputs:<i>`, `sizes:<i>` (vectors of int32 in host memory), or
//   `steps:<j>` for the result of operation j, which is an earlier step of the same lane in every
//   schedule. Names differ.
// outputs: the operation of each output of the node. A result that is no output lives as long as
//   the call.
// held_inputs: positions among the inputs of filters that nobody writes while they are held,
// ascending. schedules: the one for every batch size, whose batch size is null, or one for each of
// several
//   batch sizes, ascending. Each has every operation on one lane, in the order in which the lane
//   runs them. An algorithm that is null or empty is left to the backend to choose.
//
// All fields are written.
#ifndef TF_INTEROP_TF_STAGE_PROGRAM_H_
#define TF_INTEROP_TF_STAGE_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cc_kernels/core/convolution.h"
#include "cc_kernels/core/stage.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/types.pb.h"
#include "tensorflow/core/util/padding.h"
#include "tensorflow/core/util/tensor_format.h"

namespace tf_interop {

// Where an operand comes from: an entry of the node's list `inputs` or of its list `sizes`, or the
// result of another operation.
struct Operand {
  enum class Source { kInput, kSize, kStep };
  Source source = Source::kInput;
  size_t index = 0;

  bool operator==(const Operand& other) const {
    return source == other.source && index == other.index;
  }
};

// What an operation's NodeDef says, checked and in the core's words.
struct StepProgram {
  std::string name;
  tensorflow::NodeDef node_def;  // as the program has it
  tensorflow::DataType dtype = tensorflow::DT_FLOAT;
  std::vector<Operand> operands;  // in the order of the op that the step stands for
  int output = -1;                // of the node, which this computes; -1 for an intermediate
  ConvolutionKind kind = ConvolutionKind::kForward;
  bool depthwise = false;
  DataType core_dtype = DataType::kFloat;  // `dtype` in the core's words
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
  bool has_held_filter = false;  // a filter that is read, and that nobody writes while it is held

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

// Which lane runs which step, with what. Steps of the core's Stage run in the order of their
// numbers, so they are numbered as the lanes have them: all of the first lane, all of the second,
// and so on.
struct StageSchedule {
  int64_t batch_size = 0;          // 0 where it holds for every one
  Stage stage;                     // what its steps compute is for shapes to say
  std::vector<size_t> operations;  // of each step of `stage`
};

struct StageProgram {
  std::vector<StepProgram> steps;        // by operation
  std::vector<size_t> outputs;           // the operation of each output
  std::vector<size_t> intermediates;     // the other operations
  std::vector<size_t> reader_counts;     // for each operation, the operands that are its result
  std::vector<StageSchedule> schedules;  // one or more, ascending
  size_t input_count = 0;                // of the list `inputs`, which the list `sizes` follows

  // An order in which every operation comes after those that it reads.
  const std::vector<size_t>& order() const { return schedules.front().operations; }
};

// What a ConvStage node says of its tensors beside its program.
struct StageTensors {
  std::vector<tensorflow::DataType> input_types;
  std::vector<tensorflow::DataType> output_types;
  int size_count = 0;
};

// Reads all attributes of a ConvStage node from what has a GetAttr of its attributes: the
// construction of a kernel, an InferenceContext.
template <typename Context>
absl::Status GetStageProgram(Context* context, StageTensors* tensors, StageProgram* program);

// Returns kInvalidArgument that names the step or the place in the document, what was expected and
// what came.
absl::Status ParseStageProgram(absl::string_view document, const StageTensors& tensors,
                               StageProgram* program);

// An error of a step, by the step's name.
absl::Status AtStep(absl::string_view step, absl::string_view message);

template <typename Context>
absl::Status GetStageProgram(Context* context, StageTensors* tensors, StageProgram* program) {
  std::string document;
  for (const absl::Status& status : {context->GetAttr("Tin", &tensors->input_types),
                                     context->GetAttr("Tout", &tensors->output_types),
                                     context->GetAttr("num_sizes", &tensors->size_count),
                                     context->GetAttr("program", &document)}) {
    if (!status.ok()) return status;
  }
  return ParseStageProgram(document, *tensors, program);
}

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STAGE_PROGRAM_H_
