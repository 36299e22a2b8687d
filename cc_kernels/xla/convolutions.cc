// Depthwise convolutions inside functions that XLA compiles for a CPU.
//
// XLA compiles them to loops that are many times slower than TensorFlow's kernels. While calls are
// on (kernel_call.h), functions that are compiled call those kernels instead.
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cc_kernels/xla/kernel_call.h"
#include "tensorflow/compiler/tf2xla/kernels/conv_op_helpers.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/errors.h"

namespace tf_interop {
namespace {

using tensorflow::XlaOpKernelContext;

// The three ops of a depthwise convolution: XLA's own operations, as TensorFlow's kernels for XLA
// make them (tensorflow/compiler/tf2xla/kernels/conv_ops.cc), or a call.
class DepthwiseConvolution : public tensorflow::XlaOpKernel {
 public:
  explicit DepthwiseConvolution(tensorflow::OpKernelConstruction* context)
      : XlaOpKernel(context), node_(context->def()) {
    const auto attrs =
        tensorflow::ConvOpAttrs::Create(/*num_spatial_dims=*/2, /*depthwise=*/true, context);
    OP_REQUIRES_OK(context, attrs.status());
    attrs_ = *attrs;
  }

  void Compile(XlaOpKernelContext* context) override {
    // Made in any case: it checks the inputs and has the shape of the result. XLA drops it if it is
    // not read.
    const absl::StatusOr<xla::XlaOp> lowered = Lower(context);
    OP_REQUIRES_OK(context, lowered.status());
    const bool is_on = AreXlaCallsOn();
    if (!is_on || !CanCall(context, *lowered)) {
      ++(is_on ? xla_call_counts.refused : xla_call_counts.left);
      return context->SetOutput(0, *lowered);
    }
    const auto inputs = ReadInputs(context);
    OP_REQUIRES_OK(context, inputs.status());
    const auto called = CallKernel(node_, *inputs, {*lowered});
    OP_REQUIRES_OK(context, called.status());
    ++xla_call_counts.compiled;
    context->SetOutput(0, called->front());
  }

 private:
  absl::StatusOr<xla::XlaOp> Lower(XlaOpKernelContext* context) {
    const std::string& op = type_string();
    tensorflow::TensorShape shape;
    if (absl::EndsWith(op, "BackpropInput")) {
      TF_RETURN_IF_ERROR(
          context->ConstantInputAsShape(0, &shape, xla::ValueInferenceMode::kUpperBound));
      if (shape.dims() != 4) {
        return absl::InvalidArgumentError(
            absl::StrCat("Expected input sizes of 4 dimensions, got ", shape.dims(), "."));
      }
      xla::XlaOp sizes = context->Input(0);
      return tensorflow::MakeXlaBackpropInputConvOp(
          op, tensorflow::TensorShapeToXLAShape(context->input_xla_type(1), shape),
          context->Input(1), context->Input(2), attrs_, &sizes);
    }
    if (absl::EndsWith(op, "BackpropFilter")) {
      TF_RETURN_IF_ERROR(context->ConstantInputAsShape(1, &shape));
      return tensorflow::MakeXlaBackpropFilterConvOp(
          op, context->Input(0),
          tensorflow::TensorShapeToXLAShape(context->input_xla_type(0), shape), context->Input(2),
          attrs_);
    }
    return tensorflow::MakeXlaForwardConvOp(op, context->Input(0), context->Input(1), attrs_);
  }

  // Whether TensorFlow's kernel takes this, as XLA does: static sizes that are not 0, images with
  // their channels last, no dilation. Without oneDNN it cannot be made for unequal strides.
  bool CanCall(XlaOpKernelContext* context, xla::XlaOp result) const {
    const auto is_plain = [](const absl::StatusOr<xla::Shape>& shape) {
      return shape.ok() && shape->is_static() &&
             absl::c_all_of(shape->dimensions(), [](int64_t size) { return size > 0; });
    };
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (!is_plain(context->InputXlaShape(i))) return false;
    }
    return is_plain(context->builder()->GetShape(result)) &&
           attrs_.data_format == tensorflow::FORMAT_NHWC &&
           absl::c_all_of(attrs_.dilations, [](int32_t dilation) { return dilation == 1; }) &&
           HasKernel(tensorflow::DEVICE_CPU, node_);
  }

  const tensorflow::NodeDef node_;
  tensorflow::ConvOpAttrs attrs_;
};

// The kernel registry prefers a kernel of higher priority to TensorFlow's own.
// NOLINTNEXTLINE(bugprone-throwing-static-initialization): only if memory runs out
const bool convolutions_are_registered = [] {
  for (const char* op : {"DepthwiseConv2dNative", "DepthwiseConv2dNativeBackpropInput",
                         "DepthwiseConv2dNativeBackpropFilter"}) {
    auto* const def = new tensorflow::KernelDef;  // owned by the registry
    def->set_op(op);
    def->set_device_type("XLA_CPU_JIT");
    def->set_priority(1);
    auto* const constraint = def->add_constraint();
    constraint->set_name("T");
    constraint->mutable_allowed_values()->mutable_list()->add_type(tensorflow::DT_FLOAT);
    tensorflow::kernel_factory::OpKernelRegistrar(
        def, "tf_interop::DepthwiseConvolution",
        [](tensorflow::OpKernelConstruction* context) -> tensorflow::OpKernel* {
          return new DepthwiseConvolution(context);
        });
  }
  return true;
}();

}  // namespace

}  // namespace tf_interop
