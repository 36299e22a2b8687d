// Stages inside functions that XLA compiles.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#ifdef TF_INTEROP_HAS_CUDNN
#include "cc_kernels/core/cudnn/backend.h"
#endif
#include "cc_kernels/tf/resolved_stage.h"
#include "cc_kernels/tf/stage_call.h"
#include "cc_kernels/tf/stage_program.h"
#include "cc_kernels/xla/call_memory.h"
#include "cc_kernels/xla/kernel_call.h"
#include "tensorflow/compiler/tf2xla/kernels/conv_op_helpers.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/type_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_def_util.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"
#include "xla/hlo/builder/lib/constants.h"

namespace tf_interop {
namespace {

using tensorflow::XlaOpKernelContext;

constexpr char kOp[] = "TfInterop>ConvStage";

// On a CPU stages are slower than XLA's convolutions, and only for tests.
bool AreForHosts() {
  const char* const variable = std::getenv("TF_INTEROP_HOST_STAGES");
  return variable != nullptr && absl::string_view(variable) == "1";
}

tensorflow::ConvOpAttrs AttrsOf(const StepProgram& step) {
  tensorflow::ConvOpAttrs attrs;
  attrs.depthwise = step.depthwise;
  attrs.num_spatial_dims = step.spatial_rank;
  attrs.data_format = step.format;
  attrs.padding = step.padding;
  attrs.strides.assign(step.rank(), 1);
  attrs.dilations.assign(step.rank(), 1);
  const bool is_explicit = step.padding == tensorflow::EXPLICIT;
  if (is_explicit) attrs.explicit_paddings.assign(size_t{2} * step.rank(), 0);
  for (int i = step.first_spatial(); i < 3; ++i) {
    const int dimension = step.image_dimension(i);
    attrs.strides[dimension] = static_cast<int32_t>(step.strides[i]);
    attrs.dilations[dimension] = static_cast<int32_t>(step.dilations[i]);
    if (!is_explicit) continue;
    attrs.explicit_paddings[size_t{2} * dimension] = step.explicit_pads[i][0];
    attrs.explicit_paddings[size_t{2} * dimension + 1] = step.explicit_pads[i][1];
  }
  return attrs;
}

xla::XlaOp Activate(const StepProgram& step, xla::XlaOp x) {
  const xla::XlaOp zero = xla::ZerosLike(x);
  switch (step.activation) {
    case Activation::kNone:
      return x;
    case Activation::kRelu:
      return xla::Max(x, zero);
    case Activation::kRelu6:
      return xla::Clamp(zero, x, xla::FullLike(x, 6));
    case Activation::kLeakyRelu:
      return xla::Select(xla::Gt(x, zero), x, x * xla::FullLike(x, step.leaky_relu_alpha));
    case Activation::kElu:
      return xla::Select(xla::Gt(x, zero), x, xla::Expm1(x));
  }
  return x;
}

#ifdef TF_INTEROP_HAS_CUDNN
// Whether a stage has a convolution that is better left to XLA, which times algorithms when it
// compiles. The GPU computes a long one while the host launches what comes after it, so a capture
// can gain little. The longest that were measured in stages are at this limit
// (docs/results/gpu_compiled.json).
bool IsLong(const Stage& stage, int device) {
  constexpr double kMostMultiplyAddsOfAnSm = 170e6;
  int sm_count = 0;
  if (!CountSms(device, &sm_count).ok()) return false;
  return absl::c_any_of(stage.steps, [&](const Step& step) {
    return step.algorithm.empty() && step.convolution.computes_something() &&
           step.convolution.multiply_adds() > kMostMultiplyAddsOfAnSm * sm_count;
  });
}
#endif

// A stage as a call of the op's kernel, or as XLA's own convolutions.
class ConvStage : public tensorflow::XlaOpKernel {
 public:
  explicit ConvStage(tensorflow::OpKernelConstruction* context)
      : XlaOpKernel(context),
        device_type_(context->device_type() == tensorflow::DEVICE_GPU_XLA_JIT
                         ? tensorflow::DEVICE_GPU
                         : tensorflow::DEVICE_CPU),
        node_(context->def()) {
    OP_REQUIRES_OK(context, GetStageProgram(context, &program_));
    node_.clear_device();
  }

