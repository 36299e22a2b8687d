// The steps of a program, run back to back with TensorFlow's own kernels.
#ifndef TF_INTEROP_TF_STEPS_H_
#define TF_INTEROP_TF_STEPS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cc_kernels/core/ready_steps.h"
#include "cc_kernels/tf/filter_kernel.h"
#include "cc_kernels/tf/program.h"
#include "cc_kernels/tf/tried_step.h"
#include "cc_kernels/tf/vector_product.h"
#include "tensorflow/core/framework/node_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

namespace tf_interop {

// Operands are numbered: the inputs, then the outputs of all steps.
struct OperandRead {
  int operand = 0;
  // How often the step reads the operand up to here; 0 if it does so again.
  int reads_of_step = 0;
};

struct KernelStep {
  std::unique_ptr<tensorflow::OpKernel> kernel;
  std::unique_ptr<VectorProduct> vector_product;  // takes some calls; null for most ops
  std::unique_ptr<FilterKernel> filter_kernel;  // of a step whose filter seldom changes, else null
  std::unique_ptr<TriedStep> tried;             // of a step that another way may compute, else null
  std::vector<OperandRead> reads;
  int output_count = 0;             // of the step's op; its kernel may have more
  int first_output = 0;             // its number among the operands
  bool is_of_batch = false;         // reads a divided input, directly or through other steps
  int sizes_of_batch = -1;          // the read of sizes of the whole batch, or -1
  int summand = -1;                 // the read of a tensor that a convolution adds, or -1
  std::vector<int> unread_outputs;  // freed after the step
};

struct Steps {
  std::vector<KernelStep> steps;
  StepOrder order;
  std::vector<int> results;      // operands
  std::vector<int> read_counts;  // by operand: its reads by steps and as a result
  int input_count = 0;
  // Inputs from here on belong to a Kept op, which holds them beyond the run.
  int first_held_input = 0;
  int operand_count = 0;
  std::vector<tensorflow::DataType> onednn_types;  // read and written by oneDNN's kernels
};

// Reads the attributes `steps` and `results` of an op.
class StepsReader {
 public:
  // `input_types` and `result_types` are those of the inputs that operands name, and of the
  // results. `kept_inputs` are positions of inputs: filters that seldom or never change.
  StepsReader(tensorflow::OpKernelConstruction* context, tensorflow::DataTypeVector input_types,
              tensorflow::DataTypeVector result_types, std::vector<int64_t> kept_inputs,
              Steps* steps);

  // With `replaces_steps` some run in this library; see program_rewrites.h, vector_product.h,
  // direct_convolution.h and tried_step.h.
  absl::Status Read(bool replaces_steps = false);

 private:
  absl::Status ReadStep(const tensorflow::NodeDef& node);
  absl::Status ReadOperand(absl::string_view text, int* operand, tensorflow::DataType* dtype) const;
  void FindReads();

  tensorflow::OpKernelConstruction* const context_;
  const tensorflow::DataTypeVector input_types_;
  const tensorflow::DataTypeVector result_types_;
  const std::vector<int64_t> kept_inputs_;
  bool replaces_steps_ = false;
  bool tries_ways_ = false;
  Steps& steps_;
};

// Part of a batch: the images from `first` to before `last`.
struct Part {
  int64_t batch_size = 0;
  int64_t first = 0;
  int64_t last = 0;

  int64_t size() const { return last - first; }
};

// A run of steps and the values that they compute. Threads may run steps at the same time, each
// with a lane of its own and after those that the step reads.
class StepsRun {
 public:
  enum class Kind {
    kWhole,   // all steps, over the whole batch
    kShared,  // steps whose values are read again later
    kPart,    // all other steps, over a part
  };

  // `inputs` are those of `context`, a part's slices of them, or other tensors. They must outlive
  // this.
  StepsRun(const tensorflow::OpKernelContext& context, const Steps& steps, Kind kind,
           absl::Span<const tensorflow::TensorValue> inputs, const Part& part = {});
  StepsRun(const StepsRun&) = delete;
  StepsRun& operator=(const StepsRun&) = delete;

  // The attributes of the memory of an operand, before the run.
  void SetAttributes(int operand, tensorflow::AllocatorAttributes attributes) {
    attributes_[operand] = attributes;
  }

  // Runs steps one after another.
  class Lane {
   public:
    explicit Lane(StepsRun* run);
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    absl::Status Run(const KernelStep& step, tensorflow::DeviceBase* device);

   private:
    StepsRun& run_;
    tensorflow::OpKernelContext::Params params_;
    tensorflow::OpKernelContext derived_;
  };

  // Adopts the outputs of the shared run, which all parts read.
  void Share(const StepsRun& shared);

  const tensorflow::Tensor& output(int operand) const { return *outputs_[operand]; }

 private:
  // Replaces the batch size at the front of `sizes` with the part's.
  tensorflow::Tensor SizesOfPart(const tensorflow::Tensor& sizes) const;

  const tensorflow::OpKernelContext& context_;
  const Kind kind_;
  const absl::Span<const tensorflow::TensorValue> inputs_;
  const int first_held_input_;
  const Part part_;
  absl::InlinedVector<tensorflow::AllocatorAttributes, 16> attributes_;  // by operand
  absl::InlinedVector<std::unique_ptr<tensorflow::Tensor>, 16>
      outputs_;                               // by operand; null: inputs
  std::vector<std::atomic<int>> reads_left_;  // by operand
};

}  // namespace tf_interop

#endif  // TF_INTEROP_TF_STEPS_H_
