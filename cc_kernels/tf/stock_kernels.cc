#include "cc_kernels/tf/stock_kernels.h"

#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/tf/onednn_names.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/public/version.h"

namespace tf_interop {
namespace {

using tensorflow::NodeDef;
using tensorflow::OpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

absl::Status AtKernel(const StepProgram& step, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("ConvStage step '", step.name,
                                   "' with TensorFlow's own kernel: ", status.message()));
}

absl::Status MakeKernel(OpKernelContext* context, bool is_on_cpu, NodeDef node,
                        std::unique_ptr<OpKernel>* kernel) {
  const tensorflow::OpDef* op_def = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUpOpDef(node.op(), &op_def));
  tensorflow::AddDefaultsToNodeDef(*op_def, &node);
  std::shared_ptr<const tensorflow::NodeProperties> properties;
  TF_RETURN_IF_ERROR(tensorflow::NodeProperties::CreateFromNodeDef(
      std::move(node), tensorflow::OpRegistry::Global(), &properties));
  // Not by the call's FunctionLibraryRuntime: that of a function over several devices makes none,
  // and Grappler, which computes nodes that read constants alone, has none.
  const tensorflow::DeviceType device(is_on_cpu ? tensorflow::DEVICE_CPU : tensorflow::DEVICE_GPU);
  absl::Status status;
  *kernel = tensorflow::CreateOpKernel(device, context->device(),
                                       context->get_allocator(tensorflow::AllocatorAttributes()),
                                       properties, TF_GRAPH_DEF_VERSION, &status);
  return status;
}

// Checks that the kernel can be called as Run calls it: sizes in host memory, which on a CPU all
// memory is, and everything else on the device.
absl::Status CheckKernel(const StepProgram& step, bool is_on_cpu, OpKernel* kernel) {
  bool is_as_expected = kernel->AsAsync() == nullptr &&
                        kernel->num_inputs() == static_cast<int>(step.operands.size()) &&
                        kernel->num_outputs() > 0 && kernel->output_type(0) == step.dtype &&
                        kernel->output_memory_types()[0] == tensorflow::DEVICE_MEMORY;
  for (size_t i = 0; is_as_expected && i < step.operands.size(); ++i) {
    const bool is_size = step.operands[i].source == Operand::Source::kSize;
    const bool is_on_host = kernel->input_memory_types()[i] == tensorflow::HOST_MEMORY;
    is_as_expected = is_on_cpu || is_size == is_on_host;
  }
  if (is_as_expected) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("expected a kernel of ", kernel->type_string_view(),
                   " with the step's operands, sizes in host memory, got another."));
}

}  // namespace

StockKernels::StockKernels(const StageProgram* program, bool is_on_cpu)
    : program_(program), is_on_cpu_(is_on_cpu) {}

absl::Status StockKernels::Find(OpKernelContext* context, size_t operation, OpKernel** kernel) {
  const StepProgram& step = program_->steps[operation];
  std::lock_guard<std::mutex> lock(mutex_);
  kernels_.resize(program_->steps.size());
  std::unique_ptr<OpKernel>& known = kernels_[operation];
  if (known == nullptr) {
    NodeDef node = step.node_def;
    if (is_on_cpu_) RenameForOneDnn(/*has_constant_filter=*/false, &node);
    std::unique_ptr<OpKernel> made;
    TF_RETURN_IF_ERROR(MakeKernel(context, is_on_cpu_, std::move(node), &made));
    TF_RETURN_IF_ERROR(CheckKernel(step, is_on_cpu_, made.get()));
    known = std::move(made);
  }
  *kernel = known.get();
  return absl::OkStatus();
}

absl::Status StockKernels::Run(OpKernelContext* context, size_t operation,
                               std::vector<Tensor> operands,
                               tensorflow::AllocatorAttributes result_attributes, Tensor* result) {
  const StepProgram& step = program_->steps[operation];
  OpKernel* kernel = nullptr;
  TF_RETURN_IF_ERROR(AtKernel(step, Find(context, operation, &kernel)));

  absl::InlinedVector<tensorflow::TensorValue, 4> inputs;
  absl::InlinedVector<tensorflow::AllocatorAttributes, 4> input_attributes;
  for (size_t i = 0; i < operands.size(); ++i) {
    inputs.emplace_back(&operands[i]);
    input_attributes.emplace_back().set_on_host(kernel->input_memory_types()[i] ==
                                                tensorflow::HOST_MEMORY);
  }
  // Kernels of oneDNN may have further results, which nobody reads.
  std::vector<tensorflow::AllocatorAttributes> attributes(kernel->num_outputs());
  attributes[0] = result_attributes;

  OpKernelContext::Params params = *context->params();
  params.op_kernel = kernel;
  params.inputs = inputs;
  params.input_alloc_attrs = input_attributes;
  params.output_attr_array = attributes.data();
  params.forward_from_array = nullptr;
  params.outputs_required_array = nullptr;
  params.eigen_gpu_device = nullptr;  // that of `context`, which owns it
  params.track_allocations = false;   // whoever tracks reads those of `context`
  OpKernelContext derived(&params, kernel->num_outputs());
  kernel->Compute(&derived);
  TF_RETURN_IF_ERROR(AtKernel(step, derived.status()));
  const std::unique_ptr<Tensor> computed(derived.release_output(0).tensor);
  if (computed == nullptr) return AtKernel(step, absl::InternalError("expected a result."));
  *result = *computed;
  return absl::OkStatus();
}

}  // namespace tf_interop