  void Compile(XlaOpKernelContext* context) override {
    // Made in any case: they check the inputs and have the shapes of the results. XLA drops what is
    // not read.
    std::vector<xla::XlaOp> results;
    OP_REQUIRES_OK(context, Translate(context, &results));
    const StageOptions options = StageOptionsNow(/*is_in_xla=*/true);
    size_t scratch_bytes = 0;
    const bool is_call = CanCall(context, options, &scratch_bytes);
    ++(is_call ? xla_call_counts.compiled_stages : xla_call_counts.translated_stages);
    if (is_call) OP_REQUIRES_OK(context, Call(context, options, scratch_bytes, &results));
    for (size_t i = 0; i < results.size(); ++i) {
      context->SetOutput(static_cast<int>(i), results[i]);
    }
  }

 private:
  absl::Status Translate(XlaOpKernelContext* context, std::vector<xla::XlaOp>* results) const {
    std::vector<xla::XlaOp> computed;
    for (const StepProgram& step : program_.steps) {
      const auto translated_step = TranslateStep(context, step, computed);
      if (!translated_step.ok()) return AtStep(step.name, translated_step.status().message());
      computed.push_back(*translated_step);
    }
    for (const size_t step : program_.outputs) results->push_back(computed[step]);
    return absl::OkStatus();
  }

  static absl::StatusOr<xla::XlaOp> TranslateStep(XlaOpKernelContext* context,
                                                  const StepProgram& step,
                                                  const std::vector<xla::XlaOp>& computed) {
    const auto operand = [&](int i) {
      const Operand& its = step.operands[i];
      return its.is_step ? computed[its.index] : context->Input(its.index);
    };
    const auto shape_of_sizes = [&]() -> absl::StatusOr<xla::Shape> {
      const int index = step.operands[step.sizes_operand()].index;
      tensorflow::TensorShape shape;
      // A dynamic batch size has a bound.
      TF_RETURN_IF_ERROR(
          context->ConstantInputAsShape(index, &shape, xla::ValueInferenceMode::kUpperBound));
      xla::PrimitiveType type = xla::PRIMITIVE_TYPE_INVALID;
      TF_RETURN_IF_ERROR(tensorflow::DataTypeToPrimitiveType(step.dtype, &type));
      return tensorflow::TensorShapeToXLAShape(type, shape);
    };
    const tensorflow::ConvOpAttrs attrs = AttrsOf(step);
    const std::string& op = step.node_def.op();
    if (step.kind == ConvolutionKind::kBackwardInput) {
      TF_ASSIGN_OR_RETURN(const xla::Shape shape, shape_of_sizes());
      xla::XlaOp sizes = context->Input(step.operands[step.sizes_operand()].index);
      return tensorflow::MakeXlaBackpropInputConvOp(op, shape, operand(step.filter_operand()),
                                                    operand(step.output_operand()), attrs, &sizes);
    }
    if (step.kind == ConvolutionKind::kBackwardFilter) {
      TF_ASSIGN_OR_RETURN(const xla::Shape shape, shape_of_sizes());
      return tensorflow::MakeXlaBackpropFilterConvOp(op, operand(step.image_operand()), shape,
                                                     operand(step.output_operand()), attrs);
    }
    TF_ASSIGN_OR_RETURN(const xla::XlaOp result,
                        tensorflow::MakeXlaForwardConvOp(op, operand(step.image_operand()),
                                                         operand(step.filter_operand()), attrs));
    if (!step.has_bias) return result;
    TF_ASSIGN_OR_RETURN(const xla::Shape shape, context->builder()->GetShape(result));
    const int channels = tensorflow::GetTensorFeatureDimIndex(step.rank(), step.format);
    const xla::XlaOp bias = xla::Reshape(operand(2), {shape.dimensions(channels)});
    return Activate(step, xla::Add(result, bias, {channels}));
  }

  // Whether the op's kernel runs this as it was planned: static sizes, and a batch size of the
  // plan. On a GPU it finds how much temporary memory that takes.
  bool CanCall(XlaOpKernelContext* context, const StageOptions& options,
               size_t* scratch_bytes) const {
    if (program_.outputs.size() > kMostResults ||
        (device_type_ == tensorflow::DEVICE_CPU && !AreForHosts())) {
      return false;
    }
    StageInputs inputs;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const absl::StatusOr<xla::Shape> shape = context->InputXlaShape(i);
      if (!shape.ok() || !shape->is_static()) return false;
      if (!tensorflow::XLAShapeToTensorShape(*shape, &inputs.shapes.emplace_back()).ok()) {
        return false;
      }
      std::vector<int64_t>& sizes = inputs.sizes.emplace_back();
      const bool is_sizes = context->input_type(i) == tensorflow::DT_INT32;
      if (is_sizes && !context->ConstantInputAsIntVector(i, &sizes).ok()) return false;
    }
    return HasKernel(device_type_, node_) && HasPlan(*context, inputs, options, scratch_bytes);
  }

  // On a GPU the stage is prepared, because at run time TensorFlow's own kernels cannot take over,
  // and a choice that is made anew may need more memory.
  bool HasPlan(const XlaOpKernelContext& context, const StageInputs& inputs,
               const StageOptions& options, size_t* scratch_bytes) const {
#ifdef TF_INTEROP_HAS_CUDNN
    if (device_type_ == tensorflow::DEVICE_GPU) {
      const int device = std::max(context.compiler()->options().device_ordinal, 0);
      Backend* backend = nullptr;
      ResolvedStage resolved;
      const bool has_plan = FindCudnnBackendOf(device, &backend).ok() &&
                            ResolveStage(program_, inputs, options, backend, &resolved).ok() &&
                            resolved.unplanned_kind == nullptr && resolved.rung != Rung::kStock &&
                            !resolved.try_again_at.has_value() && !IsLong(resolved.stage, device);
      if (has_plan) *scratch_bytes = ScratchBytesOf(resolved);
      return has_plan;
    }
#endif
    (void)context;
    (void)options;
    (void)scratch_bytes;
    std::vector<Convolution> convolutions;
    std::vector<tensorflow::TensorShape> shapes;
    return ResolveConvolutions(program_, inputs, &convolutions, &shapes).ok() &&
           FindSchedule(program_, convolutions) != nullptr;
  }

  // What StageCall allocates: a workspace for each lane, and the results that only steps read.
  size_t ScratchBytesOf(const ResolvedStage& resolved) const {
    size_t bytes = 0;
    const auto add = [&bytes](size_t size) {
      constexpr size_t kAlignment = ScratchMemory::kAlignment;
      bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    };
    for (const size_t workspace : resolved.prepared.lane_workspace_bytes) add(workspace);
    for (size_t i = 0; i < program_.steps.size(); ++i) {
      if (program_.steps[i].output >= 0) continue;
      add(resolved.result_shapes[i].num_elements() *
          tensorflow::DataTypeSize(program_.steps[i].dtype));
    }
    return bytes;
  }

  // Replaces the results with those of a call.
  absl::Status Call(XlaOpKernelContext* context, const StageOptions& options, size_t scratch_bytes,
                    std::vector<xla::XlaOp>* results) const {
    TF_ASSIGN_OR_RETURN(const std::vector<CallInput> inputs, ReadInputs(context));
    tensorflow::NodeDef node = node_;
    tensorflow::AddNodeAttr(kInXla, absl::MakeConstSpan(options.Numbers()), &node);
    TF_ASSIGN_OR_RETURN(*results, CallKernel(node, inputs, *results, scratch_bytes));
    return absl::OkStatus();
  }

  const char* const device_type_;  // of the kernel that is called
  tensorflow::NodeDef node_;
  StageProgram program_;
};

// For what XLA must know of the op before it is compiled.
REGISTER_XLA_OP(Name(kOp).CompileTimeConstantInput("sizes"), ConvStage);

// XLA takes the kernels of its registry once, perhaps before this library is loaded.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization): only if memory runs out
const bool stage_is_registered = [] {
  for (const char* device_type : {"XLA_CPU_JIT", "XLA_GPU_JIT"}) {
    auto* const def = new tensorflow::KernelDef;  // owned by the registry
    def->set_op(kOp);
    def->set_device_type(device_type);
    def->set_priority(1);
    tensorflow::kernel_factory::OpKernelRegistrar(
        def, "tf_interop::ConvStage",
        [](tensorflow::OpKernelConstruction* context) -> tensorflow::OpKernel* {
          return new ConvStage(context);
        });
  }
  return true;
}();

}  // namespace

}  // namespace tf_interop
